"""The sealed split: opened once per run, for the base and the trained policy.

A score that was seen before more training is no longer a test. So the first
result is written to <workdir>/sealed.json, and a later call returns it.
"""

from collections.abc import Callable
import dataclasses
import json
import os
import pathlib
from typing import Any

from absl import logging

from evojax.eval import evaluate
from evojax.eval import report as report_lib
from evojax.runtime import decisions
from evojax.runtime import durable
from evojax.runtime import run_files
from evojax.runtime import workdir as workdir_lib

SPLIT = 'sealed'


def path_of(workdir: str | os.PathLike[str]) -> pathlib.Path:
  """Return the file that holds a run's sealed result."""
  return pathlib.Path(workdir, run_files.SEALED)


def read(workdir: str | os.PathLike[str]) -> dict[str, Any] | None:
  """Return the sealed result that `report.report_gain` made, or None.

  Raises:
    WorkdirError: If evojax did not write the file.
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
    scorer: evaluate.Scorer,
    *,
    install_base: Callable[[], None],
    install_trained: Callable[[], None],
    workdir: str | os.PathLike[str],
    step: int,
    primary: bool = True,
    **asked: int,
) -> dict[str, Any]:
  """Score base and trained policy on the same sealed problems, once.

  Args:
    scorer: Its engine holds the trained weights afterwards.
    install_base: Calls `engine.update_weights` with the base policy. It is a
      function because these weights need not be in memory during training.
    install_trained: Calls `engine.update_weights` with the trained policy.
    workdir: The run's directory.
    step: Training steps of the trained policy, >= 1; the base policy's is 0.
    primary: Whether this is process 0, which alone writes.
    **asked: seed, problems and samples, see `evaluate.evaluate`.

  Returns:
    As `report.report_gain`, from the first call in this workdir.

  Raises:
    ValueError: As `evaluate.evaluate`, or if nothing was trained.
    WorkdirError: If the stored result cannot be read.
    DiskError: If the disk is full.
  """
  stored = decisions.decide(lambda: read(workdir))
  # The first result stands, whatever the arguments are now: a second look at
  # sealed problems could be used to choose.
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

  def run(install, at_step, version):
    install()
    return evaluate.evaluate(
        dataclasses.replace(
            scorer, version=version, domain=scorer.domain.audit
        ),
        split=SPLIT,
        step=at_step,
        workdir=workdir if primary else None,
        allow_sealed=True,
        **asked,
    )

  # The base goes first, so that the engine is left with the trained weights.
  before = run(install_base, 0, 'seed')
  report = report_lib.report_gain(
      before, run(install_trained, step, scorer.version)
  )
  if primary:
    durable.write_json(path_of(workdir), report)
  return report
