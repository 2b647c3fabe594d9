"""evojax: a language-model policy and the harness that trains it, in JAX."""
from typing import Any

__version__ = '0.1.0'


def run(config: Any, workdir: str, **kwargs: Any) -> dict[str, Any]:
  """Trains a policy: `--mode=train` from Python. See `evojax.train.run`.

  Args:
    config: From `configs.math.get_config()`, say, changed as needed.
    workdir: The run's directory; the same call continues it.
    **kwargs: Of `evojax.train.run`.

  Returns:
    The summary that is also in workdir/summary.json.
  """
  from evojax import train  # Heavy; `import evojax` stays light.

  return train.run(config, workdir, **kwargs)
