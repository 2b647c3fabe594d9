"""Each trainer's names for the settings of a finding."""

from collections.abc import Iterable

_WORDS = {
    'evojax': {
        'learning_rate': 'optim.learning_rate',
        'warmup_steps': 'optim.warmup_steps',
        'temperature': 'rollout.temperature',
        'kl_coef': 'grpo.kl_coef',
        'entropy_coef': 'grpo.entropy_coef',
        'max_tokens': 'rollout.token_limit',
        'max_grad_norm': 'optim.max_grad_norm',
        'clip': 'grpo.clip_low, grpo.clip_high',
        'data': 'data.families',
        'filter': "grpo.keep = 'reward_variance'",
        'filter_code': 'keep.py',
        'credit_code': 'weight.py',
        'reward_code': 'reward.py',
        'weight': 'reward.weights.{}',
        'reward': 'reward.parts',
        'grader': "the domain's grader",
        'max_turns': 'domain.kwargs.max_turns',
        'turn_tokens': 'rollout.turn_tokens',
        'top_p': 'rollout.top_p',
        'top_k': 'rollout.top_k',
        'min_p': 'rollout.min_p',
        'history': 'domain.kwargs.scrubbed',
        'tools': 'domain.kwargs.tools',
        'reply_limit': 'domain.kwargs.max_letters',
    },
    'trl': {
        'learning_rate': 'learning_rate',
        'warmup_steps': 'warmup_steps',
        'temperature': 'temperature',
        'kl_coef': 'beta',
        'max_tokens': 'max_completion_length',
        'max_grad_norm': 'max_grad_norm',
        'total_steps': 'max_steps',
        'micro_batch': 'per_device_train_batch_size',
        'group_size': 'num_generations',
        'advantages': 'scale_rewards',
        'accumulation': 'gradient_accumulation_steps',
        'clip': 'epsilon, epsilon_high',
        'data': 'train_dataset',
        'filter': 'the difficulty of train_dataset',
        'weight': 'reward_weights of {}',
        'reward': 'reward_funcs',
        'grader': 'the reward function that compares answers',
        'max_turns': 'max_tool_calling_iterations',
        'top_p': 'top_p',
        'top_k': 'top_k',
        'min_p': 'min_p',
        'repetition_penalty': 'repetition_penalty',
        'tools': 'tools',
    },
    'verl': {
        'learning_rate': 'actor_rollout_ref.actor.optim.lr',
        'warmup_steps': 'actor_rollout_ref.actor.optim.lr_warmup_steps',
        'temperature': 'actor_rollout_ref.rollout.temperature',
        'kl_coef': 'actor_rollout_ref.actor.kl_loss_coef',
        'max_tokens': 'data.max_response_length',
        'max_grad_norm': 'actor_rollout_ref.actor.grad_clip',
        'total_steps': 'actor_rollout_ref.actor.optim.total_training_steps',
        'micro_batch': 'actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu',
        'group_size': 'actor_rollout_ref.rollout.n',
        'advantages': 'algorithm.norm_adv_by_std_in_grpo',
        'entropy_coef': 'actor_rollout_ref.actor.entropy_coeff',
        'clip': 'actor_rollout_ref.actor.clip_ratio',
        'data': 'data.train_files',
        'filter': 'algorithm.filter_groups.enable',
        'weight': 'the weight of {} in custom_reward_function',
        'reward': 'custom_reward_function',
        'grader': 'compute_score',
        'max_turns': 'actor_rollout_ref.rollout.multi_turn.max_assistant_turns',
        'top_p': 'actor_rollout_ref.rollout.top_p',
        'top_k': 'actor_rollout_ref.rollout.top_k',
        'repetition_penalty': 'actor_rollout_ref.rollout.repetition_penalty',
        'tools': 'actor_rollout_ref.rollout.multi_turn.tool_config_path',
    },
    'prime-rl': {
        'learning_rate': 'trainer.optim.lr',
        'warmup_steps': 'trainer.scheduler.warmup_steps',
        'temperature': 'orchestrator.train.sampling.temperature',
        'kl_coef': 'trainer.loss.kl_tau',
        'max_tokens': 'orchestrator.train.sampling.max_completion_tokens',
        'turn_tokens': 'orchestrator.train.sampling.max_completion_tokens',
        'max_grad_norm': 'trainer.optim.max_norm',
        'total_steps': 'trainer.max_steps',
        'group_size': 'orchestrator.group_size',
        'top_k': 'orchestrator.train.sampling.extra_body.top_k',
        'min_p': 'orchestrator.train.sampling.extra_body.min_p',
        'clip': 'the bounds of trainer.loss',
        'data': 'orchestrator.train.source.env.taskset',
        'filter': 'orchestrator.train.filter_zero_advantages',
        'weight': "the weight of {} in the environment's rewards",
        'reward': "the environment's rewards",
        'grader': "the environment's reward that compares answers",
        'max_turns': 'max_turns of the environment',
        'tools': 'the tools of the environment',
    },
}
_PLAIN = {
    'learning_rate': 'the learning rate',
    'warmup_steps': 'the warm-up',
    'temperature': 'the temperature',
    'kl_coef': 'the KL coefficient',
    'max_tokens': 'the limit of completion tokens',
    'max_grad_norm': 'the bound of the gradient norm',
    'total_steps': 'the steps of the scheduler',
    'micro_batch': 'the micro-batch of a device',
    'group_size': 'completions of a prompt',
    'advantages': 'how advantages are scaled',
    'entropy_coef': 'the coefficient of an entropy bonus',
    'accumulation': 'the micro-batches of an update',
    'clip': 'the clip bounds',
    'data': 'the training problems',
    'filter': 'a filter of groups with equal rewards',
    'filter_code': 'the filter',
    'weight': 'the weight of {}',
    'reward': 'the reward',
    'grader': 'the grader',
    'max_turns': 'the limit of turns',
    'turn_tokens': 'the limit of tokens of a turn',
    'history': 'the history that agents can read',
    'tools': 'the tools of the agent',
    'reply_limit': 'the limit of characters of a reply',
}


# Columns that every log of rollouts has.
_ROLLOUTS = ('completion', 'prompt', 'prompt_id', 'reward', 'text_id')
# Trainer -> name of what a check needs -> the option that logs it.
_HOW = {
    'trl': {
        **dict.fromkeys(
            (*_ROLLOUTS, 'advantage', 'group'), 'log_completions=True'
        ),
        'outcome': 'log_completions=True with a reward function of 0 and 1, or'
        ' --columns=outcome=NAME of a logged column',
        **dict.fromkeys(
            ('format_ok', 'n_tokens', 'reference'),
            'log_extra in a reward function',
        ),
        'kl': 'beta > 0',
        'gap': 'use_vllm and vllm_importance_sampling_correction=True',
        'evaluation': "eval_strategy='steps' with an eval_dataset",
    },
    'verl': {
        **dict.fromkeys(_ROLLOUTS, 'trainer.rollout_data_dir=DIR'),
        'format_ok': 'a value of that name that compute_score returns',
        'outcome': "a value 'acc' of 0 or 1 that compute_score returns, or"
        ' --columns=outcome=NAME of a logged value',
        **dict.fromkeys(
            ('clip', 'entropy', 'grad_norm', 'learning_rate', 'loss'),
            "trainer.logger with 'file', in the same folder",
        ),
        'kl': 'actor_rollout_ref.actor.use_kl_loss=True',
        'gap': 'actor_rollout_ref.rollout.calculate_log_probs=True',
        'evaluation': 'trainer.test_freq > 0',
    },
}


def how_to_log(format_: str, names: Iterable[str]) -> list[str]:
  """Return the options that make a trainer log something, as far as known.

  Args:
    format_: Format of the log.
    names: What is missing, see `form.NotLogged`.
  """
  known = _HOW.get(format_, {})
  return list(dict.fromkeys(known[name] for name in names if name in known))


def word(format_: str, name: str, part: str = '') -> str:
  """Return a trainer's own name for a setting.

  Args:
    format_: Format of the log. If it is not that of a trainer, the name is in
      plain words.
    name: 'learning_rate', 'weight', ...
    part: Name of the reward part, for 'weight'.
  """
  found = _WORDS.get(format_, _PLAIN)
  return found.get(name, _PLAIN.get(name, name)).format(part)


def own(format_: str, names: Iterable[str]) -> dict[str, str]:
  """Return setting -> a trainer's own name, where it has one.

  Args:
    format_: Format of the log.
    names: Names of settings. Those that are several fields of a trainer, such
      as clip bounds, are left out.
  """
  found = _WORDS.get(format_, {})
  return {name: found[name] for name in names if name in found}


def of_path(format_: str, path: str) -> str:
  """Return a trainer's name for an evojax config path, or the path."""
  for name, known in _WORDS['evojax'].items():
    if known == path:
      return word(format_, name)
  return path
