"""The harnesses of a table: a 2^(6-2) fractional factorial design.

There are six factors with two levels. Each of the factors A to D has a bit in a
harness's number; E = ABC and F = BCD are aliased with them, so that 16
harnesses separate main effects from each other and from pairs (resolution IV;
Box and Hunter 1961, Technometrics 3:311). In harness 0, all factors are at the
seed's level. In a setting of `benchmarks.faults`, A repairs the planted fault;
in a sound setting, which has the name of a domain, it is a weak KL term.
"""

from collections.abc import Mapping
import dataclasses
import importlib
from typing import Any

import ml_collections

from benchmarks.faults import settings as settings_lib
from benchmarks.searchers import racing
from evojax import domains
from evojax.harness import delta
from evojax.harness import spec
from evojax.harness import surface as surface_lib

SETTINGS = ('math_brevity_paid', 'math', 'coding_limit_half', 'coding')
BITS = 4  # Factors with a bit of their own.
_RATE = 'optim.learning_rate'
_FASTER = 3.0
_OWN: tuple[Mapping[str, Any], ...] = (  # B to F; the rate is in `harness`.
    {_RATE: None},
    {'rollout.temperature': 0.8},
    {'grpo.keep': 'reward_variance', 'grpo.refill_rounds': 1},
    {'grpo.aggregation': 'token'},
    {'reward.weights.overlong': 0.5},
)
_WEAK_KL = {'grpo.kl_coef': 0.01}


@dataclasses.dataclass(frozen=True)
class Design:
  """A setting with the harnesses of its table."""

  name: str
  fault: settings_lib.Setting | None  # None: a sound setting.

  @property
  def changes(self) -> racing.Changes:
    """The intervention classes of the factors A to D."""
    surface = surface_lib.recipe()
    paths = [_WEAK_KL, *_OWN][:BITS]
    classes = [
        sorted({delta.class_of(surface.factor(path), surface) for path in of})
        for of in paths
    ]
    if self.fault:
      classes[0] = list(self.fault.causes)
    return racing.Changes(classes)

  def recipe(
      self, number: int
  ) -> tuple[ml_collections.ConfigDict, spec.Harness]:
    """Return config and harness for a number; the config lacks harness.path.

    Raises:
      ValueError: If there is no such number.
    """
    if not 0 <= number < 1 << BITS:
      raise ValueError(f'{number=}: a table has harnesses 0 to {2**BITS - 1}')
    a, b, c, d = (number >> k & 1 for k in range(BITS))
    if self.fault:
      planted = not a
      config = (settings_lib.clean, settings_lib.planted)[planted](self.fault)
      found = settings_lib.harness(self.fault) if planted else _seed(config)
    else:
      config = importlib.import_module(f'configs.{self.name}').get_config()
      found = _seed(config)
      found = found.with_overlay(_WEAK_KL) if a else found
    for level, values in zip(
        (b, c, d, a ^ b ^ c, b ^ c ^ d), _OWN, strict=True
    ):
      if level and _RATE in values:
        values = {
            _RATE: _FASTER
            * found.overlay.get(_RATE, config.optim.learning_rate)
        }
      found = found.with_overlay(values) if level else found
    return config, found


def _seed(config: ml_collections.ConfigDict) -> spec.Harness:
  return spec.read(domains.folder(config.domain.name) / 'seed_harness')


def read(name: str) -> Design:
  """Return the design for a domain, or for a shipped broken setting.

  Raises:
    ValueError: If none has this name, the setting is not a broken one, or it
      plants a value that another factor changes.
  """
  if name in domains.DOMAINS:
    return Design(name, None)
  folder = settings_lib.FOLDER / name
  if not (folder / settings_lib.FILE).exists():
    raise ValueError(
        f'{name!r} is none of {tuple(domains.DOMAINS)}, and {folder} is no'
        ' setting'
    )
  fault = settings_lib.read(folder)
  if fault.kind != 'broken':
    raise ValueError(f'{name}: {fault.kind}; only what is broken has a repair')
  others = {path for values in _OWN for path in values}
  if twice := sorted(others & set(fault.config)):
    raise ValueError(f'{name} plants {twice}, which another factor changes')
  if any((folder / 'harness').glob('keep.py')):
    raise ValueError(f'{name} plants a filter, which another factor changes')
  return Design(name, fault)
