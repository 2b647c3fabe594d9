"""The sealed split: opened once per run, for the base and the trained policy.

A score that was looked at and trained on further is no longer a test. So the
first result is written to <workdir>/sealed.json, and a later call returns it.
"""

from collections.abc import Callable
import json
import os
import pathlib
from typing import Any

from absl import logging

from evojax import records
from evojax.domains import base
from evojax.eval import evaluate
from evojax.eval import report as report_lib
from evojax.models import tokenizer as tokenizer_lib
from evojax.runtime import metrics as metrics_lib
from evojax.runtime import workdir as workdir_lib

SPLIT = 'sealed'


def path_of(workdir: str | os.PathLike[str]) -> pathlib.Path:
  """File that holds a run's sealed result."""
  return pathlib.Path(workdir, 'sealed.json')


def read(workdir: str | os.PathLike[str]) -> dict[str, Any] | None:
  """A run's sealed result, as `report.report_gain` made it; None before that.

  Raises:
    WorkdirError: If the file is not what evojax wrote.
  """
  path = path_of(workdir)
  if not path.exists():
    return None
  try:
    result = json.loads(path.read_text())
    if result['split'] != SPLIT:
      raise KeyError(f'split is {result["split"]!r}')
    return result
  except (ValueError, KeyError, TypeError) as error:
    raise workdir_lib.WorkdirError(
        f'{path} is not a result written by evojax ({error!r}); restore it from'
        ' a copy'
    ) from error


def score(
    engine: records.Sampler,
    tokenizer: tokenizer_lib.Tokenizer,
    domain: base.Domain,
    *,
    install_base: Callable[[], None],
    install_trained: Callable[[], None],
    workdir: str | os.PathLike[str],
    seed: int,
    problems: int,
    samples: int,
    params: records.SamplingParams,
    max_prompt_tokens: int,
    step: int,
    version: str = 'seed',
    phases: metrics_lib.Phases | None = None,
    primary: bool = True,
) -> dict[str, Any]:
  """Scores base and trained policy on the same sealed problems, once.

  Args:
    engine: Sampler; holds the trained weights afterwards.
    tokenizer: Of both policies.
    domain: Problems and grader.
    install_base: Calls `engine.update_weights` with the base policy. It is a
      function, as its weights need not be in memory during training.
    install_trained: Likewise with the trained policy.
    workdir: The run's directory.
    seed: Of problems and sampler.
    problems: P, at least 2.
    samples: k of Avg@k.
    params: How to sample.
    max_prompt_tokens: Lp.
    step: Training steps of the trained policy, >= 1; the base policy's is 0.
    version: Training-harness version.
    phases: Counts the time of rollout, grade and log.
    primary: Whether this is process 0, which alone writes.

  Returns:
    See `report.report_gain`; that of the first call in this workdir.

  Raises:
    ValueError: As `evaluate.evaluate`, or if nothing was trained.
    WorkdirError: If the stored result cannot be read.
    DiskError: If the disk is full.
  """
  stored = read(workdir)
  if stored is not None:
    if stored['after']['step'] != step:
      logging.warning(
          'the sealed problems of %s were scored at step %d already; that'
          ' result stands. To score step %d, fork the run into a new workdir',
          workdir,
          stored['after']['step'],
          step,
      )
    return stored
  if step < 1:
    raise ValueError(f'{step=}: nothing was trained that could be compared')

  def run(install, at_step):
    install()
    return evaluate.evaluate(
        engine,
        tokenizer,
        domain,
        split=SPLIT,
        seed=seed,
        problems=problems,
        samples=samples,
        params=params,
        max_prompt_tokens=max_prompt_tokens,
        step=at_step,
        version=version,
        workdir=workdir if primary else None,
        phases=phases,
        allow_sealed=True,
    )

  before = run(install_base, 0)
  report = report_lib.report_gain(before, run(install_trained, step))
  if primary:
    text = json.dumps(report, indent=2, allow_nan=False) + '\n'
    workdir_lib.write_atomic(path_of(workdir), text.encode())
  return report
