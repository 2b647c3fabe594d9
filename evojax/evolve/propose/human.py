"""The user's inbox: changes to try next, and vetoes, as one JSON file each.

    <workdir>/inbox/10-rate.json
      {"delta": {"overlay": {"optim.learning_rate": 3e-4}},
       "hypothesis": "It learns too slowly.", "expected": [0.0, 0.05]}
    <workdir>/inbox/20-filter.json
      {"delta": {"file": "keep.py",
                 "source_of": "library/keep/outcome_variance.py"},
       "hypothesis": "...", "expected": [-0.01, 0.03]}
    <workdir>/inbox/30-mine.json
      {"delta": {"file": "keep.py", "source_file": "mine.py"}, ...}
    <workdir>/inbox/no-kl.json
      {"veto": "grpo.kl_coef"}

A source_file lies beside its JSON and is written by the user; like any source
that is not shipped it has to pass the gate (see `harness.gate`). Changes are
taken in the order of their names and move to inbox/done/ once they are in the
ledger. A veto is a factor or the hash of a delta; it holds while its file is in
the inbox or in done/. A file that cannot be used is renamed to
NAME.json.refused, beside NAME.json.reason.txt; if there is one already, to
NAME-1.json.refused, and so on.
"""

from collections.abc import Mapping
import dataclasses
import difflib
import itertools
import os
import pathlib
import re
from typing import Any

from evojax.evolve import propose as propose_lib
from evojax.evolve import skills
from evojax.harness import delta as delta_lib
from evojax.harness import library
from evojax.harness import spec
from evojax.harness import surface as surface_lib
from evojax.runtime import output

MAX_BYTES = 64 << 10
_BESIDE = ('.py', '.refused', '.reason.txt')  # Belong to files *.json.
_DELTA_FIELDS = ('delta', 'hypothesis', 'expected', 'note')


class InboxError(ValueError):
  """A file in the inbox cannot be used; the message says why."""


def vetoes(inbox: str | os.PathLike[str]) -> frozenset[str]:
  """Return the factors and hashes of deltas that the user has vetoed.

  Other files are left alone here; `propose` handles them.
  """
  inbox = pathlib.Path(inbox)
  found = set()
  for path in (*_files(inbox), *_files(inbox / 'done')):
    try:
      fields = _read(path)
      if 'veto' in fields:
        found.add(_veto(fields))
    except InboxError:
      continue
  return frozenset(found)


def propose(
    context: propose_lib.Context, inbox: str | os.PathLike[str]
) -> propose_lib.Proposal | None:
  """Return the first queued change that can be tried, or None.

  The file stays where it is until `taken`. A file that cannot be used is
  renamed to NAME.json.refused, with the reason beside it.

  Args:
    context: The parent and the earlier trials.
    inbox: The directory; it need not exist.
  """
  for path in _files(pathlib.Path(inbox)):
    try:
      fields = _read(path)
      if 'veto' in fields:
        _veto(fields)
        continue
      return _proposal(context, path, fields)
    except (InboxError, propose_lib.ProposalError, spec.HarnessError) as error:
      if path.exists():  # The user may have just taken it out.
        _refuse(path, str(error))
  return None


def review(
    inbox: str | os.PathLike[str], surface: surface_lib.Surface
) -> list[str]:
  """Return a line for each file that cannot be used, and change nothing.

  Only the file itself is checked: whether the change can be made depends on the
  version that it is tried on.

  Args:
    inbox: The directory; it need not exist.
    surface: The fields that a harness may set; a veto has to name one.
  """
  inbox = pathlib.Path(inbox)
  lines = []
  for path in sorted(p for p in inbox.glob('[!.]*') if p.is_file()):
    try:
      if path.suffix == '.json':
        fields = _read(path)
        if 'veto' in fields:
          _check_veto(_veto(fields), surface)
        else:
          _described(fields)
      elif not path.name.endswith(_BESIDE):
        raise InboxError('is not read: changes and vetoes are files *.json')
    except InboxError as error:
      lines.append(f'inbox/{path.name} cannot be used: {error}')
  return lines


def taken(inbox: str | os.PathLike[str], trigger: str) -> None:
  """Move a queued file to done/, after its row is on disk.

  A second call does nothing. If the file cannot be moved it stays, and is
  refused later as a change that was tried.

  Args:
    inbox: The directory.
    trigger: The proposal's trigger; those of other proposers are ignored.
  """
  if not propose_lib.is_users(trigger):
    return
  inbox = pathlib.Path(inbox)
  path = inbox / trigger.removeprefix(propose_lib.TRIGGER)
  if path.parent != inbox or not path.exists():
    return
  done = inbox / 'done'
  target, count = done / path.name, 1
  while target.exists():  # A name may be reused; no file is overwritten.
    target, count = done / f'{path.stem}-{count}.json', count + 1
  try:
    done.mkdir(exist_ok=True)
    os.rename(path, target)
  except OSError as error:
    output.say(f'inbox/{path.name} cannot go to done/, and stays: {error}')


def _files(directory: pathlib.Path) -> list[pathlib.Path]:
  return sorted(p for p in directory.glob('[!.]*.json') if p.is_file())


def _read(path: pathlib.Path) -> Mapping[str, Any]:
  """Return the JSON object in a file.

  Raises:
    InboxError: If the file holds anything else.
  """
  try:
    with path.open('rb') as file:
      data = file.read(MAX_BYTES + 1)
  except OSError as error:
    raise InboxError(f'cannot be read: {error}') from error
  if len(data) > MAX_BYTES:
    raise InboxError(
        f'is larger than {MAX_BYTES} bytes; shorten it, a source has its own'
        ' file (source_file)'
    )
  try:
    return spec.json_object(data.decode('utf-8-sig'))
  except UnicodeDecodeError as error:
    raise InboxError(f'is not UTF-8 text: {error}') from error
  except spec.HarnessError as error:
    raise InboxError(str(error)) from error


def _veto(fields: Mapping[str, Any]) -> str:
  match fields:
    case {'veto': str(veto), **others} if veto and not others:
      return veto
  raise InboxError(
      'a veto is {"veto": "<factor or hash of a delta>"} and nothing else'
  )


def _check_veto(veto: str, surface: surface_lib.Surface) -> None:
  """Raise InboxError if a veto matches nothing."""
  if delta_lib.class_of(veto, surface) or re.fullmatch('[0-9a-f]{64}', veto):
    return
  factors = surface.factors()
  of_path = {f.path: name for name, fields in factors.items() for f in fields}
  names = [*of_path, *factors]
  near = [name for name in names if name.startswith(veto)]
  near = near or difflib.get_close_matches(veto, names, n=1)
  # For a path in a group of fields, the factor is the group's name.
  meant = sorted({of_path.get(name, name) for name in near or factors})
  raise InboxError(
      f'veto={veto!r} is not a factor, so it has no effect; write'
      f' {" or ".join(map(repr, meant))}'
  )


def _proposal(
    context: propose_lib.Context, path: pathlib.Path, fields: Mapping[str, Any]
) -> propose_lib.Proposal:
  """Return the proposal that a file describes.

  Raises:
    InboxError: If a field is missing, unknown or of the wrong kind.
    propose.ProposalError: If the change may not be proposed.
    spec.HarnessError: If a harness cannot hold a value.
  """
  hypothesis, expected, note = _described(fields)
  delta = fields.get('delta')
  try:
    made = propose_lib.make(
        context,
        _after(context, path.parent, delta),
        hypothesis=hypothesis,
        expected=expected,
        source='the user',
        trigger=f'{propose_lib.TRIGGER}{path.name}',
        note=note,
    )
  except propose_lib.ProposalError as error:
    raise InboxError(f'{error}{_replaced(context, delta, error)}') from error
  return dataclasses.replace(made, proposer=propose_lib.INBOX)


def _replaced(
    context: propose_lib.Context,
    delta: Mapping[str, Any],
    error: propose_lib.ProposalError,
) -> str:
  """Return how to change one part of a file, if a whole new one was given."""
  factors = getattr(error.__cause__, 'factors', ())
  file = str(delta.get('file'))
  if len(factors) < 2 or file not in context.parent.files:
    return ''
  return (
      f'. The file replaces the whole {file}: begin with a copy of'
      f' harness/{context.parent.sha256}/{file} in the workdir'
  )


def _described(
    fields: Mapping[str, Any],
) -> tuple[str, tuple[float, float], str]:
  """Return hypothesis, expected effect and note of a change.

  Raises:
    InboxError: If a field is missing, unknown or of the wrong kind.
  """
  unknown = sorted(set(fields) - set(_DELTA_FIELDS))
  if unknown:
    raise InboxError(f'unknown fields {unknown}; known are {_DELTA_FIELDS}')
  hypothesis, note = fields.get('hypothesis'), fields.get('note', '')
  if not isinstance(hypothesis, str) or not hypothesis.strip():
    raise InboxError(
        f'hypothesis={hypothesis!r:.80}: say in a sentence why it should help'
    )
  if not isinstance(note, str):
    raise InboxError(f'note={note!r:.80} is not text; write it in quotes')
  return hypothesis, _expected(fields.get('expected')), note


def _expected(value: Any) -> tuple[float, float]:
  numbers = isinstance(value, list) and all(map(skills.is_number, value))
  if not numbers or len(value) != 2 or not -1 <= value[0] <= value[1] <= 1:
    raise InboxError(
        f'expected={value!r} is not [low, high], the effect on Avg@k in'
        ' fractions: [0.0, 0.05] is nothing to 5 points'
    )
  return float(value[0]), float(value[1])


def _after(
    context: propose_lib.Context, inbox: pathlib.Path, delta: Any
) -> spec.Harness:
  """Return the parent with the change that a file describes."""
  match delta:
    case {'overlay': dict(overlay), **others} if not others:
      return context.parent.with_overlay(overlay)
    case {'file': file, 'source_of': name, **others} if not others:
      return context.parent.with_file(str(file), _shipped(name))
    case {'file': file, 'source_file': name, **others} if not others:
      return context.parent.with_file(str(file), _beside(inbox, name))
  raise InboxError(
      'delta is {"overlay": {path: value}}, {"file": "keep.py", "source_of":'
      ' "library/keep/NAME.py"} or {"file": "keep.py", "source_file":'
      ' "NAME.py"}'
  )


def _beside(inbox: pathlib.Path, name: Any) -> str:
  """Return the text of a file of the inbox."""
  if not isinstance(name, str) or not re.fullmatch(r'[\w-][\w.-]*\.py', name):
    raise InboxError(
        f'source_file={name!r} is not the name of a .py file in the inbox'
    )
  path = inbox / name
  try:
    size = path.stat().st_size
    # A link could bring in a file from outside the inbox; a pipe would block.
    if path.is_symlink() or not path.is_file() or size > spec.MAX_FILE_BYTES:
      raise InboxError(
          f'source_file={name!r} is a link, no file, or larger than'
          f' {spec.MAX_FILE_BYTES} bytes; put a copy into the inbox'
      )
    return path.read_bytes().decode('utf-8-sig')
  except (OSError, UnicodeDecodeError) as error:
    raise InboxError(f'source_file={name!r} cannot be read: {error}') from error


def _shipped(name: Any) -> str:
  """Return the text of a function that evojax ships."""
  known = [f'library/{file}' for file in library.names()]
  if name not in known:
    raise InboxError(f'source_of={name!r} is not shipped; known are {known}')
  return library.source(name.removeprefix('library/'))


def _refuse(path: pathlib.Path, reason: str) -> None:
  """Rename a file and write the reason beside it."""
  output.say(f'inbox/{path.name} is refused: {reason}')
  # A name may be used again, such as that of a mended file: no file that was
  # refused before is overwritten.
  names = (f'{path.stem}-{n}.json' for n in itertools.count(1))
  for name in itertools.chain([path.name], names):
    target = path.with_name(f'{name}.refused')
    if not target.exists():
      break
  # The reason comes first: after a kill in between, the file is refused again.
  try:
    path.with_name(f'{name}.reason.txt').write_text(reason + '\n')
    os.replace(path, target)
  except OSError as error:
    output.say(f'inbox/{path.name} cannot be renamed, and stays: {error}')
