"""--mode=warmstart: make a domain's base policy from demonstrations."""

import dataclasses
import functools
import time
from typing import Any

import jax
import ml_collections

from evojax import domains
from evojax.models import warmstart
from evojax.runtime import config_checks
from evojax.runtime import numerals
from evojax.runtime import output
from evojax.runtime import preemption
from evojax.runtime import workdir as workdir_lib
from evojax.training import settings as settings_lib


def run(config: ml_collections.ConfigDict, workdir: str) -> Any:
  """Train a small policy on a domain's demonstrations; resume if killed.

  Args:
    config: `config.warmstart` describes model and training, `config.domain` the
      domain.
    workdir: Directory of the run; the policy, a Hugging Face directory, is
      written to workdir/policy.

  Returns:
    The path of the policy.

  Raises:
    ValueError: If a value is wrong, the domain has no demonstrations, or the
      workdir is of another run.
    Preempted: After SIGINT or SIGTERM, with everything saved.
  """
  if not config.warmstart.steps:
    raise ValueError(
        'config.warmstart.steps=0: this config describes no warm start;'
        ' configs/math.py does'
    )
  config_checks.validate_warmstart(config)
  settings = warmstart.Settings(**config.warmstart.to_dict())
  if settings.start:
    start = domains.policy_path(settings.start)
    settings = dataclasses.replace(settings, start=str(start))
  if options := config.model.chat_template_kwargs.to_dict():
    raise ValueError(
        f'config.model.chat_template_kwargs={options}: the chat template of a'
        " warm start is evojax's own, which reads no options; leave the field"
        ' empty'
    )
  domain = settings_lib.make_domain(config)
  shown = domain.demonstrations
  if shown is None:
    raise ValueError(
        f'config.domain.name={config.domain.name!r} has no demonstrations to'
        ' train a base policy on; set `demonstrations` of its class'
    )
  source = domain.demonstrated(config.seed)
  with (
      workdir_lib.open_workdir(workdir, config, mode='warmstart') as directory,
      preemption.stop_flag() as asked,
  ):
    directory.record_start()
    start, stopped = time.perf_counter(), []

    def log(step, metrics):
      elapsed = numerals.duration(time.perf_counter() - start)
      loss, rate = metrics['loss'], metrics['tokens_per_s']
      where = f'step {step}/{settings.steps}'
      output.say(f'{where}  loss {loss:.4f}  tok/s {rate:,.0f}  {elapsed}')

    def stop(step):
      stopped.append(step)
      if not asked:
        directory.keep()
      return bool(asked)

    policy = warmstart.run(
        functools.partial(shown.batch, source, config.seed),
        directory.path,
        settings,
        tokens=shown.tokens,
        words=shown.words,
        seed=config.seed,
        log=log,
        stop=stop,
    )
    if policy is None:
      state = f'{stopped[-1]} updates are saved in {directory.path}'
      output.say(preemption.line(asked, state))
      raise preemption.Preempted(asked)
  output.say(f'policy: {policy} (Hugging Face format; jax {jax.__version__})')
  return policy
