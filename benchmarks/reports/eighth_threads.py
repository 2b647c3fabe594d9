"""An eighth list of reports: a second sample of what users report.

The list was drawn as the seventh was, by other queries; see `eighth` for how.
Kinds of faults that earlier lists have are included. The list is blind: its
author had read no check and had run none. The entries, with the right answers,
were fixed before a log of them was made (2026-11-29). Only excerpts of the
threads and posts are known.

`answer` says what an expert with the log alone can say, and begins with 'cannot
tell' if that is not enough to name the cause (`unlogged`). A comment above an
entry says what else the fault leads to: a finding that says so is a symptom.
"""

from benchmarks.reports import threads

Report = threads.Report

# Rewards, judges, formats, lengths, agents.
TEXTS = {
    # Completions run to the limit; rewards are 0 and without spread.
    'lora_twice': Report(
        thread='ms-swift #8233',
        seen='after a restart the first batch is right, and all later ones are'
        ' malformed',
        cause='the first synchronisation merges the LoRA into the weights of'
        ' the sampler, later ones add it as an adapter: it counts twice',
        answer='the run was resumed at step 60; from its second batch on no'
        ' completion has the format any more, from one step to the next, which'
        ' one update cannot do: the sampler does not have the weights of the'
        ' trainer, such as a LoRA that is applied twice',
        log='trl',
        symptoms=('outcome_falling', 'kl_explosion', 'truncation'),
    ),
    # Completions become alike, and fill up to the limit.
    'thanks_scored': Report(
        thread='DeepSpeedExamples #491',
        seen='the actor generates as many "thanks" as it can',
        cause='the score of the reward model rises with the number of "thanks",'
        ' whatever the prompt is',
        answer='the reward rises with the number of times that one word,'
        ' thanks, is repeated, and completions are little else in the end: the'
        ' reward model is exploited',
        log='table',
        names=('word_paid',),
        says='thanks',
    ),
    # Completions become three times as long.
    'length_paid': Report(
        thread='didierlopes.com/blog/the-model-did-what-i-rewarded-not-what-i-'
        'wanted',
        seen='a model that is asked for a direct answer learns to write more',
        cause='a part of the reward that the prompt does not mention pays for'
        ' the length',
        answer='one part of the reward pays for length, whether the answer is'
        ' right or not, and is all that rises: completions become ever longer,'
        ' answers no better',
        log='prime-rl',
        names=('length_gaming',),
        says='longer completions are paid',
        symptoms=('reward_hacking',),
    ),
    # Answers that differ from the reference are paid.
    'judge_style': Report(
        thread='jinyansu1.github.io/blog/2026/04/reward-hacking-llm-judge',
        seen='the judged accuracy of an evaluation jumps from 5 to 95 % around'
        ' step 400',
        cause='headers, bullets, bold text and "Key context:" make the judge'
        ' mark wrong answers as right; 6.7 % of them contain the reference',
        answer='around step 400 completions turn into headers and bullets, and'
        ' the score jumps although fewer of them contain the reference: the'
        ' judge pays the style',
        log='verl',
        names=('paid_without_key',),
        says='the style',
        symptoms=('verdicts_differ',),
    ),
    # Completions become short and alike; the KL surges.
    'judge_opener': Report(
        thread='arXiv 2507.08794',
        seen='completions shrink to less than 30 tokens, the KL surges, and the'
        ' judge pays them',
        cause='the judge takes openers such as "Thought process:" for right'
        ' answers',
        answer='nearly all completions are one opener without an answer, and'
        ' are paid: the judge is exploited',
        log='verl',
        names=('grader_open',),
        says='one text',
        symptoms=('kl_explosion', 'verdicts_differ', 'shrinks'),
    ),
    # The score stays low.
    'wrong_keys': Report(
        thread='arXiv 2603.16140',
        seen='a model that is trained on noisy annotations is 8 to 10 % worse',
        cause='annotations are wrong',
        answer='in about a third of the groups nearly all completions agree on'
        ' one answer, and it is not the reference: these references are'
        ' probably wrong',
        log='verl',
        names=('key_disagrees',),
        says='agrees count as wrong',
    ),
    # Responses shrink.
    'length_penalised': Report(
        thread='arXiv 2602.09591',
        seen='reasoning is not acquired with a penalty of the length',
        cause='shorter right answers get more, and the policy thinks too'
        ' little',
        answer='the score of right answers falls with their length; responses'
        ' shrink to a fifth, and fewer of them are right than before: the'
        ' penalty of the length is too strong',
        log='verl',
        names=('length_gaming',),
        says='shorter completions are paid',
    ),
    # No gradient.
    'tag_not_written': Report(
        thread='prime-rl #346',
        seen='the reward is 0 in the whole run',
        cause='the answer is looked for after </think>, which a model without'
        ' thinking does not write once the template no longer adds it',
        answer='all rewards are 0 although many completions have the right'
        ' answer: the verifier does not find it, as it wants a tag or a format'
        ' that is not written',
        log='prime-rl',
        names=('plain_refused',),
        says='a tag',
        symptoms=('too_hard',),
    ),
    # Responses become shorter.
    'tools_penalised': Report(
        thread='OpenRLHF #1252',
        seen='responses that are not too long are penalised as such',
        cause='the length is that from the first to the last sampled token,'
        ' with the replies of tools between them',
        answer='cannot tell: the reward has a penalty of long responses, but'
        ' neither the replies of tools nor their length are logged',
        log='wandb',
        unlogged=True,
    ),
    # Episodes get fewer turns, the score falls.
    'early_ends': Report(
        thread='hypercool.cn/ai/ai_algorithms/vision/2026/06/08/ETC-RL',
        seen='the agent collapses, and ends its episodes early',
        cause='an episode is over when the policy ends its turn, and it learns'
        ' to end turns that neither search nor answer',
        answer='ever more episodes end after a turn that neither searches nor'
        ' answers, and get 0: go on with such an episode, or refuse to end it',
        log='verl',
        symptoms=('malformed_calls', 'outcome_falling'),
    ),
    # Fewer edits, and shorter episodes.
    'history_mined': Report(
        thread='mindbento.com/hn-top/through-the-looking-glass-of-benchmark-'
        'hacking',
        seen='the score of a SWE benchmark jumps by 20 % overnight',
        cause='the images have the later commits, and agents read the solution'
        ' with git',
        answer='agents read later commits with git log --all and git show, and'
        ' such episodes are the ones that solve the task: prune the history of'
        ' the repositories',
        log='verl',
        names=('history_leak',),
        says='history',
    ),
    # The entropy rises; the score falls.
    'sandbox_unreachable': Report(
        thread='Open-AgentRL #7',
        seen='calls of tools cannot be decoded or fail, and the entropy rises',
        cause='the sandbox that runs the code is not deployed well',
        answer='most calls of the interpreter are answered by one and the same'
        ' error of the sandbox, API call failed, from the first step on',
        log='verl',
        names=('same_error',),
        says='API call failed',
        symptoms=('echo_trap',),
    ),
    # Responses are long.
    'errors_tolerated': Report(
        thread='arXiv 2508.20722',
        seen='10 to 15 % of the calls in right trajectories fail even after'
        ' training',
        cause='the reward is for the outcome alone, so that failing calls are'
        ' reinforced with a right answer',
        answer='the score rises, but the share of calls that end in an error'
        ' stays between 10 and 15 %, in paid responses too: nothing in the'
        ' reward asks for calls without errors',
        log='verl',
    ),
    'thoughts_translated': Report(
        thread='arXiv 2506.05850',
        seen='thoughts drift to English while the reward rises',
        cause='the answer alone is paid, and the model reasons best in the'
        ' language that dominates its pretraining',
        answer='completions are in the language of the prompt at first and in'
        ' English in the end: no part of the reward asks for the language',
        log='trl',
        names=('other_language',),
        says='English',
    ),
    # The KL becomes very large, lengths shrink.
    'format_hacked': Report(
        thread='open-r1 #373',
        seen='the KL becomes very large, and the format reward goes up at once',
        cause='completions only fit the format and give no answer',
        answer='the format reward jumps to 1 while the accuracy falls to 0 and'
        ' the KL explodes: the policy writes the tags alone',
        log='trl',
        names=('reward_hacking',),
        says='format_reward',
        symptoms=('kl_explosion', 'shrinks'),
    ),
    # Answers end, and garbage follows.
    'end_suppressed': Report(
        thread='DeepSpeedExamples #470',
        seen='generation never stops before the limit',
        cause='min_length equals max_length, which suppresses the token of the'
        ' end',
        answer='all completions have about the same length, that of the limit,'
        ' and go on after their answer: none may end, as min_length is that of'
        ' the limit or the token of the end is suppressed',
        log='table',
        names=('fixed_length',),
        says='min_length',
    ),
}

# Log-probs, engines, staleness, critics.
MODELS = {
    # The reward does not move.
    'never_synced': Report(
        thread='axolotl (AsyncGRPOTrainer._maybe_sync_vllm_weights)',
        seen='the LoRA never reaches the sampler',
        cause='without prefetching the synchronisation is skipped, and the one'
        ' of the trainer before it is never called',
        answer='log-probs of sampler and trainer differ more with each step,'
        ' and the reward stays where it is: the sampler has the weights of the'
        ' start',
        log='trl',
        names=('logprob_gap',),
        says='older than',
    ),
    # The score falls, the entropy and the gradient explode.
    'router_mismatch': Report(
        thread='arXiv 2510.11370',
        seen='runs of a mixture of experts collapse',
        cause='sampler and trainer choose other experts for the same tokens',
        answer='log-probs of sampler and trainer differ from the first step on'
        ' and ever more until the score collapses: the engines do not compute'
        ' the same policy; with experts, replay the routing',
        log='verl',
        names=('logprob_gap',),
        says='routing replay',
        symptoms=('reward_falling', 'truncation'),
    ),
    # The loss spikes in single steps.
    'tokens_again': Report(
        thread='qgallouedec-tito.hf.space (Token-In, Token-Out)',
        seen='with tools, the loss spikes now and then for no obvious reason',
        cause='the conversation is tokenised again for each turn, and other'
        ' tokens are trained than were sampled',
        answer='in some steps single tokens have log-probs that differ by 10'
        ' nats and more between sampler and trainer, and the loss spikes in'
        ' these: tokens were trained that were never sampled, such as those of'
        ' turns that were tokenised again',
        log='trl',
        names=('unsampled_tokens',),
        says='never sampled',
    ),
    # The score hardly rises.
    'critic_blind': Report(
        thread='analemma.ai/papers/36b17d4e (Timeout Bootstrapping)',
        seen='the values of the critic collapse within 15 to 20 steps',
        cause='the critic is miscalibrated: its values correlate negatively'
        ' with being right',
        answer='the values of the critic become one number within 20 steps, and'
        ' its explained variance is 0 or below: it tells nothing about the'
        ' responses',
        log='verl',
        names=('critic_untrained',),
        says='critic',
    ),
    # Importance weights are away from 1.
    'top_p_logprobs': Report(
        thread='ms-swift #8442',
        seen='log-probs of rollouts and of the trainer differ greatly',
        cause='processed log-probs are those after top_p and top_k',
        answer='log-probs of the sampler are higher than those of the trainer'
        ' from the first step on and by about the same amount: they are those'
        ' after a cut by top_p or top_k, or at another temperature',
        log='trl',
        names=('logprob_gap',),
        says='temperature',
    ),
    'scaled_logprobs': Report(
        thread='prime-rl #697',
        seen='the importance ratio is far from 1 at low temperatures',
        cause='log-probs of the sampler are divided by the temperature, instead'
        ' of the logits',
        answer='the importance ratio is away from 1 from the first step on: the'
        ' log-probs of the sampler are not at the temperature of the trainer',
        log='wandb',
        names=('ratio_off',),
        says='temperature',
    ),
    # The score stops to rise and collapses.
    'stale_by_many': Report(
        thread='m2po.notion.site/rl-stale-m2po',
        seen='GRPO degrades and collapses with rollouts that are 256 updates'
        ' old',
        cause='many tokens are clipped because their policy is too old',
        answer='the share of clipped tokens is 10 times the usual and grows,'
        ' and so is the KL to the old policy: rollouts come from a policy that'
        ' is many updates old',
        log='verl',
        names=('off_policy',),
        says='younger rollouts',
        symptoms=('reward_falling',),
    ),
    # The entropy and the gradient explode, the reward falls.
    'stale_negatives': Report(
        thread='hanifleo.com/rl-framework-worklog-i-handling-off-policy',
        seen='training collapses with moderately stale rollouts',
        cause='tokens of failed rollouts have no bound: their ratio is not'
        ' clipped where the policy leaves them or comes back',
        answer='rollouts are several updates old, and ratios explode with the'
        ' gradient before the reward collapses: samples are too stale for this'
        ' clipping; clip those with a negative advantage more tightly',
        log='wandb',
        names=('off_policy',),
        says='younger rollouts',
        symptoms=('reward_falling', 'entropy_rising'),
    ),
}

SOUND = {
    'loss_is_kl': Report(
        thread='R1-V #185',
        seen='the loss begins at 0 and grows: it is the KL times beta',
        cause='',
        log='trl',
    ),
    'first_update_zero': Report(
        thread='Hands-On-Large-Language-Models-CN #9',
        seen='the loss is 0 in the first update of a batch, as the ratio is 1'
        ' and advantages are centred: the gradient is not 0',
        cause='',
        log='wandb',
    ),
    'ratio_is_one': Report(
        thread='minimind #775',
        seen='the ratio is always 1 and nothing is clipped: one update per'
        ' batch',
        cause='',
        log='wandb',
    ),
    'cryptograms': Report(
        thread='groundlight.ai/blog/visual-reasoning-models',
        seen='a model of images learns to solve 96 % of cryptograms: a'
        ' published success',
        cause='',
        log='trl',
    ),
    'less_verbose': Report(
        thread='dirtydan0.notion.site (Beyond the Training Plateau)',
        seen='the score is level after 30 of 93 steps while lengths still fall:'
        ' less is written after the answer',
        cause='',
        log='verl',
    ),
    'math_on_two': Report(
        thread='bearbearyu1223.github.io/posts/grpo-math-reasoning-lambda-cloud',
        seen='the accuracy rises from 6 to 25 %: a published success',
        cause='',
        log='wandb',
    ),
    'two_functions': Report(
        thread='daytona #3207',
        seen='two functions are learned until the reward is near its maximum of'
        ' 1 after 64 steps: a published success',
        cause='',
        log='trl',
    ),
    'thinks_in_target': Report(
        thread='torchforge #515',
        seen='a reward for the language of thoughts is learned beside the'
        ' answer: a published success',
        cause='',
        log='wandb',
    ),
}
