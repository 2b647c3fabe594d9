"""evojax: a language-model policy and the harness that trains it, in JAX."""

from typing import Any

__version__ = '0.1.0'


def run(config: Any, workdir: str, **options: Any) -> dict[str, Any]:
  """Evolve policy and harness: `--mode=evolve` from Python.

  With `config.evolve.trials = 0` it trains a policy alone.

  Args:
    config: From `configs.math.get_config()`, say, changed as needed.
    workdir: The run's directory; the same call continues it.
    **options: Of `evojax.evolve.loop.run`; a policy alone has `fork_from`.

  Returns:
    The summary that is also in workdir/summary.json.

  Raises:
    ValueError: If an option needs a run that evolves, or as the loops do.
  """
  # Heavy modules are imported late: `import evojax` stays light.
  if config.evolve.trials:
    from evojax.evolve import loop

    return loop.run(config, workdir, **options)
  from evojax.training import loop as training_loop

  for name, value in options.items():
    if name != 'fork_from' and value and value != 'inprocess':
      raise ValueError(
          f'--{name}={value} needs a run that evolves; this config has'
          ' evolve.trials=0'
      )
  return training_loop.run(
      config, workdir, fork_from=options.get('fork_from', '')
  )
