"""The reports: public threads in which the cause of a bad run was established.

The list was fixed before a log of it was made (2026-11-26). Each entry says in
our words what was seen, what the cause turned out to be, and what a user of
that trainer would have on disk. Sound runs are threads whose answer was that
nothing is wrong.
"""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
  """One thread, or a fault that nobody reported."""

  thread: str = ''  # Tracker and number, if it has one.
  seen: str
  cause: str  # '' if nothing was wrong.
  log: str  # Format of the log, a name of readers.FORMATS.
  names: tuple[str, ...] = ()  # Checks that may name the cause,
  says: str = ''  # and what they then say.
  symptoms: tuple[str, ...] = ()  # Checks that detect its consequences.
  answer: str = ''  # What a right answer says, in words.
  since: int | None = None  # The step from which a finding has to say it.
  unlogged: bool = False  # Whether the log lacks what would show the cause.


FAULTS = {
    # Limits, formats and graders.
    'limit': Report(
        thread='TRL #5697',
        seen='reward, loss and gradient 0 in nearly all steps',
        cause='the default limit of 256 tokens cuts nearly all completions'
        ' before their answer',
        log='trl',
        names=('truncation',),
        says='max_completion_length',
    ),
    'prefilled_tag': Report(
        thread='TRL #6966, open-r1 #560',
        seen='the format reward is 0 for all completions',
        cause='the chat template writes the opening tag in the prompt, the'
        ' reward function wants it in the completion',
        log='trl',
        names=('never_paid',),
        says='in the prompt',
    ),
    'newlines': Report(
        thread='unsloth #1761',
        seen='two format rewards stay 0 while the total rises',
        cause='their regular expression does not match across newlines',
        log='trl',
        names=('never_paid',),
        says='newlines',
    ),
    'unparsed_gold': Report(
        thread='open-r1 #293',
        seen='an accuracy that is too good on part of the data',
        cause='a reference that the parser cannot read pays 1 to any answer',
        log='trl',
        unlogged=True,
    ),
    'scored_in_thread': Report(
        thread='verl #5635',
        seen='the score of all math problems is 0',
        cause='the grader times out by a signal, which fails in a worker'
        ' thread; the exception counts as wrong',
        log='verl',
        names=('right_refused',),
        says='exception',
        symptoms=('too_hard',),
    ),
    'length_sign': Report(
        thread='TRL #2771',
        seen='lengths move away from the wanted 20 characters',
        cause='the reward is the distance instead of minus the distance',
        log='trl',
        names=('length_alone',),
        says='sign',
        unlogged=True,
    ),
    'cosine_units': Report(
        thread='ms-swift #3353',
        seen='the reward of right answers has no sensible relation to length',
        cause='the scaled length is in characters, its limit in tokens, so that'
        ' the cosine wraps around',
        log='trl',
        names=('reward_by_length',),
        says='characters',
    ),
    'turns_missing': Report(
        thread='Open-AgentRL #13',
        seen='the reward for tool calls is -0.1 for all failed episodes',
        cause='the reward manager does not pass the number of turns on, and its'
        ' default is 0',
        log='verl',
        names=('redundant_part',),
    ),
    'tool_unpaid': Report(
        thread='verl #1569',
        seen='with a tool, an agent gets no better than without',
        cause='turns soon fall to the fewest: the agent unlearns the calls,'
        ' since nothing pays for them',
        log='verl',
        names=('calls_unlearned',),
        says='part for a call',
    ),
    'gdpo_none': Report(
        thread='ms-swift #8123',
        seen='the loss is 0, the gradient norm NaN',
        cause='one reward function returns no value for some completions, and'
        ' normalising by function makes all advantages NaN',
        log='trl',
        names=('not_finite',),
        says='a number for every completion',
    ),
    'truncated_zeroed': Report(
        thread='UniRL #19',
        seen='the mean reward falls while completions get longer',
        cause='cut completions get reward 0 whatever they say, and ever more'
        ' are cut',
        log='wandb',
        names=('truncation',),
        says='the reward falls',
    ),
    # Recipes.
    'rate': Report(
        thread='hello-agents #770',
        seen='57 % solved before the training, 2 % after it',
        cause='the learning rate of supervised training, 5e-5; 1e-6 is stable',
        log='trl',
        names=('reward_falling',),
        says='learning_rate',
        symptoms=('entropy_rising',),
    ),
    'pairs': Report(
        thread='CoursIA #10603',
        seen='a flat reward over 100 steps',
        cause='groups of two, most of them with equal rewards',
        log='trl',
        names=('dead_groups',),
        says='num_generations',
    ),
    'cold_groups': Report(
        thread='ms-swift #4570',
        seen='loss and gradient 0 although the rewards of a step differ',
        cause='sampling is so little random that all completions of a group are'
        ' alike',
        log='trl',
        names=('dead_groups',),
        says='temperature',
    ),
    'schedule': Report(
        thread='open-instruct #537',
        seen='learning stops early',
        cause='the scheduler counts fewer steps than there are, so that the'
        ' learning rate reaches 0 long before the end',
        log='wandb',
        names=('schedule_ends',),
        says='scheduler',
    ),
    'no_anchor': Report(
        thread='autocontext #1076',
        seen='the training reward rises and held-out accuracy falls',
        cause='without a KL penalty the policy overfits few prompts',
        log='trl',
        unlogged=True,
    ),
    'kl_sign': Report(
        thread='ToolRL #52',
        seen='training gets unstable and collapses once the KL loss is on',
        cause='the KL loss is subtracted, so that it drives the policy away',
        log='wandb',
        names=('kl_explosion',),
        says='added, not subtracted',
        symptoms=('entropy_rising',),
    ),
    'micro_batch': Report(
        thread='verl #2505',
        seen='the gradient norm is NaN from the first step on four devices',
        cause='a micro-batch per device is larger than the mini-batch per'
        ' device, so that no part of it is accumulated',
        log='verl',
        names=('not_finite',),
        says='micro_batch',
    ),
    # Advantages and masks.
    'group_ids': Report(
        thread='Search-R1 #88',
        seen='training explodes at times',
        cause='rollouts of one prompt get different group numbers, so that'
        ' nothing is subtracted from their rewards',
        log='wandb',
        names=('no_baseline',),
        says='group number',
    ),
    'eos_padding': Report(
        thread='MemGen #33',
        seen='the loss is 0 throughout',
        cause='what follows the end of a completion counts as tokens: all have'
        ' the length of the longest',
        log='trl',
        names=('padded_lengths',),
        says='padding',
    ),
    'overlong_mask': Report(
        thread='SkyRL #1319',
        seen='overlong filtering drops rollouts that did end',
        cause='they end with another token than the one that is looked for, and'
        ' their loss is masked',
        log='wandb',
        names=('gradient_zero',),
        says='overlong',
    ),
    # Sampler and trainer.
    'peft_merge': Report(
        thread='TRL #2856',
        seen='the reward does not rise with LoRA and vLLM, but without LoRA',
        cause='the adapter is not part of the weights that vLLM gets',
        log='trl',
        names=('stale_sampler',),
        says='LoRA',
    ),
    'lora_sync': Report(
        thread='verl #7495',
        seen='the mismatch of rollouts grows steadily, and the score is flat',
        cause='the rollout server never gets the adapter and samples from the'
        ' initial policy',
        log='verl',
        names=('logprob_gap',),
        says='LoRA',
    ),
    'sleep_level': Report(
        thread='TRL #5312',
        seen='with the sleep mode of vLLM, training does not work',
        cause='sleeping discards the weights, and generation begins before new'
        ' ones are there',
        log='trl',
        names=('other_weights',),
        says='sleep',
        symptoms=('logprob_gap', 'truncation'),
    ),
    'prefix_cache': Report(
        thread='TRL #3024',
        seen='the policy is much worse in evaluations than in training',
        cause='the prefix cache of vLLM is kept when the weights change',
        log='trl',
        unlogged=True,
    ),
    'mismatch_kl': Report(
        thread='prime-rl #1650',
        seen='the KL of trainer and sampler grows during a run',
        cause='the prefix cache is not reset after an update of the weights',
        log='wandb',
        names=('logprob_gap',),
        says='prefix cache',
    ),
    'stale_kv': Report(
        thread='SkyRL #2246',
        seen='log-probs differ by 0.87 after a sync of the weights, and the'
        ' gradient norm goes from 8 to 136',
        cause='the cache is not cleared in one of the paths of the sync',
        log='wandb',
        names=('logprob_gap',),
        says='prefix cache',
    ),
    'temperature_logprobs': Report(
        thread='TRL #4159',
        seen='ratios of trainer and sampler are far from 1 from the first step',
        cause='vLLM returns log-probs before the temperature, the trainer'
        ' computes them after it',
        log='trl',
        names=('logprob_gap',),
        says='after the temperature',
    ),
    'top_k': Report(
        thread='TRL #6789',
        seen='ratios of trainer and sampler below 1 from the first step',
        cause='top-p, top-k or min-p sampling: the sampler normalises over the'
        ' tokens that are left',
        log='trl',
        names=('logprob_gap',),
        says='top_k',
    ),
    'retokenised': Report(
        thread='rllm #272',
        seen='spikes of the KL in multi-turn training',
        cause='turns are decoded and encoded again, which yields other tokens',
        log='wandb',
        names=('kl_jumps',),
        says='encoded again',
    ),
    'no_bos': Report(
        thread='TRL #3520',
        seen='completions are garbage from the first step',
        cause='the prompt lacks the token that begins a text',
        log='trl',
        names=('loops',),
        says='BOS',
        symptoms=('truncation',),
    ),
}

SOUND = {
    'loss_zero': Report(
        thread='TRL #3452',
        seen='the loss is 0.0 in all steps',
        cause='',
        log='trl',
    ),
    'never_clipped': Report(
        thread='TRL #3120',
        seen='the clip ratio is 0 in all steps',
        cause='',
        log='trl',
    ),
    'loss_rises': Report(
        thread='open-r1 #239',
        seen='the loss starts at 0 and rises, as the KL penalty does',
        cause='',
        log='trl',
    ),
    'shorter_first': Report(
        thread='simpleRL-reason #4',
        seen='completions get shorter first: the policy drops code that is not'
        ' run',
        cause='',
        log='verl',
    ),
    'entropy_up': Report(
        thread='rllm #116',
        seen='with a higher clip bound the entropy rises, and stays below 1',
        cause='',
        log='wandb',
    ),
    'small_bound': Report(
        thread='verifiers #82',
        seen='the gradient norm is bounded by 0.001, which is intended',
        cause='',
        log='trl',
    ),
}

# A second list, fixed and judged once after checks were changed by the first.
LATER = {
    'dropout': Report(
        thread='reef #536',
        seen='sampler and trainer differ by 0.86 nats per token in the first'
        ' step, and half of the tokens are outside the bounds of the ratio',
        cause='the trainer runs with dropout, by a default of its framework',
        log='wandb',
        names=('logprob_gap',),
        says='dropout',
        symptoms=('clip_fraction',),
    ),
    'one_reward': Report(
        thread='TRL #6533',
        seen='a reward function corrupts the training without a warning',
        cause='it returns one number, which is used for all completions',
        log='trl',
        names=('dead_groups',),
        says='for each completion',
        symptoms=('answers_differ', 'too_easy'),
    ),
    'shifted_labels': Report(
        thread='VLM-R1 #129',
        seen='rewards do not fit the completions',
        cause='inputs are repeated twice, so that completions are compared with'
        ' the answers to other problems',
        log='trl',
        unlogged=True,
    ),
    'mixed_groups': Report(
        thread='R1-V #67',
        seen='rewards are normalised over different problems',
        cause='completions are in the order of samples, groups are taken in the'
        ' order of problems',
        log='trl',
        unlogged=True,
    ),
    'padded_vocabulary': Report(
        thread='MarinFold #237',
        seen='12 % of the sampled tokens are no tokens, and the loss is NaN in'
        ' the first step',
        cause='the sampler pads the vocabulary with rows of zeros',
        log='wandb',
        names=('not_finite',),
        says='tokens that the sampler',
    ),
    'trainer_temperature': Report(
        thread='NeMo-RL #935',
        seen='some models do not learn',
        cause='the trainer computes log-probs without the temperature of the'
        ' sampler',
        log='wandb',
        names=('logprob_gap',),
        says='after the temperature',
    ),
    'best_of_group': Report(
        thread='EasyR1 #585',
        seen='training with the best of a group collapses',
        cause='all but the best rollout should get no advantage, and keep their'
        ' score',
        log='verl',
        symptoms=('no_baseline', 'outcome_falling'),
    ),
    'cosine_names': Report(
        thread='ms-swift #3636',
        seen='a reward of the length works against what its settings say',
        cause='the names of the least and the largest value are exchanged',
        log='trl',
        unlogged=True,
    ),
    'empty': Report(
        thread='RiC #10',
        seen='PPO soon generates nothing',
        cause='the reward model does not punish an empty answer, and the KL'
        ' penalty does not prevent it',
        log='wandb',
        names=('shrinks',),
        says='empty',
    ),
    'short_cap': Report(
        thread='CoursIA #13596',
        seen='two arms do not differ',
        cause='a limit of 80 tokens cuts all completions in all steps',
        log='trl',
        names=('truncation',),
        says='max_completion_length',
    ),
}
LATER_SOUND = {
    'unweighted_log': Report(
        thread='TRL #5352',
        seen='the logged reward does not rise as the training signal does: it'
        ' ignores the weights, which the training does not',
        cause='',
        log='trl',
    ),
    'mini_batches': Report(
        thread='DAPO #23, verl #791',
        seen='how can ratios be clipped in one epoch? by mini-batches',
        cause='',
        log='verl',
    ),
}
