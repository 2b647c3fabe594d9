"""A harness is a small directory: an overlay of config values and functions.

    overlay.json       {'optim.learning_rate': 1e-4, ...}
    reward.py          def parts(e) -> {name: float32 [P, G]}, which ends in
                       its only `return {...}`
    keep.py            def init() -> state;  def keep(e, state) -> (bool [P, G],
                       state)
    weight.py          def weight(e) -> float32 [P, G, A]
    diagnostics/*.py   def measure(e) -> {name: float};  LAYER, UNIT, WARN,
                       CRITICAL
    backtests/*.py     def predict(before, after) -> {name: float}
    library.json       {'reward.py': 'seed/reward.py', ...}: files read from
                       harness/library as if they were here

`e` is a view of the evidence of P prompts with G completions each
(`evidence.views.View`); weights have A turns. docs/your_own.md shows an example
of each file.

A harness is named by the hash of its content. Sources are text here, and run
elsewhere (see `run`).
"""

import collections
from collections.abc import Mapping
import dataclasses
import functools
import hashlib
import json
import math
import os
import pathlib
import re
import shutil
import types
from typing import Any

from evojax.harness import library
from evojax.harness import syntax
from evojax.runtime import durable

OVERLAY = 'overlay.json'
LIBRARY = 'library.json'
MAX_FILE_BYTES = 64 << 10
MAX_FILES = 64

_FILE = re.compile(
    r'(reward|keep|weight|(diagnostics|backtests)/[a-z][a-z0-9_]{0,63})\.py'
)
# Control characters, marks that reverse the direction of text, and halves of
# surrogate pairs: a reader must see the same text as Python.
_NOT_TEXT = re.compile(
    '[\0-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]'
)
# Files of Python packaging, which do not belong to a harness.
_PACKAGING = ('__init__.py', '__pycache__')


class HarnessError(ValueError):
  """A directory is not a harness, or does not match the hash in its name."""


@dataclasses.dataclass(frozen=True)
class Harness:
  """The overlay and the sources, both read-only and in canonical order.

  Raises:
    HarnessError: If a path, a value or a source does not have the form above.
  """

  overlay: Mapping[str, Any]  # Dotted config path -> JSON value; flat.
  files: Mapping[str, str]  # Relative path -> Python source.

  def __post_init__(self):
    for field, canonical in (
        ('overlay', _canonical_value),
        ('files', _canonical_source),
    ):
      values = getattr(self, field)
      values = {path: canonical(path, values[path]) for path in sorted(values)}
      object.__setattr__(self, field, types.MappingProxyType(values))
    if (count := len(self.files)) > MAX_FILES:
      raise HarnessError(f'{count} files; a harness has <= {MAX_FILES}')

  def __hash__(self) -> int:
    return hash(self.sha256)

  @functools.cached_property
  def sha256(self) -> str:
    """Hash of the content, 64 hex digits; 1 and 1.0 count as equal."""
    overlay = {k: as_float(v) for k, v in self.overlay.items()}
    content = {'overlay': overlay, 'files': dict(self.files)}
    text = json.dumps(content, sort_keys=True, separators=(',', ':'))
    return hashlib.sha256(text.encode()).hexdigest()

  def with_overlay(self, changes: Mapping[str, Any]) -> 'Harness':
    """Return a copy with these values; None removes a path."""
    return dataclasses.replace(self, overlay=_merged(self.overlay, changes))

  def with_file(self, name: str, text: str | None) -> 'Harness':
    """Return a copy with this source; None removes the file."""
    return dataclasses.replace(self, files=_merged(self.files, {name: text}))


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
  """Return the entries of both; None removes an entry."""
  return {k: v for k, v in {**old, **new}.items() if v is not None}


def _canonical_value(path: str, value: Any) -> Any:
  """Return a number or a string as it is, and a list of them as a tuple."""
  if not path.isascii() or not all(p.isidentifier() for p in path.split('.')):
    # Letters of other alphabets may look like those of ASCII.
    raise HarnessError(
        f'{OVERLAY}: {path!a} is not a dotted config path such as'
        ' optim.learning_rate'
    )
  if isinstance(value, list | tuple):
    if any(isinstance(item, list | tuple) for item in value):
      raise HarnessError(f'{OVERLAY}: {path} is a list of lists; use one list')
    return tuple(_canonical_value(path, item) for item in value)
  if isinstance(value, float) and not math.isfinite(value):
    raise HarnessError(f'{OVERLAY}: {path}={value} is not a finite number')
  if not isinstance(value, bool | int | float | str):
    raise HarnessError(
        f'{OVERLAY}: {path}: a {type(value).__name__} is not a number, a string'
        ' or a list of them; write {"optim.learning_rate": 1e-4}, and numbers'
        ' of NumPy as float(x)'
    )
  if isinstance(value, int) and abs(value) > syntax.MAX_INT:
    raise HarnessError(f'{OVERLAY}: {path} is larger than 2**63')
  return value


def as_float(value: Any) -> Any:
  """Return numbers as floats, -0.0 as 0.0, so that equal values look equal."""
  if isinstance(value, tuple):
    return [as_float(item) for item in value]
  if isinstance(value, int | float) and not isinstance(value, bool):
    return float(value) + 0.0
  return value


def _canonical_source(path: str, source: str) -> str:
  """Return the source with \\n line ends and one at the end."""
  if not _FILE.fullmatch(path):
    raise HarnessError(
        f'{path!r} is not a file of a harness; it holds {OVERLAY}, reward.py,'
        ' keep.py, weight.py, diagnostics/NAME.py and backtests/NAME.py'
    )
  if len(source.encode(errors='surrogatepass')) > MAX_FILE_BYTES:
    raise HarnessError(f'{path} is larger than {MAX_FILE_BYTES} bytes')
  lines = source.replace('\r\n', '\n').replace('\r', '\n')
  if found := _NOT_TEXT.search(lines):
    line = lines.count('\n', 0, found.start()) + 1
    raise HarnessError(
        f'{path} line {line}: it holds U+{ord(found[0]):04X}, which is no'
        ' text; take it out'
    )
  return lines.rstrip('\n') + '\n'


def read(directory: str | os.PathLike[str]) -> Harness:
  """Read a harness from a directory.

  Raises:
    HarnessError: If it holds anything else; the message names the file.
  """
  root = pathlib.Path(directory)
  if not root.is_dir():
    raise HarnessError(
        f'{root} is not a directory; a harness is a directory of config values'
        ' and functions: name one in config.harness.path or --harnesses'
    )
  overlay, files, shared = {}, {}, {}
  for path in sorted(_walk(root)):
    name = path.relative_to(root).as_posix()
    if path.stat().st_size > MAX_FILE_BYTES:
      raise HarnessError(f'{path} is larger than {MAX_FILE_BYTES} bytes')
    try:
      text = path.read_bytes().decode('utf-8-sig')  # Some editors add a mark.
    except UnicodeDecodeError as error:
      raise HarnessError(f'{path} is not UTF-8 text: {error}') from error
    if name == OVERLAY:
      overlay = _parse(path, text)
    elif name == LIBRARY:
      shared = {k: _shared(path, v) for k, v in _parse(path, text).items()}
    else:
      files[name] = text
  if twice := sorted(files.keys() & shared.keys()):
    raise HarnessError(
        f'{root}: {twice} are there and in {LIBRARY}; take out one of the two'
    )
  try:
    return Harness(overlay, files | shared)
  except HarnessError as error:
    raise HarnessError(f'{root}: {error}') from error


def _shared(path: pathlib.Path, name: Any) -> str:
  """Return the source of a library file."""
  if not isinstance(name, str):
    kind = type(name).__name__
    raise HarnessError(f'{path}: the name of a file is a text, not a {kind}')
  try:
    return library.source(name)
  except ValueError as error:
    raise HarnessError(f'{path}: {error}') from error


def _walk(root: pathlib.Path):
  """Yield all files below root except those of packaging.

  Raises:
    HarnessError: If one is a link, whose target could change unnoticed, or no
      file.
  """
  for path in root.iterdir():
    if path.name in _PACKAGING:
      continue
    if path.is_symlink():
      raise HarnessError(f'{path} is a symbolic link; a harness holds copies')
    if path.is_dir():
      yield from _walk(path)
    elif path.is_file():
      yield path
    else:  # Reading a pipe would block.
      raise HarnessError(f'{path} is neither a file nor a folder; take it out')


def _parse(path: pathlib.Path, text: str) -> dict[str, Any]:
  """Return the JSON object in a file of a harness."""
  try:
    return json_object(text)
  except HarnessError as error:
    raise HarnessError(f'{path} {error}') from error


def json_object(text: str) -> dict[str, Any]:
  """Return a JSON object, in which no key occurs twice.

  Raises:
    HarnessError: If it is anything else; the message follows a file's name.
  """

  def once(pairs):
    counts = collections.Counter(name for name, _ in pairs)
    if twice := sorted(name for name, count in counts.items() if count > 1):
      raise HarnessError(f'is ambiguous: {twice} occur twice; take one out')
    return dict(pairs)

  try:
    value = json.loads(text, object_pairs_hook=once)
  except HarnessError:
    raise
  except (ValueError, RecursionError) as error:  # Long numbers, deep lists.
    raise HarnessError(f'is not JSON: {error}') from error
  if not isinstance(value, dict):
    raise HarnessError(
        f'holds a {type(value).__name__}, not an object such as'
        ' {"optim.learning_rate": 1e-4}'
    )
  return value


def write(harness: Harness, root: str | os.PathLike[str]) -> pathlib.Path:
  """Write root/<sha256>/ atomically; an equal directory may already exist.

  Raises:
    HarnessError: If the directory exists with another content.
    durable.DiskError: If the disk is full.
  """
  root = pathlib.Path(root)
  target = root / harness.sha256
  if target.exists():
    load(root, harness.sha256)
    return target
  temporary = root / f'{harness.sha256}.{os.getpid()}.tmp'
  shutil.rmtree(temporary, ignore_errors=True)
  overlay = json.dumps(dict(harness.overlay), indent=2, sort_keys=True) + '\n'
  for name, text in {OVERLAY: overlay, **harness.files}.items():
    path = temporary / name
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.write_atomic(path, text.encode())
  try:
    os.rename(temporary, target)
  except OSError:  # Another process was first.
    shutil.rmtree(temporary)
    load(root, harness.sha256)
  durable.sync_directory(root)
  return target


def load(root: str | os.PathLike[str], sha256: str) -> Harness:
  """Read root/<sha256>/ and check that its content matches the hash.

  Raises:
    HarnessError: If it does not exist, or was changed.
  """
  path = pathlib.Path(root) / sha256
  harness = read(path)
  if harness.sha256 != sha256:
    raise HarnessError(
        f'{path} was changed: its content has the hash {harness.sha256};'
        ' restore it, or write what it holds under a new name'
    )
  return harness
