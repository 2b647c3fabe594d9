"""The one factor in which two harnesses differ.

A version changes exactly one thing: one config value or declared group, one
reward part (weight and code together), the filter, the credit, one diagnostic
or one backtest. The factor is found from the overlays and the syntax trees;
what a proposer claims to have changed does not count.
"""

from collections.abc import Iterator, Mapping
import dataclasses
import functools
import hashlib
import json
from typing import Any

from evojax.harness import parts as parts_lib
from evojax.harness import spec
from evojax.harness import surface as surface_lib
from evojax.harness import syntax

# Intervention classes of functions; the surface has those of config values.
_OF_FUNCTIONS = {
    'reward': 'reward',
    'keep': 'filter',
    'weight': 'credit',
    'diagnostic': 'measurement',
    'backtest': 'measurement',
}

# (path, before, after): JSON values of the overlay (None: unset), or the first
# digits of the source's hash and the kind of change.
Change = tuple[str, Any, Any]


class DeltaError(ValueError):
  """Two harnesses differ in no factor, or in more than one.

  Attributes:
    factors: Names of the factors, sorted.
  """

  def __init__(self, message: str, factors: tuple[str, ...] = ()):
    super().__init__(message)
    self.factors = factors


def intervention_classes(surface: surface_lib.Surface) -> frozenset[str]:
  """Return the classes of all changes that could lead to another policy."""
  classes = {field.intervention_class for field in surface.fields}
  return frozenset(classes | set(_OF_FUNCTIONS.values())) - {'measurement'}


def class_of(factor: str, surface: surface_lib.Surface) -> str:
  """Return the intervention class of a factor; '' if nothing may set it."""
  found = _OF_FUNCTIONS.get(factor.partition(':')[0], '')
  fields = surface.factors().get(factor)
  return found or (fields[0].intervention_class if fields else '')


@dataclasses.dataclass(frozen=True)
class Delta:
  """A change of one factor."""

  factor: str  # 'clip', 'optim.learning_rate', 'reward:overlong', 'keep', ...
  kind: str  # recipe (a value) | harness (a function, a reward part).
  intervention_class: str  # See surface.Field.
  changes: tuple[Change, ...]
  before: str  # sha256 of the harness before.
  after: str  # sha256 of the harness after.
  # (path, hash of what the source computes afterwards); '' if it was removed.
  sources: tuple[tuple[str, str], ...] = ()

  @property
  def trains(self) -> bool:
    """False if the change cannot alter any policy."""
    return not self.factor.startswith(('diagnostic:', 'backtest:'))

  @functools.cached_property
  def sha256(self) -> str:
    """Hash of the factor and its new content, the same on any parent."""
    named = dict(self.sources)
    values = {
        path: spec.as_float(after)
        for path, _, after in self.changes
        if path not in named
    }
    text = json.dumps([self.factor, values, named], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()

  def __str__(self) -> str:
    return _describe(self.factor, self.changes)


def diff(
    before: spec.Harness,
    after: spec.Harness,
    surface: surface_lib.Surface,
    current: Mapping[str, Any] | None = None,
) -> Delta:
  """Return the single factor in which `after` differs from `before`.

  Args:
    before: The parent.
    after: The candidate.
    surface: The values that either may set.
    current: Values of the run's config by dotted path (`config.flatten`), used
      for paths that an overlay does not name.

  Raises:
    DeltaError: If they differ in no factor, or in more than one (it names all),
      or if a source cannot be compared.
    surface.SurfaceError: If an overlay names a path that is not on the surface.
  """
  try:
    found = _overlay_changes(before, after, surface, current or {})
    sources = list(_source_changes(before, after))
  except syntax.SourceError as error:
    raise DeltaError(str(error)) from error
  hashes: dict[str, list[tuple[str, str]]] = {}
  for factor, path, old, new in sources:
    done = 'source changed' if old and new else 'source added'
    change = (path, old[:12] or None, done if new else 'source removed')
    found.setdefault(factor, []).append(change)
    hashes.setdefault(factor, []).append((path, new))
  if not found:
    if before.sha256 == after.sha256:
      raise DeltaError('no factor: the two harnesses are the same')
    only = 'comments, formatting or values that the config has anyway'
    raise DeltaError(f'no factor: only {only} differ')
  if len(found) > 1:
    *most, last = (_describe(f, found[f]) for f in sorted(found))
    listed = f'{", ".join(most)} and {last}'
    count = {2: 'two', 3: 'three'}.get(len(found), str(len(found)))
    raise DeltaError(
        f'{count} factors: {listed}; propose them one after the other',
        tuple(sorted(found)),
    )
  ((factor, changes),) = found.items()
  of_function = _OF_FUNCTIONS.get(factor.partition(':')[0])
  field = None if of_function else surface.field(changes[0][0])
  return Delta(
      factor=factor,
      kind='recipe' if field else 'harness',
      intervention_class=field.intervention_class if field else of_function,
      changes=tuple(changes),
      before=before.sha256,
      after=after.sha256,
      sources=tuple(hashes.get(factor, ())),
  )


def _overlay_changes(
    before: spec.Harness,
    after: spec.Harness,
    surface: surface_lib.Surface,
    current: Mapping[str, Any],
) -> dict[str, list[Change]]:
  """Return the changed values of every factor."""
  paths = {*before.overlay, *after.overlay}
  # Weights of the config count unless an overlay has some.
  paths |= set(filter(surface_lib.is_weight, current))
  found: dict[str, list[Change]] = {}
  for path in sorted(paths):
    old = _effective(path, before.overlay, current)
    new = _effective(path, after.overlay, current)
    if old != new:
      found.setdefault(surface.factor(path), []).append((path, old, new))
  return found


def _effective(
    path: str, overlay: Mapping[str, Any], current: Mapping[str, Any]
) -> Any:
  """Return a value under an overlay; see `Surface.apply`."""
  if surface_lib.is_weight(path):  # A part that is not named has weight 0.
    named = any(map(surface_lib.is_weight, overlay))
    return (overlay if named else current).get(path) or 0.0
  value = overlay.get(path, current.get(path))
  return tuple(value) if isinstance(value, list) else value


def _source_changes(
    before: spec.Harness, after: spec.Harness
) -> Iterator[tuple[str, str, str, str]]:
  """Yield (factor, path, hash before, hash after) of changed sources.

  If only comments or formatting differ, the hashes are equal and nothing is
  yielded; '' is the hash of a missing source.
  """
  for name in sorted({*before.files, *after.files}):
    texts = before.files.get(name, ''), after.files.get(name, '')
    if texts[0] == texts[1]:
      continue
    old, new = (_hashes(name, text) if text else {} for text in texts)
    for factor in sorted({*old, *new}):
      a, b = old.get(factor, ''), new.get(factor, '')
      if a != b:
        part = factor.removeprefix('reward:')
        path = f'{name}:{part}' if name == 'reward.py' else name
        yield factor, path, a, b


def _hashes(name: str, source: str) -> dict[str, str]:
  """Return the factors in a file, each with the hash of what it computes."""
  if name == 'reward.py':
    return {f'reward:{part}': h for part, h in parts_lib.hashes(source).items()}
  folder, _, stem = name.removesuffix('.py').rpartition('/')
  factor = f'{folder.removesuffix("s")}:{stem}' if folder else stem
  return {factor: syntax.fingerprint(name, source)}


def _describe(factor: str, changes) -> str:
  """Return the change in one line: 'clip (clip_low 0.2 -> 0.1, ...)'."""
  texts = []
  for path, old, new in changes:
    if path.partition(':')[0].endswith('.py'):
      texts.append(new)
    else:
      named = path in factor or factor.startswith('reward:')
      name = '' if named else f'{path.rpartition(".")[2]} '
      texts.append(f'{name}{_text(old)} -> {_text(new)}')
  return f'{factor} ({", ".join(texts)})'


def _text(value: Any) -> str:
  if value is None:
    return 'unset'
  return f'{value:g}' if isinstance(value, float) else str(value)
