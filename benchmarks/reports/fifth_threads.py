"""A fifth list of reports, from threads that the first four do not have.

The list, with the right answers, was fixed before a log of it was made, and
the logs before a check was read or run. Judged once by hand (2026-11-27), by
the checks of 196ccd7c: 3 of 26 named (future_commits, long_warmup,
lora_ignored), 9 as a symptom, 3 rightly not named (`unlogged`), 11 missed
(cut_prompts, own_end, same_seed, gumbel_noise, eval_parser, judge_diverges,
merged_drift, step_advantages, inflight_nan, aux_per_token, cache_refit); no
alarm on the 10 sound runs. One more finding was false: grader_open in
future_commits, which does not count `git apply` as an edit. Another, kl_strong
in long_warmup, was an artefact of the log, whose loss and KL had the same
noise; each has its own now. Of the 9 symptoms 6 list the cause or its class as
a possible cause (constant_reward, fallback_policy, does_nothing, twenty_chars,
forced_finish, top_p_ratio).
"""

from benchmarks.reports import threads

Report = threads.Report

# Data, prompts, graders, environments, judges, evaluation.
TEXTS = {
    'double_bos': Report(
        thread='TRL #3853',
        seen='the reward is much lower with vLLM than with the model itself',
        cause='the prompt begins with two BOS tokens: the chat template writes'
        ' one and the sampler adds one',
        answer='cannot tell: tokens are not logged, and the run only learns'
        ' from a lower reward',
        log='trl',
        unlogged=True,
    ),
    'cut_prompts': Report(
        thread='unsloth #3971',
        seen='part of the prompts is never answered',
        cause='prompts over the limit are cut at their right end, and lose the'
        ' question and the beginning of the answer turn',
        answer='prompts at the limit get no reward: their end is cut',
        log='trl',
        names=('prompt_cut',),
        says='the whole prompt',
        symptoms=('truncation',),
    ),
    'constant_reward': Report(
        thread='CoursIA #10504',
        seen='the loss is 0.0000, and no error is raised',
        cause='the reward function returns 0 for everything: the answers of the'
        ' data are not given to it',
        answer='right answers are refused, all of them',
        log='trl',
        names=('too_hard',),
        says='grade a reference solution',
        symptoms=('dead_groups', 'gradient_zero', 'not_learning'),
    ),
    'never_truncated': Report(
        thread='verifiers #186',
        seen='the reward is 0 in all steps, though functions pay',
        cause='zero_truncated_completions sets the reward of every completion'
        ' to 0, whether it was cut or not',
        answer='the reward is not the sum of its parts: it is 0 while they pay',
        log='wandb',
        names=('reward_lost',),
        says='before they become the reward',
        symptoms=('gradient_zero', 'dead_groups', 'not_learning'),
    ),
    'own_end': Report(
        thread='verifiers #47',
        seen='completions contain ever more <|im_end|>, then mix languages',
        cause='the mask of the completion includes tokens of the chat template,'
        ' so that the model is trained to write the ends and roles itself',
        answer='tokens of the template are trained: completions contain them',
        log='table',
        names=('roles_written',),
        says='chat template',
        symptoms=(
            'other_language',
            'loops',
            'reward_falling',
            'outcome_falling',
        ),
    ),
    'future_commits': Report(
        thread='uni-agent #23',
        seen='the reward rises fast',
        cause='the container has the later commits, so that the agent reads the'
        ' right patch with git',
        answer='the agent reads the solution from the history of the'
        ' repository',
        log='verl',
        names=('history_leak',),
        says='history',
    ),
    'fallback_policy': Report(
        thread='ChargebackOps SPECIFICATION_GAMING.md',
        seen='three checkpoints have exactly the score of the heuristic'
        ' baseline',
        cause='an action that cannot be used is replaced with that of a'
        ' heuristic, whose reward the policy gets: it emits one such action for'
        ' every prompt',
        answer='the same text for all prompts gets a high reward',
        log='trl',
        names=('one_text',),
        says='cannot be used',
        symptoms=('entropy_collapse', 'dead_groups', 'gradient_zero'),
    ),
    'does_nothing': Report(
        thread='peterwofford.com/reward-function',
        seen='accuracy rises to 65 % in 10 steps and falls to 0 in 10 more',
        cause='an episode that times out gets 0, a wrong guess less than 0: the'
        ' agent does nothing until time is up',
        answer='doing nothing pays more than trying: the reward of a failure'
        ' is below that of giving up',
        log='wandb',
        symptoms=(
            'outcome_falling',
            'reward_falling',
            'entropy_collapse',
            'gradient_zero',
        ),
    ),
    'twenty_chars': Report(
        thread='ishanjmukherjee.github.io/reward-hacking-grpo',
        seen='reward and its deviation become flat within a few steps',
        cause='completions of digits all reach the limit of 256 tokens, have'
        ' 256 characters, and so the same reward',
        answer='all completions are cut at the limit and get the same reward',
        log='trl',
        symptoms=('gradient_zero', 'truncation', 'dead_groups', 'length_alone'),
    ),
    'forced_finish': Report(
        thread='AgenticArXiv-RL #76',
        seen='a right call and one with wrong arguments get the same reward',
        cause='the total of every one-step episode is capped at 0.25, since a'
        ' last step is appended to it',
        answer='nearly all completions get one and the same reward: a cap',
        log='trl',
        names=('dead_groups',),
        says='a cap',
        symptoms=('dead_groups', 'gradient_zero'),
    ),
    'same_seed': Report(
        thread='ms-swift #7858',
        seen='completions of a group are equal',
        cause='the engines that share the rollouts of a prompt have one seed',
        answer='completions of a group are copies of each other: the seeds of'
        ' the engines',
        log='trl',
        names=('same_samples',),
        says='seed',
    ),
    'reads_thoughts': Report(
        thread='TRL #5298',
        seen='the format reward rises while the accuracy is nearly 0',
        cause='the grader reads a value in the thoughts instead of the final'
        ' answer',
        answer='right answers are refused: the grader reads the thoughts',
        log='trl',
        names=('never_paid',),
        says='find the answer',
        symptoms=('reward_hacking', 'outweighed', 'too_hard'),
    ),
    'gumbel_noise': Report(
        thread='tt-metal #56016',
        seen='completions are nonsense from the first step on, before any'
        ' training',
        cause='the noise of the sampler has a higher upper bound, as if the'
        ' temperature were far too high',
        answer='texts are unreadable from the first step on: the sampler, not'
        ' training',
        log='table',
        symptoms=('unreadable', 'loops'),
    ),
    'eval_parser': Report(
        thread='ExploitHunter #202',
        seen='an exact-match metric is 0 for all models, trained or not',
        cause='the parser of the evaluation leaves a control token in the'
        ' answer',
        answer='one held-out metric is 0 in all evaluations while the others'
        ' rise: its grader',
        log='wandb',
        names=('eval_zero',),
        says='how this evaluation reads an answer',
    ),
    'judge_diverges': Report(
        thread='paper_notes #6335 (arXiv 2608.11669)',
        seen="the judge's score rises throughout",
        cause='the policy exploits the rubric: a stronger judge, on other data,'
        ' sees a peak and then a fall',
        answer='the reward rises while a held-out score falls: gaming',
        log='wandb',
        names=('evals_part',),
        says='the policy games the judge of',
    ),
}

# Losses, optimisers, samplers, restarts, distribution.
MODELS = {
    'greedy_after_eval': Report(
        thread='verl #2087',
        seen='reward and entropy fall and responses get very long, after the'
        ' first evaluation',
        cause='the temperature of the evaluation, 0, is kept for training',
        answer='sampling changes at the step after the first evaluation:'
        ' temperature',
        log='wandb',
        names=('entropy_jumps',),
        says='an evaluation after which',
        symptoms=(
            'entropy_collapse',
            'truncation',
            'outcome_falling',
            'reward_falling',
            'kl_explosion',
        ),
        since=21,
    ),
    'merged_drift': Report(
        thread='TRL #6688',
        seen='the entropy falls at a stroke when the run is resumed',
        cause='merging adapters into bf16 weights and out of them moves the'
        ' base, which checkpoints of adapters do not hold',
        answer='the policy after the restart is not the one before it',
        log='trl',
        names=('entropy_jumps',),
        says='merged, rounded',
        symptoms=('entropy_collapse',),
    ),
    'step_advantages': Report(
        thread='SkyRL #1492',
        seen='training by steps of episodes is unstable',
        cause='the advantages of the last step are copied with its mask to the'
        ' others, where nearly all of them fall on masked tokens',
        answer='advantages are far smaller than those of such rewards: most'
        ' tokens have none',
        log='wandb',
    ),
    'inflight_nan': Report(
        thread='NeMo-RL #2180',
        seen='six metrics are NaN in 2 % of the steps',
        cause='weights are updated while a pipeline-parallel engine generates;'
        ' the log-probs that it returns are NaN',
        answer="the sampler's log-probs are NaN in a few steps: updates of its"
        ' weights during generation',
        log='wandb',
        names=('not_finite',),
        says='sampler',
    ),
    'long_warmup': Report(
        thread='maxtext #4225',
        seen='a run of 500 steps does not learn',
        cause='the warm-up takes its length from the default of pre-training,'
        ' 15,000 steps, so that the rate is 300 times too low',
        answer='the learning rate is far too low: a warm-up that does not end',
        log='wandb',
        names=('warmup',),
        says='warm-up',
        symptoms=('not_learning', 'hardly_moves'),
    ),
    'aux_per_token': Report(
        thread='verl #6609',
        seen='the norm of the gradient is in the thousands, and validation'
        ' gets steadily worse',
        cause='with context parallelism the gradient of the auxiliary loss of'
        ' the experts is not divided by the number of tokens, and outweighs the'
        ' policy',
        answer='the gradient is thousands of times too large, and clipped in'
        ' each step: how a loss is averaged',
        log='wandb',
        names=('eval_falling',),
        says='a sum where the others are means',
        symptoms=('gradient_clipped', 'outcome_falling', 'reward_falling'),
    ),
    'two_precisions': Report(
        thread='minimind #814',
        seen='accuracy falls from 87 % to 85 % and oscillates',
        cause='the new log-probs are computed in half precision, the old ones'
        ' in full precision, so that the ratio is not 1 before an update',
        answer='cannot tell: a mean over epochs hides the ratio of the first'
        ' batch',
        log='wandb',
        unlogged=True,
        symptoms=('outcome_falling', 'reward_falling', 'not_learning'),
    ),
    'top_p_ratio': Report(
        thread='prime-rl #2979',
        seen='runs with top-p sampling collapse',
        cause="the sampler's log-probs are those of the truncated distribution,"
        " the trainer's those of the full one",
        answer='log-probs of sampler and trainer differ from the first step'
        ' on: top_p, top_k',
        log='wandb',
        names=('logprob_gap',),
        says='top_p',
        symptoms=('reward_falling', 'outcome_falling', 'entropy_collapse'),
    ),
    'cache_refit': Report(
        thread='NeMo-RL #4018',
        seen='the mismatch of sampler and trainer grows in each job and is gone'
        ' when the next one starts',
        cause='the prefix cache is kept when weights are updated',
        answer='the sampler keeps something across updates that a restart'
        ' clears: its cache',
        log='wandb',
        names=('gap_restarts',),
        says='cache',
    ),
    'lora_ignored': Report(
        thread='unsloth #8701',
        seen='the reward does not change, while losses look fine',
        cause='every rollout comes from the base model: the adapter does not'
        ' reach the sampler',
        answer='the sampler does not get the trained weights',
        log='trl',
        names=('logprob_gap', 'stale_sampler'),
        says='weights are older',
        symptoms=('not_learning', 'other_weights'),
    ),
    'local_gradients': Report(
        thread='minimind #853',
        seen='nothing: training on several GPUs is as slow as on one',
        cause='the forward pass goes around DDP, so that gradients are not'
        ' averaged and only the first replica is saved',
        answer='cannot tell: metrics are those of one replica',
        log='wandb',
        unlogged=True,
        symptoms=('not_learning',),
    ),
}

SOUND = {
    'loss_after_400': Report(
        thread='theLMbook #6',
        seen='the loss rises quickly late in the run: the KL grows while the'
        ' reward has reached its limit',
        cause='',
        log='wandb',
    ),
    'entropy_lower': Report(
        thread='rllm #15',
        seen="the entropy falls, unlike that of the authors' runs",
        cause='',
        log='wandb',
    ),
    'first_rate_zero': Report(
        thread='verl #3674',
        seen='the learning rate of the first step is 0: a warm-up',
        cause='',
        log='verl',
    ),
    'summed_norm': Report(
        thread='NeMo-RL #1426',
        seen='the norm of the gradient is 64 times too large: the log sums over'
        ' micro-batches, the training does not',
        cause='',
        log='wandb',
    ),
    'seeds_vary': Report(
        thread='GUI-R1 #2',
        seen='training fluctuates: small batches',
        cause='',
        log='wandb',
    ),
    'higher_than_paper': Report(
        thread='Search-R1 #46',
        seen='scores are higher than those of the paper, and lengths do not'
        ' fall and rise',
        cause='',
        log='wandb',
    ),
    'pg_loss_up': Report(
        thread='open-instruct #836',
        seen='the policy loss rises and the rate of right answers fluctuates',
        cause='',
        log='wandb',
    ),
    'ratio_recomputed': Report(
        thread='AReaL #201',
        seen='the ratio is 1, since log-probs are computed anew: the decoupled'
        ' objective',
        cause='',
        log='wandb',
    ),
    'negative_kl': Report(
        thread='TRL #1161',
        seen='the KL is negative in some steps: the log uses another estimate'
        ' than the training',
        cause='',
        log='wandb',
    ),
    'advantage_zero': Report(
        thread='TRL #2976',
        seen='the mean advantage is 0, and the loss is only the KL',
        cause='',
        log='trl',
    ),
}
