"""A seventh list of reports: a sample of what users report.

The lists before it were made of faults that are unlike earlier ones, so that
recall on them is no estimate of recall on a user's runs. This list is a sample:
see `seventh` for how it was drawn. Kinds of faults that earlier lists have are
included. The list is blind: its author had read no check and had run none. The
entries, with the right answers, were fixed before a log of them was made
(2026-11-28). Only excerpts of the threads are known.

`answer` says what an expert with the log alone can say, and begins with 'cannot
tell' if that is not enough to name the cause (`unlogged`). A comment above an
entry says what else the fault leads to: a finding that says so is a symptom.

Judged once by hand (2026-11-28), by the checks of fa4ec182: 5 of 24 named
(interaction_collapse, control_token_spikes, whole_match, two_node_zero,
raw_logprobs), 7 as a symptom (format_only_paid, cold_start_saturated,
between_groups_spread, unexplored_proxy, kl_of_dead_groups, never_solved,
unclipped_gradient), 3 rightly not named (`unlogged`), 9 missed; one false
finding (answer_in_prompt in tests_overwritten), and one alarm on the 8 sound
runs (hits_rise). `names`, `says` and `symptoms` were filled in afterwards, when
checks had been added.
"""

from benchmarks.reports import threads

Report = threads.Report

# Rewards, formats, agents, problems, and what is logged of lengths.
TEXTS = {
    # The reward jumps between steps, because each step has another task.
    'one_group_steps': Report(
        thread='openadapt-ml #48',
        seen='many steps have neither a loss nor an update',
        cause='each step takes one group of 8 rollouts with rewards of 0 or 1,'
        ' which are often all 0 or all 1; gradients are not accumulated over'
        ' groups',
        answer='in about half of the steps all rollouts have the same reward,'
        ' so that nothing is learned from them: several groups a step, or tasks'
        ' that are solved now and then',
        log='wandb',
        names=('idle_steps',),
        says='times as many groups',
    ),
    # Completions become short; the spread of the reward vanishes.
    'format_only_paid': Report(
        thread='lesswrong.com/posts/hBjn9rqgjrktH9LL3',
        seen='the format rises from 0.44 to 1, the accuracy falls from 0.23 to'
        ' 0.03',
        cause='the only reward is for the format',
        answer='all that is paid is the format, and completions keep the tags'
        ' and drop the thought: a reward for the right answer is missing',
        log='trl',
        names=('form_alone',),
        says='part for the right answer',
    ),
    # The reward hardly rises, and gradients are small.
    'cold_start_saturated': Report(
        thread='zingnex.cn/en/forum/thread/grpo7b',
        seen='GRPO gains little after a good cold start',
        cause='most problems are solved by all 4 rollouts, so that 63 % of the'
        ' groups have no spread',
        answer='most groups are all right and teach nothing: harder problems,'
        ' or more rollouts of each',
        log='trl',
        names=('dead_groups',),
        says='harder problems',
    ),
    # Loss and gradient are 0, the reward does not move.
    'between_groups_spread': Report(
        thread='TRL #3857',
        seen='the loss is 0 although a reward has a standard deviation of 5',
        cause='rewards differ between prompts, not between the completions of'
        ' one prompt',
        answer='all groups have one reward for all of their completions, so'
        ' that advantages are 0: the spread that is logged for a reward is that'
        ' between prompts. Sample with more variety or grade more finely',
        log='trl',
        names=('dead_groups',),
        says='differ between prompts',
    ),
    # Completions become longer; turns become fewer.
    'interaction_collapse': Report(
        thread='swarmsignal.net/when-your-agent-stops-using-tools',
        seen='the agent stops to call its tools and reasons instead',
        cause='the reward pays a right answer with or without a call, and the'
        ' cold start taught long thoughts',
        answer='calls of tools vanish while the reward goes on rising: nothing'
        ' in the reward asks for them',
        log='verl',
        names=('calls_unlearned',),
        says='small part for a call',
    ),
    # Score falls, completions are cut at the limit.
    'control_token_spikes': Report(
        thread='arXiv 2606.26027',
        seen='the score drops at once, and calls of tools can no longer be'
        ' read',
        cause='the probability of control tokens such as <tool_call> shoots up,'
        ' and they break the form of the calls; the skill is still there',
        answer='from one step on completions repeat the token that opens a'
        ' call, and no call can be read: the form collapsed. Go back to a'
        ' checkpoint before it and mix in supervised examples or lower the'
        ' rate',
        log='verl',
        names=('malformed_calls',),
        says='calls are malformed',
        symptoms=('outcome_falling', 'truncation', 'gives_up'),
    ),
    # Episodes get longer.
    'redundant_calls': Report(
        thread='arXiv 2605.26952',
        seen='the agent calls its tool ever more often, without gain',
        cause='the reward is for the outcome alone, so that needless calls cost'
        ' nothing',
        answer='calls per episode more than double while the score gains next'
        ' to nothing: calls have no price in the reward',
        log='wandb',
        names=('calls_grow',),
        says='cost nothing now',
    ),
    # The gradient is that of the format alone, then 0.
    'never_solved': Report(
        thread='arXiv 2510.03971',
        seen='the reward for answers stays 0',
        cause='the model never samples a right answer to problems this hard',
        answer='not one answer is right in the whole run, so that there is'
        ' nothing to reinforce: mix in easier problems',
        log='wandb',
        names=('never_paid',),
        says='easier ones',
        symptoms=('eval_zero',),
    ),
    # No gradient; nothing changes.
    'unexplored_proxy': Report(
        thread='CoursIA #11312',
        seen='a reward that pays a shortcut has no effect',
        cause='the shortcut is never sampled, so that all rewards are 0',
        answer='the reward is 0 for all completions and the gradient with it:'
        ' what it pays does not occur, so it has to be shown first',
        log='trl',
        names=('dead_groups',),
        says='never sampled',
    ),
    # Score and length jump.
    'tests_overwritten': Report(
        thread='alignmentforum.org/posts/R5MdWGKsuvdPwGFBG',
        seen='the score jumps between steps 80 and 100',
        cause='completions define run_tests(), the function that grades them',
        answer='completions that define run_tests() themselves are paid, and'
        ' after 80 steps nearly all do: the grader is overwritten',
        log='verl',
        names=('grader_overwritten',),
        says='in another process',
    ),
    'reasoning_sign': Report(
        thread='alpamayo-recipes #29',
        seen='worse reasoning gets more reward',
        cause='the term of the reasoning is divided by a threshold that is'
        ' negative, which turns its sign',
        answer='the reward rises while reasoning_score falls towards its'
        ' threshold: the sign of that term',
        log='wandb',
    ),
    # A reward that is constant.
    'whole_match': Report(
        thread='R1-V #124',
        seen='the format reward is 0',
        cause='its pattern has to match the whole completion, which has text'
        ' around the tags',
        answer='one reward is 0 for all completions of all steps while the'
        ' other one rises: does its pattern match what is written',
        log='trl',
        names=('never_paid',),
        says='does it match',
    ),
    # Lengths and losses fluctuate.
    'format_added': Report(
        thread='open-instruct #659',
        seen='the length of unsolved problems fluctuates, and training is'
        ' unstable',
        cause='the format is paid in addition to the answer: in groups that are'
        ' not solved it alone decides, and reinforces long wrong responses',
        answer='the score contains a format reward that is paid to wrong'
        ' answers as well, and responses to unsolved problems grow and shrink'
        ' with it: pay the answer only if the format is right',
        log='wandb',
    ),
    'prompt_length_logged': Report(
        thread='R1-V #125',
        seen='completion_length is 203 in all steps',
        cause='what is logged is not the length of completions',
        answer='completion_length is one number in all steps, which samples'
        ' never have: it is the length of something else, such as the prompt',
        log='trl',
        names=('fixed_length',),
        says='that of the prompt',
    ),
    'whole_length_logged': Report(
        thread='ms-swift #8247',
        seen='the length of completions is too large',
        cause='the length of prompt and completion is logged as that of the'
        ' completion',
        answer='lengths in the metrics are those of prompt and completion: the'
        ' completions on disk are far shorter',
        log='trl',
        names=('other_length',),
        says='prompt and completion',
    ),
    # The score is low, because answers are missing.
    'other_cap_binds': Report(
        thread='verl #7823',
        seen='no response is cut, says response_length/clip_ratio',
        cause='max_model_len cuts them before max_response_length, and the'
        ' metric compares with the latter',
        answer='many responses stop in the middle of a sentence, at one sum of'
        ' prompt and response, although clip_ratio is 0: max_model_len cuts'
        ' them',
        log='verl',
    ),
}

# Losses, KL terms, gradients, samplers.
MODELS = {
    # Entropy and KL grow without bound, the reward falls.
    'refined_off_policy': Report(
        thread='critique-GRPO #6',
        seen='entropy and KL explode',
        cause='refined responses are sampled with a critique in the prompt and'
        ' trained without it',
        answer='cannot tell: the entropy and the KL grow without bound, but'
        ' where the responses come from is not logged',
        log='wandb',
        unlogged=True,
        symptoms=('entropy_rising', 'truncation'),
    ),
    # Rewards are 0 and completions run to the limit from then on.
    'unclipped_gradient': Report(
        thread='mlx-examples #1233',
        seen='the loss is NaN and all rewards are 0 after 90 iterations',
        cause='neither ratio nor gradient is clipped',
        answer='the loss is NaN from one iteration on, and the completions of'
        ' the next ones are those of broken weights: clip the gradient, and'
        ' restart from before',
        log='wandb',
        symptoms=('not_finite',),
    ),
    # The KL to the reference grows.
    'k1_in_loss': Report(
        thread='open-instruct #534',
        seen='score and length rise, but the evaluation suffers',
        cause='the KL is estimated by the difference of log-probs, whose'
        ' gradient does not depend on the reference: nothing is penalised',
        answer='cannot tell: that the penalty has no gradient does not show,'
        ' and the evaluation is not in the log',
        log='wandb',
        unlogged=True,
    ),
    # Nothing is learned.
    'two_node_zero': Report(
        thread='ms-swift #5890',
        seen='the gradient is 0 on several nodes, not on one',
        cause='DeepSpeed drops the gradients; a newer version does not',
        answer='gradient and KL are exactly 0 in all steps although rewards'
        ' differ within groups: the loss does not reach the weights',
        log='trl',
        names=('gradient_zero',),
        says='although advantages differ',
    ),
    # Few groups have a spread.
    'kl_of_dead_groups': Report(
        thread='TRL #5588',
        seen='steps without a reward signal have a gradient',
        cause='groups whose rewards are all equal still contribute their KL,'
        ' which pulls the policy back to the reference',
        answer='most groups have no spread, and steps in which none has one'
        ' have a gradient all the same: that of the KL alone. Leave such groups'
        ' out or lower beta',
        log='trl',
        names=('dead_groups',),
        says='KL penalty alone',
    ),
    # Log-probs of sampler and trainer differ.
    'raw_logprobs': Report(
        thread='vime #64',
        seen='log-probs of sampler and trainer differ far more than with'
        ' another engine',
        cause='vLLM returns log-probs before the temperature is applied, the'
        ' trainer applies it',
        answer='log-probs of sampler and trainer differ from the first step on'
        ' and by about the same amount: one of them without the temperature',
        log='wandb',
        names=('logprob_gap',),
        says='after the temperature',
    ),
    # The ratio is clipped, the reward falls behind.
    'engine_upgrade': Report(
        thread='huggingface.co/blog vLLM V0 to V1 (PipelineRL)',
        seen='clip rate, KL, entropy and reward leave those of the engine'
        ' before',
        cause='the new engine returns raw log-probs, and its last layer is not'
        ' in float32',
        answer='the ratio of new and old policy is away from 1 from the first'
        ' step on and often clamped: log-probs of the sampler are not those of'
        ' the policy, such as raw ones',
        log='wandb',
        names=('ratio_off',),
        says='after the temperature',
    ),
    # The KL to the reference grows.
    'kl_coef_ignored': Report(
        thread='slime #397',
        seen='--kl-coef has no effect with GRPO',
        cause='returns of GRPO are the rewards alone; the KL that is computed'
        ' is not subtracted',
        answer='cannot tell: a KL that grows is what a small coefficient gives'
        ' as well, and the coefficient is not logged',
        log='wandb',
        unlogged=True,
    ),
}

SOUND = {
    'loss_by_length': Report(
        thread='cosmos-reason1 #22',
        seen='the loss is negative and jumps: it is averaged over tokens, and'
        ' lengths differ',
        cause='',
        log='wandb',
    ),
    'accuracy_band': Report(
        thread='VisualQuality-R1 #13',
        seen='the accuracy reward rises from 0.75 to 0.79 only: the score that'
        ' counts is that of the validation',
        cause='',
        log='trl',
    ),
    'ppo_baseline': Report(
        thread='OpenRLHF #263',
        seen='curves of a PPO run that is published as a baseline: the KL and'
        ' the length grow with the reward',
        cause='',
        log='wandb',
    ),
    'base_writes_format': Report(
        thread='X-R1 #54',
        seen='the length does not grow after 200 steps and is far below the'
        ' limit: the model ends its completions by itself',
        cause='',
        log='trl',
    ),
    'looks_again': Report(
        thread='VLM-R1 #25',
        seen='the length does not grow while the reward does: thoughts help'
        ' little with images',
        cause='',
        log='trl',
    ),
    'passing_kl_spikes': Report(
        thread='open-r1-multimodal #16',
        seen='the KL is extremely high in single steps, and normal in the next'
        ' ones: training is not harmed',
        cause='',
        log='trl',
    ),
    'second_update': Report(
        thread='TinyLoRA-GRPO-Coder #4',
        seen='rewards in every second step, and clip ratios in the others:'
        ' num_iterations=2',
        cause='',
        log='trl',
    ),
    'hits_rise': Report(
        thread='MiniOneRec #58',
        seen='loss and reward fluctuate and hardly rise, as items are rarely'
        ' hit; HR and NDCG of the evaluation rise',
        cause='',
        log='trl',
    ),
}
