"""Reads the files of verl: rollouts and, with its file logger, metrics.

trainer.rollout_data_dir gets one JSON lines file per step, 12.jsonl: input,
output, gts, score, step, and further values that the reward function returned.
The logger 'file' writes lines {"step": 12, "data": {...}}. The groups are not
logged: rollouts with the same prompt in one step are taken as a group. verl is
started by Hydra, which writes the config. It is read if it lies below the
rollouts or in one of the two folders above them, unless it names another folder
for rollouts.
"""

from collections.abc import Collection, Mapping
import pathlib
import re
from typing import Any

import pandas as pd

from evojax.diagnosis import arguments
from evojax.diagnosis import form
from evojax.diagnosis import names
from evojax.diagnosis import readers
from evojax.diagnosis import restarts

_STEP = re.compile(r'(\d+)\.jsonl')
_HELD_OUT = re.compile(r'(val|valid|validation|eval|evaluation)s?(?![a-z])')
_KEYS = ('input', 'output', 'score')
_FOLDER = 'rollout_data_dir'


def _files(path: pathlib.Path) -> list[pathlib.Path]:
  """Return the rollout files in the order of their steps."""
  found = [
      file
      for folder in [path, *(p for p in sorted(path.glob('*')) if p.is_dir())]
      for file in folder.glob('*.jsonl')
      if _STEP.fullmatch(file.name)
  ]
  trained = [file for file in found if not _held_out(path, file)]
  return sorted(trained or found, key=lambda file: int(file.stem))


def _held_out(path: pathlib.Path, file: pathlib.Path) -> bool:
  """Return whether a file is in the folder of evaluations.

  trainer.validation_data_dir has files of the same names.
  """
  return file.parent != path and bool(_HELD_OUT.match(file.parent.name))


def _trained(path: pathlib.Path, notes: list[str]) -> list[pathlib.Path]:
  """Return the rollout files of one run.

  Raises:
    form.FormatError: If several folders have a file of the same step.
  """
  files = _files(path)
  folders = sorted({file.parent for file in files})
  if len(folders) > 1 and not _held_out(path, files[0]):
    steps = [int(file.stem) for file in files]
    twice = [step for step in sorted({*steps}) if steps.count(step) > 1]
    if twice:
      has = [f.parent for f in files if int(f.stem) == twice[0]]
      raise form.FormatError(
          f'{path} holds {len(has)} runs, which all have a step {twice[0]}:'
          f' {", ".join(map(str, has[:5]))}; name one of them'
      )
  kept = []
  for folder in folders:
    own = [file for file in files if file.parent == folder]
    kept += restarts.files(own, [int(file.stem) for file in own], notes)
  return sorted(kept, key=lambda file: int(file.stem))


def fits(path: pathlib.Path) -> bool:
  return path.is_dir() and bool(_files(path))


def read(
    path: pathlib.Path, columns: Mapping[str, str], settings: Mapping[str, Any]
) -> form.Run:
  """Read the rollouts below a folder, and the metrics beside them."""
  notes: list[str] = []

  def load(file: pathlib.Path) -> pd.DataFrame:
    table = readers.frame(readers.json_lines(file, notes))
    if len(table) and not set(_KEYS) <= set(table):
      raise ValueError(f'no {", ".join(_KEYS)}')
    return table.assign(step=table.get('step', int(file.stem)))

  files = _trained(path, notes)
  rows = readers.tables(files, load, notes)
  log = []
  for file in sorted(path.rglob('*.jsonl')):
    if not _STEP.fullmatch(file.name):
      lines = [
          {**line['data'], 'step': line['step']}
          for line in readers.json_lines(file, notes)
          if isinstance(line.get('data'), dict) and 'step' in line
      ]
      log.append(restarts.log(lines, notes))
  metrics = pd.concat([pd.DataFrame(), *log], ignore_index=True)
  steps = names.common(metrics, notes, trainer_known=True)
  taken = {
      'prompt': 'input',
      'completion': 'output',
      'reward': 'score',
  }
  taken |= columns
  if len(rows):
    rows = rows.assign(group=rows[taken['prompt']])
    extra = [
        name
        for name in rows
        if name not in (*_KEYS, 'gts', 'step', 'group', 'request_id')
        and pd.api.types.is_numeric_dtype(rows[name])
    ]
    names.guess_outcome(rows, ['score'], taken, notes)
    names.guess_texts(rows, taken)
    for name in extra:
      rows[form.PART + name] = rows[name]
    rows = readers.renamed(rows, taken)
  folders = {file.parent.resolve().name for file in files}
  known = {**_settings(path.resolve(), folders, notes), **settings}
  return form.make(path, 'verl', rows, steps, known, notes)


def _settings(
    path: pathlib.Path, folders: Collection[str], notes: list[str]
) -> dict[str, Any]:
  """Return the settings in the newest config of the run; {} if there is none.

  A folder may hold configs of several runs, which have rollouts elsewhere.

  Args:
    path: Absolute path of the logs.
    folders: Names of the folders of the rollouts.
    notes: Gets a line for each config that cannot be read.
  """
  above = [folder / arguments.HYDRA for folder in path.parents[:2]]
  found = [*path.rglob(arguments.HYDRA), *(f for f in above if f.is_file())]
  for file in sorted(found, key=lambda f: f.stat().st_mtime, reverse=True):
    try:
      config = arguments.load_text(file)
    except (ValueError, OSError) as error:
      notes.append(f'{arguments.HYDRA} cannot be read ({error})')
      continue
    trainer = config.get('trainer')
    rollouts = trainer.get(_FOLDER) if isinstance(trainer, Mapping) else None
    if rollouts and pathlib.PurePath(str(rollouts)).name not in folders:
      continue
    if 'actor_rollout_ref' in config:
      return arguments.of_config(config)
  return {}
