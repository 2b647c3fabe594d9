"""A sixth list of reports, from threads that the first five do not have.

The list is blind: its author had read no check and had run none, and knew what
checks are called from the earlier lists alone. The entries, with the right
answers, were fixed before a log of them was made (2026-11-28). They are the
threads that a search for faults of trainers gave, taken as they came if their
cause was established; faults that end in a crash were left out. Only excerpts
of the threads are known; some of them show a defect of the code, but no bad
run.

`answer` says what an expert with the log alone can say, and begins with 'cannot
tell' if that is not enough to name the cause (`unlogged`). A comment above an
entry says what else the fault leads to: a finding that says so is a symptom.

Judged once by hand (2026-11-28), by the checks of 9fa39e6c: 1 of 26 named
(token_salad), 8 as a symptom (format_beyond_limit, answer_only_sft as a note,
streamed_ids, trajectory_mean, old_core, recomputed_anchor, tempered_logits,
frozen_critic), 5 rightly not named (`unlogged`), 12 missed; one false finding
(one_answer in override_judge); no alarm on the 8 sound runs. `names`, `says`
and `symptoms` were filled in afterwards, when checks had been added.
"""

from benchmarks.reports import threads

Report = threads.Report

# Rewards, judges, formats, masks, prompts, evaluation.
TEXTS = {
    # The reward falls in single steps, which come at equal distances.
    'eval_answers': Report(
        thread='AgileRL #591',
        seen='the reward falls in the first step after each evaluation',
        cause='an evaluation leaves the answers of its last test batch behind:'
        ' the next training step is graded against them',
        answer='the step after each evaluation has a reward near 0: an'
        ' evaluation changes the state of the environment',
        log='wandb',
        names=('after_evaluations',),
        says='what an evaluation changes',
    ),
    # The reward rises, the rating of the judge with it; completions address
    # the grader. No held-out score is logged.
    'override_judge': Report(
        thread='NeMo-Gym #2852',
        seen='wrong answers get the full reward in 8 of 10 trials if they'
        ' contain text that tells the grader its verdict',
        cause='the judge lets a completion dictate its rating, and the rating'
        ' is read from its reasoning instead of its verdict',
        answer='completions speak to the grader and are paid for it: the judge'
        ' is gamed',
        log='table',
        names=('phrase_paid',),
        says='apart from',
    ),
    'val_equals_one': Report(
        thread='NeMo-RL #1619',
        seen='the validation accuracy is wrong for rewards that are not 0 or 1',
        cause='validation counts the rewards that equal 1, which those of this'
        ' environment never do',
        answer='the validation accuracy is 0 in all evaluations while the'
        ' reward rises: how it counts a success',
        log='wandb',
        names=('eval_zero',),
        says='what it counts as solved',
    ),
    # The reward rises as fewer completions are graded; the accuracy over those
    # that are graded does not.
    'unscored_neutral': Report(
        thread='atlas-data #21 (doi 10.5281/zenodo.21633620)',
        seen='the policy learns to write what cannot be graded',
        cause='a completion that the verifier cannot read has no reward, which'
        ' the sum takes as 0, while a wrong answer gets -1: not being graded'
        ' has a positive advantage',
        answer='ever more completions have no score, and these have positive'
        ' advantages: a missing reward counts as 0',
        log='trl',
        names=('unscored',),
        says='score of a wrong answer',
    ),
    # Completions are cut at the limit; the format reward falls first, the
    # accuracy with it.
    'format_beyond_limit': Report(
        thread='open-r1 #363',
        seen='the format reward falls to 0 after 50 steps, and a benchmark'
        ' falls from 0.31 to 0.24',
        cause='completions grow beyond max_completion_length, so that the'
        ' closing tags that the format needs are cut off',
        answer='completions are cut at the limit of 1,024 tokens before they'
        ' end: raise the limit or keep completions short',
        log='trl',
        names=('outcome_falling',),
        says='cuts completions',
    ),
    # A reward is 0 throughout; the other one does not suffer.
    'answer_only_sft': Report(
        thread='VLM-R1 #173',
        seen='the format reward is 0 throughout',
        cause='the model was fine-tuned on answers without thoughts, and never'
        ' writes the tags that the reward wants: it cannot be explored',
        answer='no completion has the tags, although the prompt asks for them:'
        ' the reward is never seen, so begin with examples that have them',
        log='trl',
        symptoms=('fixed_part',),
    ),
    # A low score that rises little; the entropy falls.
    'unseen_images': Report(
        thread='rllm #549',
        seen='a model for images answers as if there were none',
        cause='the images are not passed to the engine, which sees only their'
        ' placeholders',
        answer='cannot tell: the metrics of a policy that guesses are those of'
        ' a hard task',
        log='wandb',
        unlogged=True,
    ),
    'template_tokens': Report(
        thread='codescout #60',
        seen='nothing: the mask was compared with the tokens by hand',
        cause='the mask of a multi-turn episode includes tokens of the chat'
        ' template: the end of the header and the newline after each turn',
        answer='cannot tell: masks are not logged, and completions end well',
        log='wandb',
        unlogged=True,
    ),
    # The gap of log-probs is large from the first step on; gradients are
    # clipped, the entropy rises, and the reward falls.
    'streamed_ids': Report(
        thread='agent-lightning #326',
        seen='sampler and trainer disagree, and training collapses in a few'
        ' steps',
        cause='with streaming and a tool parser the engine returns wrong ids'
        ' for control tokens, so that other tokens are trained than sampled',
        answer='log-probs of sampler and trainer differ from the first step on,'
        ' with single tokens of probability 0: the trained tokens are not'
        ' those that were sampled',
        log='wandb',
        symptoms=('logprob_gap', 'truncation'),
    ),
    # The KL between sampler and trainer is large.
    'prefix_scored': Report(
        thread='ms-swift #10106',
        seen='the ratio of perplexities of trainer and sampler is far above 1'
        ' in an on-policy run',
        cause='response_prefix is part of the prompt for the sampler, but of'
        ' the completion for the trainer, which scores tokens that were not'
        ' sampled',
        answer='the trainer finds the completions far less likely than the'
        ' sampler from the first step on: other tokens are scored, such as a'
        ' prefix',
        log='trl',
        symptoms=('logprob_gap',),
    ),
    # A score on held-out problems jumps; that of training does not.
    'subset_redrawn': Report(
        thread='verl #7816',
        seen='a resumed run continues on other data',
        cause='train_max_samples and val_max_samples draw a random subset'
        ' without a seed: each start of the job draws another one',
        answer='validation jumps at the restart and stays there while the'
        ' training score goes on: other problems are evaluated',
        log='wandb',
        names=('eval_jumps',),
        says='a subset that is drawn again',
    ),
    # Invalid actions become more, the reward falls.
    'states_trained': Report(
        thread='RAGEN #71, #62',
        seen='training does not improve the agent',
        cause='the mask of states is inverted: the gradient flows through the'
        " environment's tokens, and not through the agent's",
        answer='the share of tokens in the loss is that of the observations,'
        ' not that of the actions: the mask is inverted',
        log='wandb',
        symptoms=('malformed_calls',),
    ),
    # The reward does not change; all else looks fine.
    'base_sampled': Report(
        thread='NeMo-Agent-Toolkit #1649',
        seen='the reward stagnates',
        cause='requests name the base model instead of the adapter, so that'
        ' every rollout comes from the untrained model',
        answer='the reward does not move while losses and gradients are'
        ' normal: whether rollouts come from the trained weights',
        log='wandb',
    ),
}

# Advantages, losses, optimisers, samplers, weights.
MODELS = {
    # The reward stays flat, and the entropy and the KL drift.
    'adapter_unregistered': Report(
        thread='ART #661',
        seen='the reward climbs abruptly when a run is killed and resumed',
        cause='a new adapter reaches the engine but is not registered with the'
        ' serving layer: all rollouts come from the adapter of the start',
        answer='the reward is flat between restarts and jumps at each: the'
        ' sampler has new weights only after a restart',
        log='wandb',
        names=('score_jumps',),
        says='new weights at a restart only',
    ),
    # The gradient is 0, nothing is learned.
    'trajectory_mean': Report(
        thread='ROLL #397',
        seen='no learning',
        cause='the mean is taken over the steps of one trajectory, which all'
        ' have its reward: all advantages are 0',
        answer='advantages are 0 although rewards differ: the group whose mean'
        ' is subtracted is one trajectory',
        log='wandb',
        names=('gradient_zero',),
        says='the turns of one episode',
        symptoms=('dead_groups',),
    ),
    # Easy prompts are reinforced whatever they say: learning is slower.
    'interleaved_groups': Report(
        thread='prime-rl #600',
        seen='nothing: simple runs succeed all the same',
        cause='prompts are repeated as 1, 2, 1, 2 but grouped in windows, so'
        ' that a group has completions of several prompts',
        answer='cannot tell: advantages have the mean and the spread that they'
        ' should have',
        log='wandb',
        unlogged=True,
    ),
    # Samples are used twice without a change of the policy.
    'never_off_policy': Report(
        thread='tt-blacksmith #731',
        seen='the ratio of new and old policy is never clipped',
        cause='gradients are accumulated over more passes than one rollout has:'
        ' the second pass over a rollout sees the same weights',
        answer='cannot tell: only the clipped share is logged, and 0 is what'
        ' small updates give as well',
        log='wandb',
        unlogged=True,
    ),
    # Gradients are smaller than they could be: slower learning.
    'masked_denominator': Report(
        thread='TRL #6369',
        seen='the loss of runs that mask truncated completions is too small',
        cause='masked completions are left out of the sum, but their tokens'
        ' are counted in the denominator',
        answer='cannot tell: a loss and a gradient that fall with the share of'
        ' cut completions are those of fewer samples',
        log='trl',
        unlogged=True,
        symptoms=('truncation', 'outcome_falling'),
    ),
    'weight_swap': Report(
        thread='slime #774',
        seen='the KL of new and old policy is not 0 in on-policy training, and'
        ' only with a reference model',
        cause='policy and reference are swapped in one model, and the weights'
        ' drift when they come back',
        answer='ppo_kl is not 0 although there is one update per rollout: old'
        ' and new log-probs are not those of the same weights',
        log='wandb',
    ),
    # The reward does not grow.
    'old_core': Report(
        thread='slime #1411',
        seen='the reward does not grow, and log-probs of trainer and sampler'
        ' differ by far more than 0.01',
        cause='an outdated version of megatron-core computes the model of'
        ' images and texts wrongly',
        answer='log-probs of trainer and sampler differ from the first step on:'
        ' one of them computes the model wrongly',
        log='wandb',
        symptoms=('logprob_gap',),
    ),
    # Completions are cut at the limit, the reward is 0, the entropy high.
    'token_salad': Report(
        thread='Dressage #1',
        seen='rollouts are nonsense from the second on, and never end',
        cause='the conversion of weights for the sampler is wrong: the first'
        ' update replaces good weights with garbage',
        answer='rollouts are broken from the first update of the weights on,'
        ' not before: the transfer of weights to the sampler',
        log='wandb',
        names=('other_weights',),
        says='the sampler has other weights',
        symptoms=('logprob_gap',),
    ),
    # Unstable training: KL and gradient grow, the reward falls at last.
    'recomputed_anchor': Report(
        thread='miles #1829',
        seen='asynchronous PPO ignores that its samples are stale',
        cause='old log-probs are computed anew by the current actor: the ratio'
        ' and its clip do not refer to the policy that sampled',
        answer='the ratio is 1 and nothing is clipped, while log-probs of'
        ' sampler and trainer differ more and more: stale samples are not'
        ' corrected',
        log='wandb',
        symptoms=('logprob_gap', 'reward_falling'),
    ),
    # The KL of sampler and trainer jumps, the reward dips and recovers.
    'cold_moments': Report(
        thread='tinker-feedback #126',
        seen='a resumed run leaves the course of the one before it',
        cause='the call that restores weights and optimiser restores weights'
        ' alone: Adam begins with empty moments',
        answer='the policy moves too far in the first steps after the restart:'
        ' the state of the optimiser is not restored',
        log='wandb',
    ),
    # Gradients are too large.
    'tempered_logits': Report(
        thread='tinker-cloud #26',
        seen='log-probs of the trainer are lower by one nat',
        cause='the trainer divides logits by a temperature of 0.7, while'
        ' samples are drawn at 1',
        answer='log-probs of sampler and trainer differ from the first step on'
        ' by a constant: their temperatures differ',
        log='wandb',
        symptoms=('logprob_gap',),
    ),
    'dead_nll': Report(
        thread='NeMo-RL #3792',
        seen='positive_nll_loss is 0.000000 in all steps, although its weight'
        ' is 0.1',
        cause='the rewards are not passed to the loss, which then finds no'
        ' positive example',
        answer='a term of the loss that has a weight is exactly 0 in all steps,'
        ' although there are right answers: it gets no data',
        log='wandb',
    ),
    # Advantages are noisy, learning is slow.
    'frozen_critic': Report(
        thread='CoursIA #15256',
        seen='accuracy stays below chance',
        cause='values are detached before the value loss: the critic gets no'
        ' gradient and keeps its first weights',
        answer='the value loss does not fall and the values do not move: the'
        ' critic is not trained',
        log='wandb',
        names=('critic_untrained',),
        says='values that are detached',
        symptoms=('not_learning',),
    ),
}

SOUND = {
    'on_policy_kl': Report(
        thread='rllm #121',
        seen='the KL of new and old policy is 0 throughout: one update per'
        ' batch',
        cause='',
        log='wandb',
    ),
    'val_above_train': Report(
        thread='digitalhuman #21',
        seen='validation is better than training: both splits share tasks that'
        ' are known',
        cause='',
        log='wandb',
    ),
    'score_not_reward': Report(
        thread='verl #1310',
        seen='score and reward differ: the reward contains the KL penalty',
        cause='',
        log='wandb',
    ),
    'loss_both_signs': Report(
        thread='simple_GRPO #30',
        seen='the loss is now positive, now negative: advantages are'
        ' normalised',
        cause='',
        log='wandb',
    ),
    'reused_rollouts': Report(
        thread='open-r1 #583',
        seen='four times the steps, and rewards in every fourth step only:'
        ' num_iterations=4',
        cause='',
        log='trl',
    ),
    'negative_ppo_loss': Report(
        thread='trlx #491',
        seen='policy loss and mean reward are negative: the reward is not'
        ' normalised',
        cause='',
        log='wandb',
    ),
    'val_sampled': Report(
        thread='AdaptThink #8',
        seen='validation during training differs from that of the final script:'
        ' it is sampled at temperature 0.6',
        cause='',
        log='wandb',
    ),
    'loss_from_zero': Report(
        thread='TRL #2703',
        seen='the loss is 0 for 200 steps, then rises: it is the KL',
        cause='',
        log='trl',
    ),
}
