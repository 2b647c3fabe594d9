"""evojax: a language-model policy and the harness that trains it, in JAX."""

import sys
from typing import Any

if sys.version_info < (3, 11):  # noqa: UP036, an older one may well read this.
  sys.exit(
      f'error: evojax needs Python 3.11 or newer, and {sys.executable} is'
      f' {sys.version_info[0]}.{sys.version_info[1]}: run `bash'
      ' launch/local.sh`, which finds one'
  )

__version__ = '0.1.0'


def run(config: Any, workdir: str, **options: Any) -> dict[str, Any]:
  """Evolve policy and harness: `--mode=evolve` from Python.

  With `config.evolve.rounds = 0` it trains a policy alone.

  Args:
    config: A config, e.g. `configs.math.get_config()`, changed as needed.
    workdir: The run's directory, or a URL such as gs://bucket/run; the same
      call continues it.
    **options: Options of `evojax.evolve.loop.run`; without rounds, only
      `fork_from`.

  Returns:
    The summary that is also in workdir/summary.json.

  Raises:
    ValueError: If the config, the workdir or an option is wrong; the message
      names the field, its value and the remedy.
    runtime.preemption.Preempted: After SIGINT or SIGTERM, with the state saved;
      the same call continues the run.
  """
  from evojax.modes import evolve  # Heavy; `import evojax` stays light.
  from evojax.runtime import mirror

  with mirror.opened(workdir) as path:
    return evolve.run(config, path, **options)
