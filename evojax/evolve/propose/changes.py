"""Changes that interventions are made of: small functions of the context.

Each returns the parent with a change, or None where nothing would change.
"""

from collections.abc import Callable

from evojax.evolve import propose
from evojax.evolve import skills
from evojax.harness import library as shipped
from evojax.harness import spec
from evojax.harness import surface as surface_lib

Change = Callable[[propose.Context], spec.Harness | None]
# In coding: all tests are run and counted.
_PARTIAL = 'domain.kwargs.partial'


def set_values(**values: object) -> Change:
  """Set some paths, written with __ for the dot."""
  wanted = {path.replace('__', '.'): value for path, value in values.items()}

  def change(context: propose.Context) -> spec.Harness | None:
    if all(context.config.get(p) == value for p, value in wanted.items()):
      return None
    return context.parent.with_overlay(wanted)

  return change


def scale(path: str, factor: float) -> Change:
  """Multiply a value that is on, up to its bound."""

  def change(context: propose.Context) -> spec.Harness | None:
    current = context.config.get(path)
    # A value that is off, or that this config does not have, stays.
    return _moved(context, path, current * factor) if current else None

  return change


def shift(path: str, step: float) -> Change:
  """Add to a value, up to its bound."""
  return lambda context: _moved(context, path, context.config[path] + step)


def _moved(
    context: propose.Context, path: str, value: int | float
) -> spec.Harness | None:
  value = within(context, context.surface.field(path), value)
  if value == context.config[path]:
    return None
  return context.parent.with_overlay({path: value})


def turn_off(path: str) -> Change:
  """Set a value that is on to the one that turns it off."""

  def change(context: propose.Context) -> spec.Harness | None:
    off = context.surface.field(path).off
    if context.config.get(path) == off:
      return None
    return context.parent.with_overlay({path: off})

  return change


def warm_up(context: propose.Context) -> spec.Harness | None:
  """Warm up for a sixth of the arm, where it is less."""
  steps = round(context.config['steps'] / 6)
  if context.config['optim.warmup_steps'] >= steps:
    return None
  return context.parent.with_overlay({'optim.warmup_steps': steps})


def shorter_limit(context: propose.Context) -> spec.Harness | None:
  """Allow three quarters of the tokens that a completion may have."""
  limit = (
      context.config['rollout.token_limit']
      or context.config['rollout.max_tokens']
  )
  shorter = max(1, 3 * limit // 4)
  if shorter == limit:
    return None
  return context.parent.with_overlay({'rollout.token_limit': shorter})


def filter_and_refill(context: propose.Context) -> spec.Harness | None:
  """Drop groups of equal rewards and sample others, once."""
  if context.config['grpo.keep'] != 'all':
    return None
  return context.parent.with_overlay(
      {'grpo.keep': 'reward_variance', 'grpo.refill_rounds': 1}
  )


def within(
    context: propose.Context, field: surface_lib.Field, value: int | float
) -> int | float:
  """Return the nearest value inside the bounds, to three digits."""
  high = field.highest(context.config)
  return skills.round_value(field, min(max(value, field.low), high))


def give_weight(part: str, weight: float) -> Change:
  """Give a reward part a weight where it has none; add it if it is shipped."""

  def change(context: propose.Context) -> spec.Harness | None:
    path = surface_lib.WEIGHTS + part
    if context.config.get(path):
      return None
    after = skills.with_part(context.parent, part)
    return after and after.with_overlay({path: weight})

  return change


def shipped_file(name: str, path: str) -> Change:
  """Put a function of evojax/harness/library into the harness."""

  def change(context: propose.Context) -> spec.Harness | None:
    try:
      after = context.parent.with_file(name, shipped.source(path))
    except spec.HarnessError:  # It holds as many files as it may.
      return None
    return None if after.sha256 == context.parent.sha256 else after

  return change


def half_of_levels(harder: bool) -> Change:
  """Keep the harder or the easier half of every family's levels."""

  def change(context: propose.Context) -> spec.Harness | None:
    names = context.config.get('data.families') or context.config.get(
        'domain.kwargs.families', ()
    )
    halves = [_half(name, harder) for name in names]
    if None in halves or tuple(halves) == tuple(names):
      return None
    return context.parent.with_overlay({'data.families': tuple(halves)})

  return change


def _half(name: str, harder: bool) -> str | None:
  """Return 'gcd:2-3' or 'gcd:0-1' for 'gcd:0-3'; None without levels."""
  family, colon, levels = name.partition(':')
  if not colon:
    return None
  first, _, last = levels.partition('-')
  low, high = int(first), int(last or first)
  if low == high:
    return name
  middle = (low + high) // 2
  low, high = (middle + 1, high) if harder else (low, middle)
  return f'{family}:{low}' if low == high else f'{family}:{low}-{high}'


# ------------------------------------------------------------------ conditions


def if_off_policy(change: Change) -> Change:
  """Make a change only with several updates per rollout batch.

  With one update every ratio is exactly 1, so that no clip could matter.
  """

  def conditional(context: propose.Context) -> spec.Harness | None:
    updates = context.config['grpo.epochs'] * context.config['grpo.minibatches']
    return change(context) if updates > 1 else None

  return conditional


def if_shaped(change: Change) -> Change:
  """Make a change only if parts besides the outcome have a weight."""

  def conditional(context: propose.Context) -> spec.Harness | None:
    shaped = [
        path
        for path, weight in context.config.items()
        if surface_lib.is_weight(path)
        and path != f'{surface_lib.WEIGHTS}outcome'
        and weight
    ]
    return change(context) if shaped else None

  return conditional


def if_partial_credit(change: Change) -> Change:
  """Make a change only if the domain grades partly.

  Without partial credit the part would be the outcome once more.
  """

  def conditional(context: propose.Context) -> spec.Harness | None:
    return change(context) if context.config.get(_PARTIAL) else None

  return conditional
