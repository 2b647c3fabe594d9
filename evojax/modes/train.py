"""--mode=train: train with GRPO alone, and keep the run's page up to date."""

import pathlib
from typing import Any

import ml_collections

from evojax.report import page
from evojax.runtime import output
from evojax.runtime import sharding
from evojax.training import loop


def run(
    config: ml_collections.ConfigDict, workdir: str, *, fork_from: str = ''
) -> dict[str, Any]:
  """Train a policy; rebuild its page during the run and at the end.

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
  with page.Live(path) as live:
    summary = loop.run(config, workdir, fork_from=fork_from, watch=live.update)
    if sharding.is_primary() and (built := live.finish()):
      output.say(f'page: {built}')
  return summary
