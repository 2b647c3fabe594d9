"""Differences between two harness directories, for a reader."""

from collections.abc import Mapping, Sequence
import dataclasses
import difflib
import json
import os
import pathlib
import re
from typing import Any

from evojax import config as config_lib
from evojax.ledger import records
from evojax.runtime import run_files

_SHA = re.compile(r'[0-9a-f]{8,64}')
_OVERLAY = 'overlay.json'
_MAX_BYTES = 256 * 1024  # Largest file that is read; harnesses are smaller.
_MAX_LINES = 600  # Lines shown of one file's difference.
_CLASSES = {'+': 'add', '-': 'cut', '@': 'hunk'}


@dataclasses.dataclass(frozen=True)
class Diff:
  """The differences from one harness to another."""

  overlay: Sequence[tuple[str, str, str]]  # Field, before, after.
  files: Sequence[tuple[str, Sequence[tuple[str, str]]]]  # (class, line) pairs.
  note: str = ''  # Why nothing is shown.


def value_text(value: Any) -> str:
  """Return a config value as people write it: 3e-4 rather than 0.0003."""
  if isinstance(value, float):
    if value and abs(value) < 1e-3:
      digits, _, power = f'{value:.5e}'.partition('e')
      return f'{digits.rstrip("0").rstrip(".")}e{int(power)}'
    return f'{value:.6g}'
  return value if isinstance(value, str) else json.dumps(value)


def change_text(delta: records.Delta | None) -> str:
  """Return the single change of a trial: 'grpo.clip_high 0.2 → 0.28'."""
  if delta is None:
    return ''
  parts = []
  for path, before, after in delta.changes:
    if isinstance(after, str) and after.startswith('source '):
      parts.append(f'{path} {after.removeprefix("source ")}')
    elif after is None:
      parts.append(f'{path} removed')
    elif before is None:
      parts.append(f'{path} {value_text(after)}')
    else:
      parts.append(f'{path} {value_text(before)} → {value_text(after)}')
  text = '; '.join(parts) or delta.factor
  # Lines break after a hyphen, but not after a minus sign.
  return re.sub(r'(?<=\de)-(?=\d)', '−', text)


def read(workdir: str | os.PathLike[str], sha: str) -> dict[str, str] | None:
  """Return the files of a harness by relative path; None if it does not exist.

  Links, other kinds of files and very large files are left out.
  """
  root = pathlib.Path(workdir, run_files.HARNESSES, sha)
  # The hash comes from the ledger and becomes a path: '..' must not pass.
  if not _SHA.fullmatch(sha) or not root.is_dir():
    return None
  files = {}
  for path in sorted(root.rglob('*')):
    if path.suffix not in ('.py', '.json') or path.is_symlink():
      continue
    if path.is_file() and path.stat().st_size <= _MAX_BYTES:
      name = path.relative_to(root).as_posix()
      files[name] = path.read_text(errors='replace')
  return files


def _overlay(files: Mapping[str, str]) -> dict[str, Any]:
  """Return the flat overlay; empty if the file is not an overlay."""
  try:
    overlay = json.loads(files.get(_OVERLAY, '{}'))
  except ValueError:
    return {}
  return config_lib.flatten(overlay) if isinstance(overlay, dict) else {}


def _lines(before: str, after: str) -> list[tuple[str, str]]:
  """Return a unified difference without its two file names."""
  lines = list(
      difflib.unified_diff(
          before.splitlines(), after.splitlines(), lineterm='', n=3
      )
  )[2:]
  shown = [(_CLASSES.get(line[:1], ''), line) for line in lines[:_MAX_LINES]]
  if len(lines) > len(shown):
    shown.append(('hunk', f'… {len(lines) - len(shown)} more lines'))
  return shown


def compare(
    workdir: str | os.PathLike[str],
    before: str,
    after: str,
    config: Mapping[str, Any],
) -> Diff:
  """Compare two harnesses of a run.

  Args:
    workdir: The run's directory.
    before: Hash of a harness.
    after: Hash of a harness.
    config: Flat config; gives the values of fields that an overlay lacks.

  Returns:
    The differences, or a note if a harness is missing.
  """
  if not before or not after:
    return Diff((), (), 'No harness was designed.')
  old, new = read(workdir, before), read(workdir, after)
  if old is None or new is None:
    missing = after if new is None else before
    return Diff((), (), f'harness/{missing} is not in the workdir.')
  had, has = _overlay(old), _overlay(new)

  def text(overlay: Mapping[str, Any], name: str) -> str:
    if name in overlay:
      return value_text(overlay[name])
    return f'{value_text(config[name])} (config)' if name in config else '—'

  overlay = [
      (name, text(had, name), text(has, name))
      for name in sorted(had.keys() | has.keys())
      if name not in had or name not in has or had[name] != has[name]
  ]
  files = [
      (name, _lines(old.get(name, ''), new.get(name, '')))
      for name in sorted((old.keys() | new.keys()) - {_OVERLAY})
      if old.get(name) != new.get(name)
  ]
  same = '' if overlay or files else 'The two harnesses are the same.'
  return Diff(overlay, files, same)
