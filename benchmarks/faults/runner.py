"""Runs a mode of evojax under a config in a JSON file.

    python -m benchmarks.faults.runner MODE CONFIG WORKDIR

A job's config is data instead of a Python file as `--config` expects; its
domain may be a module in PYTHONPATH.
"""

from collections.abc import Mapping
import importlib
import json
import pathlib
import subprocess
import sys

import ml_collections

from evojax import config as config_lib
from evojax.harness import surface as surface_lib
from evojax.training import settings as settings_lib


def start(
    mode: str,
    config: ml_collections.ConfigDict,
    path: pathlib.Path,
    workdir: pathlib.Path,
    env: Mapping[str, str] | None = None,
) -> None:
  """Write a config to a path, and run a mode under it in a new process.

  Raises:
    subprocess.CalledProcessError: If it fails.
  """
  path.write_text(config_lib.to_json(config))
  command = [sys.executable, '-m', 'benchmarks.faults.runner', mode]
  subprocess.run([*command, str(path), str(workdir)], check=True, env=env)


def surface_of(config: ml_collections.ConfigDict) -> surface_lib.Surface:
  """Return what a harness of a run may change, also in its domain."""
  return surface_lib.recipe(settings_lib.make_domain(config).surface_fields)


def main(mode: str, config: str, workdir: str) -> None:
  values = json.loads(pathlib.Path(config).read_text())
  module = importlib.import_module(f'evojax.modes.{mode}')
  module.run(config_lib.from_mapping(values), workdir)


if __name__ == '__main__':
  main(*sys.argv[1:])
