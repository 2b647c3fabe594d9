"""What a harness may change: config paths, their bounds and factor groups.

A factor is what one version may change: a path, a declared group of paths that
only make sense together, or one reward part (its weight and its code).
"""

from collections.abc import Mapping
import dataclasses
import math
import re
from typing import Any

import ml_collections

from evojax.harness import syntax

WEIGHTS = 'reward.weights.'
_NAMES = re.compile(r'[a-z][a-z0-9_]*(:\d+(-\d+)?)?')


class SurfaceError(ValueError):
  """An overlay leaves the surface; one line per value."""


@dataclasses.dataclass(frozen=True)
class Field:
  """One config path that a harness may set."""

  path: str
  kind: str  # float | int | choice | names.
  klass: str  # Intervention class, e.g. 'optimizer': what a trial is about.
  low: int | float = -math.inf  # Bounds of float and int, both allowed.
  high: int | float = math.inf
  off: int | float | None = (
      None  # A value outside the bounds that turns it off.
  )
  scale: str = 'linear'  # linear | log: how to step through it.
  choices: tuple[str, ...] = ()
  group: str = ''  # Factor group; '' is a factor of its own.
  compiles: bool = False  # A change means another compiled train step.
  end: str = ''  # Config path beyond whose value nothing more changes.

  def highest(self, config: Mapping[str, Any]) -> int | float:
    """Upper bound under a config's values by dotted path."""
    return min(self.high, config[self.end]) if self.end else self.high


FIELDS = (
    Field('optim.learning_rate', 'float', 'optimizer', 1e-6, 3e-3, scale='log'),
    Field('optim.warmup_steps', 'int', 'optimizer', 0, 100, end='steps'),
    Field(
        'optim.max_grad_norm',
        'float',
        'optimizer',
        0.01,
        10.0,
        off=0.0,
        scale='log',
    ),
    Field(
        'optim.weight_decay',
        'float',
        'regularisation',
        1e-4,
        0.3,
        off=0.0,
        scale='log',
    ),
    Field('grpo.clip_low', 'float', 'clip', 0.05, 0.5, group='clip'),
    Field('grpo.clip_high', 'float', 'clip', 0.05, 1.0, group='clip'),
    Field('grpo.dual_clip', 'float', 'clip', 2.0, 10.0, off=0.0),
    Field(
        'grpo.aggregation',
        'choice',
        'loss',
        choices=('sequence', 'token', 'constant'),
        compiles=True,
    ),
    Field(
        'grpo.advantage',
        'choice',
        'loss',
        choices=('group_norm', 'group_mean', 'leave_one_out'),
    ),
    Field(
        'grpo.ratio',
        'choice',
        'loss',
        choices=('token', 'sequence'),
        compiles=True,
    ),
    Field(
        'grpo.kl_coef',
        'float',
        'regularisation',
        1e-4,
        0.1,
        off=0.0,
        scale='log',
        compiles=True,  # From and to 0: the reference comes and goes.
    ),
    Field(
        'grpo.keep',
        'choice',
        'filter',
        choices=('all', 'reward_variance', 'outcome_variance'),
        group='filter',
    ),
    Field('grpo.refill_rounds', 'int', 'filter', 0, 4, group='filter'),
    Field('rollout.temperature', 'float', 'exploration', 0.5, 1.5),
    Field(
        'rollout.token_limit',
        'int',
        'length',
        1,
        2**20,
        off=0,
        scale='log',
        end='rollout.max_tokens',
    ),
    Field('data.families', 'names', 'data'),
)
_BY_PATH = {field.path: field for field in FIELDS}
GROUPS = {
    group: tuple(f.path for f in FIELDS if f.group == group)
    for group in ('clip', 'filter')
}


def field(path: str) -> Field:
  """The declaration of a path.

  Raises:
    SurfaceError: If no harness may set it.
  """
  if path in _BY_PATH:
    return _BY_PATH[path]
  part = path.removeprefix(WEIGHTS)
  if path.startswith(WEIGHTS) and syntax.PART.fullmatch(part):
    return Field(path, 'float', 'reward', -2.0, 2.0, group=f'reward:{part}')
  raise SurfaceError(
      f'{path} is not on the surface; a harness may set {WEIGHTS}<part>,'
      f' {", ".join(_BY_PATH)}'
  )


def factor(path: str) -> str:
  """'clip', 'filter', 'reward:<part>', or the path itself."""
  return field(path).group or path


def check(overlay: Mapping[str, Any]) -> None:
  """Checks paths and bounds.

  Raises:
    SurfaceError: Naming every value that does not fit, one line each.
  """
  problems = []
  for path, value in overlay.items():
    try:
      problems += _check_value(field(path), value)
    except SurfaceError as error:
      problems.append(str(error))
  weights = [value for path, value in overlay.items() if _is_weight(path)]
  if weights and not any(weights):
    problems.append(f'{WEIGHTS}*: every weight is 0, so every reward would be')
  if problems:
    raise SurfaceError('\n'.join(problems))


def _check_value(f: Field, value: Any) -> list[str]:
  """What is wrong with one value, in one line or none."""
  if f.kind == 'choice':
    if value not in f.choices:
      return [f'{f.path}={value!r}: choose one of {f.choices}']
  elif f.kind == 'names':
    names = value if isinstance(value, list | tuple) else (None,)
    if not all(isinstance(n, str) and _NAMES.fullmatch(n) for n in names):
      return [
          f"{f.path}={value!r}: must be a list of names such as 'gcd' or"
          " 'chain_sum:0-2'"
      ]
    if len(set(names)) != len(names):
      return [f'{f.path}={value!r}: names a family twice']
  else:
    number = not isinstance(value, bool) and isinstance(
        value, int | float if f.kind == 'float' else int
    )
    if f.kind == 'int' and isinstance(value, float):
      number = value.is_integer()
    if not number:
      return [f'{f.path}={value!r}: must be a number of type {f.kind}']
    if value != f.off and not f.low <= value <= f.high:
      off = '' if f.off is None else f' or be {f.off:g} (off)'
      return [f'{f.path}={value}: must lie in [{f.low:g}, {f.high:g}]{off}']
  return []


def _is_weight(path: str) -> bool:
  return path.startswith(WEIGHTS)


def value(
    config: ml_collections.ConfigDict, overlay: Mapping[str, Any], path: str
) -> Any:
  """What a path is under an overlay; the weight of an unnamed part is 0.

  Raises:
    SurfaceError: If the path is not on the surface.
  """
  field(path)
  if path in overlay:
    return overlay[path]
  if not _is_weight(path):
    node = config
    for name in path.split('.'):
      if name not in node:
        raise SurfaceError(f'{path}: the config has no such field')
      node = node[name]
    return node
  if any(map(_is_weight, overlay)):
    return 0.0
  return config.reward.weights.get(path.removeprefix(WEIGHTS), 0.0)


def apply(
    config: ml_collections.ConfigDict, overlay: Mapping[str, Any]
) -> ml_collections.ConfigDict:
  """A copy of the config with the overlay's values.

  Weights in the overlay replace those of the config: all of them, so that the
  reward is what the harness says.

  Raises:
    SurfaceError: If a value is out of bounds or the config lacks its field.
  """
  check(overlay)
  new = config.copy_and_resolve_references()
  weights = {}
  with new.unlocked():
    for path, item in overlay.items():
      if _is_weight(path):
        weights[path.removeprefix(WEIGHTS)] = float(item)
        continue
      *groups, name = path.split('.')
      node = new
      for group in groups:
        node = node.get(group, ml_collections.ConfigDict())
      if name not in node:
        raise SurfaceError(f'{path}: the config has no such field')
      kind = field(path).kind
      convert = {'float': float, 'int': int, 'names': tuple}.get(kind, str)
      node[name] = convert(item)
    if weights:
      new.reward.weights = ml_collections.ConfigDict(weights)
  if config.is_locked:
    new.lock()
  return new
