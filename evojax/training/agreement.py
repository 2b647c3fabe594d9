"""Checks that all processes of a run, and all its starts, have equal inputs.

Processes that differ in problems, policy or code would compute different
things, or hang in different programs, without an error. A run that continues
with other problems would repeat some and leave out others, and its scores
before and after would not be comparable.
"""

from collections.abc import Mapping, Sequence
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import socket
from typing import Any

import jax
import numpy as np

import evojax
from evojax import config as config_lib
from evojax.domains import sources
from evojax.models import hf
from evojax.runtime import decisions
from evojax.training import setup as setup_lib

_SHOWN = 60  # Characters of a value that a message shows.


def problems(
    setup: setup_lib.Setup, used: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
  """Return {split: {'count': problems, 'sha256': of their ids and answers}}.

  Only data sets count: generated problems depend on the config and the code.

  Args:
    setup: Setup of the run.
    used: Splits; by default those that the run uses.
  """
  config, found = setup.config, {}
  for split in used or setup_lib.used_splits(config):
    source = setup.domain.source(split, config.seed)
    if not isinstance(source, sources.FiniteSource):
      continue
    digest = hashlib.sha256()
    for problem in source.take(0, len(source)):
      # An answer of the user's own domain may be of any type.
      text = json.dumps([problem.problem_id, problem.answer], default=_plain)
      digest.update(text.encode())
    found[split] = {'count': len(source), 'sha256': digest.hexdigest()}
  return found


def _plain(value: Any) -> Any:
  """Return the value of a NumPy scalar, or the type of any other object.

  The text of other objects may vary from process to process.
  """
  return value.item() if isinstance(value, np.generic) else type(value).__name__


def facts(setup: setup_lib.Setup) -> dict[str, str]:
  """Return what all processes of a run must have in common, by name."""
  config = config_lib.flatten(config_lib.to_mapping(setup.config))
  found = {
      f'config.{field}': json.dumps(value)
      for field, value in config.items()
      # Paths may differ between processes, as long as they lead to the same
      # content; a text with spaces, such as a prompt with tags, is no path.
      if not (isinstance(value, str) and os.sep in value and ' ' not in value)
  }
  for split, what in problems(setup).items():
    text = f'{what["count"]} problems, {what["sha256"][:12]}'
    found[f'the data of {split}'] = text
  folder = setup.policy.path
  names = ('config.json', *hf.TOKENIZER_FILES)
  files = [folder / name for name in names if (folder / name).is_file()]
  weights = sorted(folder.glob('*.safetensors'))
  sizes = [(file.name, file.stat().st_size) for file in weights]
  found['the policy'] = _digest(files, json.dumps(sizes))
  if setup.harness:
    found['the harness'] = setup.harness.sha256[:12]
  package = pathlib.Path(evojax.__file__).parent
  found['the code of evojax'] = _digest(sorted(package.rglob('*.py')))
  found['Python'] = platform.python_version()
  for name in ('jax', 'jaxlib'):
    found[name] = importlib.metadata.version(name)
  return found


def _digest(files: Sequence[pathlib.Path], more: str = '') -> str:
  """Return 12 hex digits for the contents of files, and for a text."""
  digest = hashlib.sha256(more.encode())
  for file in files:
    digest.update(hashlib.sha256(file.read_bytes()).digest())
  return digest.hexdigest()[:12]


def check(setup: setup_lib.Setup) -> None:
  """Refuse a run whose processes disagree; all of them call this.

  Raises:
    ValueError: In every process, if a fact differs between two of them.
  """
  if jax.process_count() == 1:
    return
  everywhere = decisions.exchange(lambda: (socket.gethostname(), facts(setup)))
  if reason := _difference(everywhere):
    raise ValueError(reason)


def _difference(everywhere: Sequence[tuple[str, Mapping[str, str]]]) -> str:
  """Return how a process differs from the first one; '' if none does."""
  first_host, first = everywhere[0]
  for process, (host, own) in enumerate(everywhere):
    differing = [
        name
        for name in {**first, **own}
        if first.get(name) != own.get(name)
    ]
    if not differing:
      continue
    lines = ''.join(
        f'\n  {name}: {_short(first.get(name))} in process 0,'
        f' {_short(own.get(name))} in process {process}'
        for name in differing
    )
    return (
        f'process 0 on {first_host} and process {process} on {host} do not run'
        f' the same:{lines}\nGive all of them the same command, code and files'
    )
  return ''


def _short(value: str | None) -> str:
  value = 'nothing' if value is None else value
  return value if len(value) <= _SHOWN else value[:_SHOWN] + '...'
