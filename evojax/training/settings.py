"""Settings of the update, the policy, the domain and the sampler."""

from collections.abc import Callable, Sequence
import dataclasses
import math

import ml_collections
import numpy as np

from evojax import config as config_lib
from evojax import domains
from evojax import records
from evojax.domains import base
from evojax.models import policy as policy_lib
from evojax.training import update as update_lib

_SAMPLING = ('temperature', 'top_p', 'top_k', 'min_p')


def algorithm(config: ml_collections.ConfigDict) -> update_lib.Algorithm:
  """Return the part of the config that is compiled into the update."""
  grpo, optim = config.grpo, config.optim
  return update_lib.Algorithm(
      # With one update per step, old log-probs are the current ones (the ratio
      # is 1), so that no extra forward pass is needed.
      on_policy=grpo.epochs == 1 and grpo.minibatches == 1,
      # Compiled only if it is used, since it costs a forward pass.
      reference=grpo.kl_coef > 0,
      entropy=grpo.entropy_coef != 0,
      tis_mode=grpo.tis_mode if grpo.tis_cap > 0 else '',
      reject=grpo.reject,
      veto=grpo.veto > 0,
      max_tokens=config.rollout.max_tokens,
      logprob_chunk=config.model.logprob_chunk,
      **{name: grpo[name] for name in ('ratio', 'aggregation', 'layout')},
      **{name: optim[name] for name in ('b1', 'b2', 'eps')},
  )


def open_policy(
    config: ml_collections.ConfigDict, path: str = '', *, weights: bool = True
) -> policy_lib.Policy:
  """Open the policy of a run, or a policy trained from it.

  Args:
    config: The config of the run.
    path: Replaces config.model.path, unless it is empty.
    weights: Also check the weights; otherwise they may be missing, and those
      in an object store are not downloaded.

  Returns:
    The policy; see `models.policy.open_policy`, also for errors.
  """
  only = None if weights else policy_lib.WITHOUT_WEIGHTS
  return policy_lib.open_policy(
      fsdp_shards=config.mesh.fsdp,
      tensor_shards=config.mesh.tensor,
      max_tokens=config.data.max_prompt_tokens + config.rollout.max_tokens,
      weights=weights,
      **config.model.to_dict()
      | {'path': domains.policy_path(path or config.model.path, only)},
  )


def make_domain(
    config: ml_collections.ConfigDict, families: Sequence[str] = ()
) -> base.Domain:
  """Return the domain of a config, with its judge.

  Args:
    config: The config.
    families: Problem families to keep; empty: all of them.

  Raises:
    ValueError: If a field of the domain is invalid, or if families are given
      and the domain has none.
  """
  kwargs = config.domain.kwargs.to_dict()
  if families and 'families' not in kwargs:
    raise ValueError(
        f'config.data.families={families}: the domain {config.domain.name!r}'
        ' has no families to train a slice of; leave the field empty'
    )
  chosen = {'families': families} if families else {}
  try:
    domain = domains.make(config.domain.name, **kwargs | chosen)
  except ValueError as error:
    if not families:
      raise
    # The domain names its own argument, which the user may not have set.
    said = str(error).removeprefix('domain.kwargs.families: ')
    raise ValueError(f'config.data.families={families}: {said}') from error
  if not config.domain.judge:
    return domain
  # Imported here because most runs have no judge and need no HTTP client.
  from evojax.domains import judged

  return judged.wrap(domain, config.domain.judge.to_dict())


def learning_rate(config: ml_collections.ConfigDict) -> Callable[[int], float]:
  """Return step -> learning rate: linear warm-up, then the schedule."""
  optim, steps = config.optim, max(config.steps, 1)

  def rate(step: int) -> float:
    if step < optim.warmup_steps:
      return optim.learning_rate * (step + 1) / optim.warmup_steps
    progress = (step - optim.warmup_steps) / max(steps - optim.warmup_steps, 1)
    share = {
        'constant': 1.0,
        'linear': 1 - progress,
        'cosine': 0.5 * (1 + math.cos(math.pi * progress)),
    }
    return optim.learning_rate * share[optim.schedule]

  return rate


def hyperparameters(
    config: ml_collections.ConfigDict, step: int
) -> dict[str, np.float32]:
  """Return the values of `update.HYPERPARAMETERS` at a step."""
  values = dict(config.optim) | dict(config.rollout) | dict(config.grpo)
  values['learning_rate'] = learning_rate(config)(step)
  return {name: np.float32(values[name]) for name in update_lib.HYPERPARAMETERS}


def sampling_params(
    config: ml_collections.ConfigDict,
) -> records.SamplingParams:
  """Return the sampling parameters of training."""
  return records.SamplingParams(
      max_tokens=config_lib.token_limit(config),
      turn_tokens=config.rollout.turn_tokens,
      **{name: config.rollout[name] for name in _SAMPLING},
      stop=tuple(config.rollout.stop),
  )


def eval_params(config: ml_collections.ConfigDict) -> records.SamplingParams:
  """Return the sampling parameters of evaluation.

  Temperature and token limit are separate from those of training, which a
  harness may change, so that scores stay comparable.
  """
  return dataclasses.replace(
      sampling_params(config),
      max_tokens=config.rollout.max_tokens,
      temperature=config.eval.temperature,
  )
