"""Makes a small workdir for the tests from a run that evolved.

    python -m tests.frozen.freeze WORKDIR tests/frozen/NAME

It keeps the files that `--mode=report` reads: the ledger byte for byte, the
harnesses, the JSON files, and some evidence. This is the newest training step
of the first version and, for the first change that raced, the newest training
step of an arm of the incumbent and of the candidate, and their dev scores where
a round has any. Checkpoints and policies are left out; paths of the machine are
replaced by '.'.

Each version of the code that changes the form of rows adds a directory, which
is never removed: with it, a test checks that old runs can still be read.
"""

import json
import os
import pathlib
import shutil
import sys

from evojax.evidence import store
from evojax.ledger import history

_FILES = ('config.json', 'summary.json', 'manifest.json')


def freeze(source: pathlib.Path, target: pathlib.Path) -> None:
  """Copy what a page needs of a run; the target must not exist."""
  target.mkdir(parents=True)
  shutil.copy(source / 'ledger.jsonl', target)
  for name in _FILES:
    text = (source / name).read_text()
    for place in (str(source.resolve()), os.getcwd(), sys.prefix):
      text = text.replace(place, '.')
    (target / name).write_text(text)
  # The manifest contains a machine's name and command line.
  entries = json.loads((target / 'manifest.json').read_text())
  for entry in entries:
    entry |= {'host': 'host', 'command': ''}
  text = json.dumps(entries, indent=2) + '\n'
  (target / 'manifest.json').write_text(text)
  shutil.copytree(source / 'harness', target / 'harness')
  for path in source.glob('arms/*/arm.json'):
    place = target / path.relative_to(source)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, place)
  run = history.read(source)
  first = next(trial for trial in run.trials if trial.races)
  incumbents, candidates = map(first.role, ('incumbent', 'candidate'))
  for folder in (run.base.folder, incumbents[0].folder, candidates[0].folder):
    _copy(source, target, folder, 'train')
  for arm in (*incumbents[:2], candidates[0]):
    if first.races[-1].scored_by == 'dev':
      _copy(source, target, arm.dev, 'dev')


def _copy(
    source: pathlib.Path, target: pathlib.Path, folder: str, split: str
) -> None:
  """Copy the newest evidence of a split."""
  step = store.list_steps(source / folder, split)[-1]
  path = store.path_of(source / folder, split, step)
  place = target / path.relative_to(source)
  place.parent.mkdir(parents=True, exist_ok=True)
  shutil.copy(path, place)


if __name__ == '__main__':
  freeze(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
