"""--mode=train: train with GRPO alone; show the run's page and its faults."""

import pathlib
from typing import Any

import ml_collections

from evojax.diagnosis import live as diagnosis_live
from evojax.report import page
from evojax.runtime import output
from evojax.runtime import sharding
from evojax.training import loop


def run(
    config: ml_collections.ConfigDict, workdir: str, *, fork_from: str = ''
) -> dict[str, Any]:
  """Train a policy; rebuild its page and diagnose it meanwhile and at the end.

  A run of less than a minute is diagnosed only if it solves less than before.

  Args:
    config: Config of the run.
    workdir: The run's directory; the same call continues it.
    fork_from: See `loop.run`.

  Returns:
    The summary that is also in workdir/summary.json.

  Raises:
    ValueError: If `loop.run` raises it.
  """
  path = pathlib.Path(workdir).expanduser()
  with page.Live(path) as pages, diagnosis_live.Live(path) as diagnoses:

    def watch() -> None:
      pages.update()
      diagnoses.update()

    summary = loop.run(config, workdir, fork_from=fork_from, watch=watch)
    if sharding.is_primary():
      reports = summary['gain'].values()
      lost = any(report['gain']['high'] < 0 for report in reports)
      diagnoses.finish(must=lost)
      if built := pages.finish():
        output.say(f'page: {built}')
  return summary
