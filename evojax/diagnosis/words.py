"""What each trainer calls the settings that a finding says to change."""

_WORDS = {
    'evojax': {
        'learning_rate': 'optim.learning_rate',
        'warmup_steps': 'optim.warmup_steps',
        'temperature': 'rollout.temperature',
        'kl_coef': 'grpo.kl_coef',
        'max_tokens': 'rollout.max_tokens',
        'max_grad_norm': 'optim.max_grad_norm',
        'clip': 'grpo.clip_low, grpo.clip_high',
        'data': 'data.families',
        'filter': "grpo.keep = 'reward_variance'",
        'weight': 'reward.weights.{}',
        'reward': 'reward.parts',
        'grader': "the domain's grader",
    },
    'trl': {
        'learning_rate': 'learning_rate',
        'warmup_steps': 'warmup_steps',
        'temperature': 'temperature',
        'kl_coef': 'beta',
        'max_tokens': 'max_completion_length',
        'max_grad_norm': 'max_grad_norm',
        'clip': 'epsilon, epsilon_high',
        'data': 'train_dataset',
        'filter': 'the difficulty of train_dataset',
        'weight': 'reward_weights of {}',
        'reward': 'reward_funcs',
        'grader': 'the reward function that compares answers',
    },
    'verl': {
        'learning_rate': 'actor_rollout_ref.actor.optim.lr',
        'warmup_steps': 'actor_rollout_ref.actor.optim.lr_warmup_steps',
        'temperature': 'actor_rollout_ref.rollout.temperature',
        'kl_coef': 'actor_rollout_ref.actor.kl_loss_coef',
        'max_tokens': 'data.max_response_length',
        'max_grad_norm': 'actor_rollout_ref.actor.grad_clip',
        'clip': 'actor_rollout_ref.actor.clip_ratio',
        'data': 'data.train_files',
        'filter': 'algorithm.filter_groups.enable',
        'weight': 'the weight of {} in custom_reward_function',
        'reward': 'custom_reward_function',
        'grader': 'compute_score',
    },
    'prime-rl': {
        'learning_rate': 'trainer.optim.lr',
        'warmup_steps': 'trainer.scheduler.warmup_steps',
        'temperature': 'orchestrator.train.sampling.temperature',
        'kl_coef': 'trainer.loss.kl_tau',
        'max_tokens': 'orchestrator.train.sampling.max_completion_tokens',
        'max_grad_norm': 'trainer.optim.max_norm',
        'clip': 'the bounds of trainer.loss',
        'data': 'orchestrator.train.source.env.taskset',
        'filter': 'a filter of groups with equal rewards',
        'weight': "the weight of {} in the environment's rewards",
        'reward': "the environment's rewards",
        'grader': "the environment's reward that compares answers",
    },
}
_PLAIN = {
    'learning_rate': 'the learning rate',
    'warmup_steps': 'the warm-up',
    'temperature': 'the temperature',
    'kl_coef': 'the KL coefficient',
    'max_tokens': 'the limit of completion tokens',
    'max_grad_norm': 'the bound of the gradient norm',
    'clip': 'the clip bounds',
    'data': 'the training problems',
    'filter': 'a filter of groups with equal rewards',
    'weight': 'the weight of {}',
    'reward': 'the reward',
    'grader': 'the grader',
}


def word(format_: str, name: str, part: str = '') -> str:
  """Return the trainer's own name of a setting.

  Args:
    format_: Format of the log; one that no trainer owns gets plain words.
    name: 'learning_rate', 'weight', ...
    part: Part of the reward, for 'weight'.
  """
  return _WORDS.get(format_, _PLAIN)[name].format(part)
