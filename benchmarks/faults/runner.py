"""Runs a mode of evojax under a config in a JSON file.

    python -m benchmarks.faults.runner MODE CONFIG WORKDIR

A job's config is data, not a Python file as `--config` takes; its domain may be
a module in PYTHONPATH.
"""

import importlib
import json
import pathlib
import sys

from evojax import config as config_lib


def main(mode: str, config: str, workdir: str) -> None:
  values = json.loads(pathlib.Path(config).read_text())
  module = importlib.import_module(f'evojax.modes.{mode}')
  module.run(config_lib.from_mapping(values), workdir)


if __name__ == '__main__':
  main(*sys.argv[1:])
