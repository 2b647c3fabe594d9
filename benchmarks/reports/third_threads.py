"""A third list of reports, from threads that the first two lists do not have.

The list was fixed before a log of it was made, and judged once by hand
(2026-11-26), by the checks of 8f7706ab: none of 26 named, 13 as a symptom, 3
rightly not named (`unlogged`), 10 missed (boxed_in_tags, long_box,
neutral_half, shaping_wins, entropy_bonus, shorter_by_limit, advantage_mask,
loo_spike, tool_tokens_kl, base_reference); no alarm on the 7 sound runs. One
more finding was wrong: a warm-up in neutral_half, whose log is the beginning of
a longer run.
"""

from benchmarks.reports import threads

Report = threads.Report

# Prompts, graders and recipes.
TEXTS = {
    'plain_prompt': Report(
        thread='CoursIA #11304',
        seen='reward about 0.05, loss and gradient 0; no completion ends',
        cause='prompts are strings, and the trainer applies the chat template'
        ' only to lists of messages',
        answer='the chat template is not applied',
        log='trl',
        names=('truncation',),
        says='the chat template is not applied',
        symptoms=('gradient_zero', 'few_rollouts'),
    ),
    'last_answer': Report(
        thread='CoursIA #13672',
        seen='right answers get 0',
        cause='the grader reads the last answer, while completions never end'
        ' and go on with examples of their own',
        answer='completions that contain the right answer are refused',
        log='trl',
        symptoms=('truncation',),
    ),
    'boxed_in_tags': Report(
        thread='maxtext #4150',
        seen='accuracy about 0 on GSM8K although the answers are right',
        cause='the grader compares what is between the answer tags, a LaTeX'
        ' box, with a plain number',
        answer='a part is never paid: how the answer is extracted',
        log='wandb',
        names=('never_paid',),
        says='find the answer',
    ),
    'long_box': Report(
        thread='verl #7440',
        seen='long boxed answers count as wrong',
        cause='the strict check reads only the last 100 characters, which cuts'
        ' the beginning of the box',
        answer='right answers are refused where they are long',
        log='verl',
        names=('text_refused',),
        says='only the end',
    ),
    'neutral_half': Report(
        thread='train-deepseek-r1 #4, #2',
        seen='the accuracy reward is 0.5 in every step',
        cause='the column with the solutions does not reach the function, which'
        ' then returns 0.5 for each completion',
        answer='a part is constant: what it returns without a reference',
        log='trl',
        names=('fixed_part',),
        says='reference answers reach it',
        symptoms=('never_paid', 'length_alone'),
    ),
    'same_reward': Report(
        thread='ms-swift #4547',
        seen='loss and gradient 0 from the first step',
        cause='the reward function gives all completions the same; with another'
        ' function it works',
        answer='rewards of a group are equal: change the reward function',
        log='trl',
        names=('dead_groups',),
        says='reward_funcs',
        symptoms=('gradient_zero',),
    ),
    'either_class': Report(
        thread='Visual-RFT #79',
        seen='accuracy 1 for answers that name every class',
        cause='an answer counts if it contains the right class',
        answer='cannot tell from metrics alone',
        log='trl',
        unlogged=True,
    ),
    'shaping_wins': Report(
        thread='FAI-RL #96',
        seen='completions shrink from 216 to 22 tokens, the answers get worse',
        cause='the KL coefficient is not passed on, so that the rewards for'
        ' format and for a digit win over correctness',
        answer='parts for form outweigh correctness, or the KL penalty is off',
        log='trl',
        names=('form_wins',),
        says='beta',
        symptoms=('reward_falling', 'shrinks'),
    ),
    'entropy_bonus': Report(
        thread='verl #781',
        seen='the entropy explodes, and the score suffers',
        cause='the default coefficient of the entropy bonus, 0.001',
        answer='the entropy rises: the coefficient of the entropy bonus',
        log='wandb',
        names=('entropy_rising',),
        says='entropy bonus',
    ),
    'shorter_by_limit': Report(
        thread='EasyR1 #40',
        seen='responses get shorter, where they should get longer',
        cause='a limit of 1024 tokens cuts long responses, which are then'
        ' punished; with 2048 they get longer',
        answer='the limit of tokens is too low',
        log='wandb',
        names=('limit_shortens',),
        says='limit',
    ),
    'untrained_adapter': Report(
        thread='verl #4514',
        seen='the gradient norm is 0 in all steps with Megatron and LoRA',
        cause='the bridge that adds the adapter lets no gradient reach it',
        answer='no gradient although rewards differ: the adapter',
        log='verl',
        names=('gradient_zero',),
        says='adapter',
        symptoms=('not_learning',),
    ),
    'accumulated_nan': Report(
        thread='unsloth #3006',
        seen='loss 0, gradient norm NaN',
        cause='more than one group in an accumulated batch; with one the norm'
        ' is finite',
        answer='the gradient is not finite: gradient accumulation',
        log='trl',
        names=('not_finite',),
        says='gradient_accumulation_steps',
    ),
}

# Losses, tokens that the policy did not sample, models that compute log-probs.
MODELS = {
    'zero_times_nan': Report(
        thread='slime #2258',
        seen='the loss becomes NaN although the KL coefficient is 0',
        cause='0 times a KL that is not finite is NaN, and is still added',
        answer='the KL is not finite, and its loss should be off',
        log='wandb',
        names=('not_finite',),
        says='0 x NaN',
        symptoms=('truncation', 'outcome_falling', 'reward_falling'),
    ),
    'advantage_mask': Report(
        thread='verl #2506',
        seen='policy loss, clip fraction and KL make no sense',
        cause='the loss gets the advantages in place of the mask',
        answer='a share outside 0 to 1: the mask of the loss',
        log='verl',
        names=('impossible_share',),
        says='mask of the loss',
        symptoms=('not_learning',),
    ),
    'loo_spike': Report(
        thread='NeMo-RL #4158',
        seen='an advantage of -2075 for one rollout of a group',
        cause='with a leave-one-out baseline the deviation of equal rewards is'
        ' a rounding error, by which advantages are divided',
        answer='advantages are far too large: what they are divided by',
        log='wandb',
        names=('advantage_spikes',),
        says='divided',
        symptoms=('outcome_falling', 'reward_falling'),
    ),
    'loss_scale': Report(
        thread='TRL #6024',
        seen='gradients 4 times as large as intended',
        cause='the loss is divided by the tokens of a generation batch, while'
        ' another number of batches is accumulated',
        answer='cannot tell: nothing logged says what is intended',
        log='trl',
        unlogged=True,
    ),
    'tool_tokens_kl': Report(
        thread='Search-R1 #21',
        seen='the KL becomes very negative, and the training explodes',
        cause='the KL counts tokens of search results, which the policy did'
        ' not sample',
        answer='a negative KL: tokens of tools are not masked',
        log='wandb',
        names=('kl_negative',),
        says='tools',
        symptoms=('reward_falling', 'entropy_rising'),
    ),
    'tool_tokens_trained': Report(
        thread='unsloth #5673',
        seen='after some time the reward of a repair agent collapses',
        cause='the mask of the environment is ignored, so that tokens of tool'
        ' replies are trained',
        answer='tokens of tools are not masked',
        log='trl',
        symptoms=('reward_falling', 'outcome_falling'),
    ),
    'base_reference': Report(
        thread='TRL #3194',
        seen='the KL is large from the first step',
        cause='the reference is the base model, and the policy starts from an'
        ' adapter of supervised training',
        answer='the reference is not the initial policy',
        log='trl',
        names=('kl_at_start',),
        says='the reference model',
    ),
    'blind_logprobs': Report(
        thread='R1-V #20',
        seen='log-probs are computed without the images',
        cause='the forward pass of policy and reference gets only the text',
        answer='cannot tell: no log-probs of the sampler are logged',
        log='trl',
        unlogged=True,
    ),
    'gathered_elsewhere': Report(
        thread='LightRFT #53',
        seen='the KL is 1e-2 while the learning rate still warms up, and the'
        ' reward falls from 0.49 to 0.04',
        cause='image tokens are expanded in the logits only, so that log-probs'
        ' are taken at the wrong places',
        answer='log-probs do not belong to the sampled tokens',
        log='wandb',
        names=('kl_at_start',),
        says='images or padding',
        symptoms=('outcome_falling', 'kl_explosion', 'reward_falling'),
    ),
    'penalised_sampler': Report(
        thread='prime-rl #886',
        seen='sampler and trainer differ from the first step',
        cause='the sampler takes a repetition penalty from the generation'
        ' config of the model',
        answer='sampling parameters that the trainer does not apply',
        log='wandb',
        symptoms=('logprob_gap',),
    ),
    'zero_filled': Report(
        thread='NeMo-RL #4218',
        seen='single tokens dominate the ratio of trainer and sampler',
        cause='log-probs that the sampler does not return are filled with 0',
        answer='log-probs of single tokens are missing',
        log='wandb',
        names=('logprob_gap',),
        says='single tokens',
    ),
    'vision_unloaded': Report(
        thread='slime #1724',
        seen='the reward starts at 0.1 where it should be 0.3, and stays',
        cause='the sampler does not load the vision encoder',
        answer='sampler and trainer have different weights',
        log='wandb',
        symptoms=('logprob_gap',),
    ),
    'frozen_rollouts': Report(
        thread='verl-omni #552',
        seen='the reward is flat, gradient and KL of the update grow without'
        ' end, half of the ratios are clipped',
        cause='the adapter is bound to no module of the rollout engine, which'
        ' samples from the initial policy',
        answer='the sampler does not get the new weights: LoRA',
        log='wandb',
        names=('stale_sampler',),
        says='LoRA',
        symptoms=('clip_fraction',),
    ),
    'broken_generation': Report(
        thread='unsloth #1844, #1888',
        seen='completions are noise after the first step',
        cause='generation without vLLM uses broken code paths once the model'
        ' has been trained; with the fix it works',
        answer='generation breaks at once after an update, not gradually',
        log='trl',
        names=('reward_falling',),
        says='generation',
        symptoms=('gradient_zero', 'too_hard', 'dead_groups'),
    ),
}

SOUND = {
    'norm_above_bound': Report(
        thread='verl #2282',
        seen='the gradient norm exceeds the bound: it is logged before it is'
        ' clipped',
        cause='',
        log='verl',
    ),
    'mean_zero': Report(
        thread='verl #4747',
        seen='the mean advantage is almost 0, as it has to be',
        cause='',
        log='verl',
    ),
    'kl_off': Report(
        thread='open-r1 #704, TRL #4040',
        seen='the KL is NaN and the loss negative: the coefficient is 0, and no'
        ' reference is loaded',
        cause='',
        log='wandb',
    ),
    'label_accuracy': Report(
        thread='TTRL #29',
        seen='the accuracy of the labels by vote falls while the policy learns',
        cause='',
        log='wandb',
    ),
    'characters': Report(
        thread='ms-swift #4328',
        seen='completions are longer than the limit: it counts tokens, not'
        ' characters',
        cause='',
        log='trl',
    ),
    'kl_once': Report(
        thread='OpenRLHF #768',
        seen='is the KL in the reward and in the loss? it is 0 in the reward',
        cause='',
        log='wandb',
    ),
    'token_mean': Report(
        thread='TRL #3187',
        seen='the loss is a mean over tokens instead of completions, which is'
        ' intended',
        cause='',
        log='trl',
    ),
}
