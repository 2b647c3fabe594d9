"""--mode=evolve: the meta-loop; with evolve.rounds = 0, training alone."""

from typing import Any

import ml_collections

from evojax.evolve import loop
from evojax.modes import train


def run(
    config: ml_collections.ConfigDict,
    workdir: str,
    fork_from: str = '',
    **options: Any,
) -> dict[str, Any]:
  """Evolve policy and harness; with evolve.rounds = 0, train a policy alone.

  Args:
    config: Config of the run.
    workdir: The run's directory; the same call continues it.
    fork_from: Workdir of another run to start from.
    **options: Further options of `evolve.loop.run`.

  Raises:
    ValueError: If an option needs a run that evolves and this one does not, or
      if `evolve.loop.run` or `train.run` raises it.
  """
  if config.evolve.rounds:
    return loop.run(config, workdir, fork_from=fork_from, **options)
  for name, value in options.items():
    if value and value != 'inprocess':
      raise ValueError(
          f'--{name}={value} needs a run that evolves; this config has'
          ' config.evolve.rounds=0: set it to 1 or more, or leave the flag out'
      )
  return train.run(config, workdir, fork_from=fork_from)
