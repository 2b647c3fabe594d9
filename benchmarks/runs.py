"""Runs of evojax that a benchmark starts, one by one, and can resume."""

import json
import pathlib
import subprocess
import sys
from typing import Any

from evojax.runtime import run_files


def start(config: str, workdir: pathlib.Path, *flags: str) -> dict[str, Any]:
  """Run evojax with a config, and return its summary.

  Raises:
    subprocess.CalledProcessError: If it fails.
  """
  command = [sys.executable, '-m', 'evojax.main', f'--config={config}']
  command += [f'--workdir={workdir}', *flags]
  print(' '.join(command), flush=True)
  subprocess.run(command, check=True)
  return json.loads((workdir / run_files.SUMMARY).read_text())


def finish(config: str, workdir: pathlib.Path, *flags: str) -> dict[str, Any]:
  """Return the summary of a run; start the run only if it has not ended."""
  if (workdir / run_files.SUMMARY).exists():
    return json.loads((workdir / run_files.SUMMARY).read_text())
  return start(config, workdir, *flags)
