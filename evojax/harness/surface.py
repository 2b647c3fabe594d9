"""The surface: config values that a harness may change, with their bounds.

A factor is what one version may change: a path, a declared group of paths that
only make sense together, or one reward part (its weight and its code).
"""

from collections.abc import Iterable, Mapping
import dataclasses
import functools
import re
from typing import Any

import ml_collections

from evojax import config as config_lib
from evojax.harness import parts as parts_lib

WEIGHTS = 'reward.weights.'
KWARGS = 'domain.kwargs.'
_NAMES = re.compile(r'[a-z][a-z0-9_]*(:\d+(-\d+)?)?')


class SurfaceError(ValueError):
  """An overlay does not fit the surface; the message has a line per value."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Field(config_lib.Tunable):
  """One config path that a harness may set."""

  path: str
  kind: str  # float | int | choice | names (a tuple of at least `low`).
  choices: tuple[Any, ...] = ()  # Allowed values, or allowed names.

  def convert(self, value: Any) -> Any:
    """Return a valid value in the type that the config holds."""
    if self.kind == 'choice':
      return self.choices[self.choices.index(value)]
    return {'float': float, 'int': int, 'names': tuple}[self.kind](value)

  def problem(self, value: Any) -> str:
    """Return what is wrong with a value; '' if nothing is."""
    if self.kind == 'choice':
      return '' if value in self.choices else f'choose one of {self.choices}'
    if self.kind == 'names':
      names = value if isinstance(value, list | tuple) else (None,)
      if not all(isinstance(n, str) and _NAMES.fullmatch(n) for n in names):
        return "must be a list of names such as 'gcd' or 'chain_sum:0-2'"
      if len(set(names)) != len(names):
        return 'has a name twice'
      if len(names) < self.low:
        return f'must have at least {self.low:g} name'
      known = not self.choices or set(names) <= set(self.choices)
      return '' if known else f'choose among {self.choices}'
    # 5.0 is allowed as an int, since JSON may write it so; True is no number.
    number = not isinstance(value, bool) and isinstance(value, int | float)
    if self.kind == 'int' and isinstance(value, float):
      number = value.is_integer()
    if not number:
      return f'must be a number of type {self.kind}'
    if value == self.off or self.low <= value <= self.high:
      return ''
    off = '' if self.off is None else f' or be {self.off:g} (off)'
    return f'must lie in [{self.low:g}, {self.high:g}]{off}'


@dataclasses.dataclass(frozen=True)
class Surface:
  """The fields that harnesses of a run may change, and rules between them.

  A field whose path ends in '.*' stands for a family: 'reward.weights.*' is the
  weight of any reward part, and a '*' in its factor group is the part's name.
  """

  fields: tuple[Field, ...]

  @functools.cached_property
  def _by_path(self) -> dict[str, Field]:
    return {field.path: field for field in self.fields}

  def field(self, path: str) -> Field:
    """Return the declaration of a path.

    Raises:
      SurfaceError: If no harness may set it.
    """
    if path in self._by_path and not path.endswith('*'):
      return self._by_path[path]
    family, _, name = path.rpartition('.')
    found = self._by_path.get(f'{family}.*')
    if found and parts_lib.PART.fullmatch(name):
      group = found.group.replace('*', name)
      return dataclasses.replace(found, path=path, group=group)
    listed = ', '.join(self._by_path)
    text = f'is not on the surface; a harness may set {listed}'
    raise SurfaceError(f'{path} {text}')

  def factor(self, path: str) -> str:
    """Return the factor of a path: its group's name, or the path itself."""
    return self.field(path).group or path

  def factors(self, parts: Iterable[str] = ()) -> dict[str, tuple[Field, ...]]:
    """Return the fields of every factor, including the given reward parts."""
    grouped: dict[str, list[Field]] = {}
    for declared in self.fields:
      family, star, _ = declared.path.partition('*')
      paths = [family + part for part in parts] if star else [family]
      for field in map(self.field, paths):
        grouped.setdefault(field.group or field.path, []).append(field)
    return {factor: tuple(fields) for factor, fields in grouped.items()}

  def check(self, overlay: Mapping[str, Any]) -> None:
    """Check paths and bounds.

    Raises:
      SurfaceError: If values are invalid; the message has one line for each.
    """
    problems = []
    for path, value in overlay.items():
      try:
        if problem := self.field(path).problem(value):
          problems.append(f'{path}={value!r}: {problem}')
      except SurfaceError as error:
        problems.append(str(error))
    weights = [value for path, value in overlay.items() if is_weight(path)]
    if weights and not any(weights):
      text = 'every weight is 0, so every reward would be'
      problems.append(f'{WEIGHTS}*: {text}')
    if problems:
      raise SurfaceError('\n'.join(problems))

  def value(
      self,
      config: ml_collections.ConfigDict,
      overlay: Mapping[str, Any],
      path: str,
  ) -> Any:
    """Return a path's value under an overlay; 0 for an unnamed reward part.

    Raises:
      SurfaceError: If the path is not on the surface.
    """
    self.field(path)
    if path in overlay:
      return overlay[path]
    if not is_weight(path):
      group, name = _find(config, path)
      return group[name]
    if any(map(is_weight, overlay)):
      return 0.0
    return config.reward.weights.get(path.removeprefix(WEIGHTS), 0.0)

  def apply(
      self, config: ml_collections.ConfigDict, overlay: Mapping[str, Any]
  ) -> ml_collections.ConfigDict:
    """Return a locked copy of the config with the overlay's values.

    If the overlay has weights, they replace all weights of the config, so that
    the harness defines the reward completely.

    Raises:
      SurfaceError: If a value is out of bounds or the config lacks its field.
    """
    self.check(overlay)
    values, weights = {}, {}
    for path, value in overlay.items():
      value = self.field(path).convert(value)
      if is_weight(path):
        weights[path.removeprefix(WEIGHTS)] = value
      else:
        _find(config, path)
        values[path] = value
    if weights:
      values[WEIGHTS.rstrip('.')] = weights
    return config_lib.with_fields(config, values)


def is_weight(path: str) -> bool:
  """Return whether a path is the weight of a reward part."""
  return path.startswith(WEIGHTS)


def _find(
    config: ml_collections.ConfigDict, path: str
) -> tuple[ml_collections.ConfigDict, str]:
  """Return the group of a path in a config, and the name in this group."""
  *groups, name = path.split('.')
  for group in groups:
    config = config.get(group, ml_collections.ConfigDict())
  if name not in config:
    raise SurfaceError(f'{path}: the config has no such field')
  return config, name


def recipe(extra: Iterable[Field] = ()) -> Surface:
  """Return the surface of a run: the config's fields and the domain's own.

  Args:
    extra: `surface_fields` of the domain. They lie below `domain.kwargs.`: they
      are arguments for the domain of the training problems.

  Raises:
    SurfaceError: If an extra field lies elsewhere, where it could let a harness
      influence its own score.
  """
  extra = tuple(extra)
  for field in extra:
    if not field.path.startswith(KWARGS):
      raise SurfaceError(
          f'{field.path} is a surface field of the domain, but does not begin'
          f' with {KWARGS}'
      )
  declared = [_field(f) for f in config_lib.FIELDS if f.tunable]
  return Surface((*declared, *extra))


def _field(declared: config_lib.Field) -> Field:
  """Return a config field as a field of the surface."""
  family = isinstance(declared.default, dict)
  if declared.choices:
    kind = 'choice'
  elif isinstance(declared.default, tuple):
    kind = 'names'
  else:
    kind = 'int' if type(declared.default) is int else 'float'
  return Field(
      **vars(declared.tunable),
      path=f'{declared.path}.*' if family else declared.path,
      kind=kind,
      choices=declared.choices,
  )
