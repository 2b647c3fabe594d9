"""Changes that interventions are made of, and conditions for them."""

from collections.abc import Callable
import dataclasses
from typing import Any

from evojax import domains
from evojax.evolve import propose
from evojax.evolve import skills
from evojax.harness import library as shipped
from evojax.harness import spec
from evojax.harness import surface as surface_lib


@dataclasses.dataclass(frozen=True)
class Change:
  """A change of one path."""

  path: str  # A config value, or a file of the harness.
  # Returns the parent with the change, or None where nothing would change.
  apply: Callable[[propose.Context], spec.Harness | None]

  def factor(self, surface: surface_lib.Surface) -> str:
    """Return what it changes, as `harness.delta` names it."""
    stem = self.path.removesuffix('.py')
    return surface.factor(self.path) if stem == self.path else stem


def _value(path: str, choose: Callable[[propose.Context, Any], Any]) -> Change:
  """Set a path to what is chosen, given its value."""

  def apply(context: propose.Context) -> spec.Harness | None:
    old = context.config.get(path)
    new = choose(context, old)
    # `rules` takes no change that changes nothing.
    return None if new == old else context.parent.with_overlay({path: new})

  return Change(path, apply)


def set_value(path: str, value: Any) -> Change:
  """Set a path."""
  return _value(path, lambda context, old: value)


def scale(path: str, factor: float) -> Change:
  """Multiply a value, up to its bound."""
  # A value that is off, or that this config does not have, stays.
  return _value(
      path, lambda context, old: old and within(context, path, old * factor)
  )


def shift(path: str, step: float) -> Change:
  """Add to a value, up to its bound."""
  return _value(path, lambda context, old: within(context, path, old + step))


def warm_up() -> Change:
  """Warm up for a sixth of the arm, where it is less."""
  return _value(
      'optim.warmup_steps',
      lambda context, old: max(old, round(context.config['steps'] / 6)),
  )


def shorter_limit() -> Change:
  """Allow three quarters of the tokens that a completion may have."""

  def choose(context: propose.Context, old: int) -> int:
    limit = old or context.config['rollout.max_tokens']
    return 3 * limit // 4 or old

  return _value('rollout.token_limit', choose)


def filter_and_refill() -> Change:
  """Drop groups of equal rewards and sample others, once."""
  values = {'grpo.keep': 'reward_variance', 'grpo.refill_rounds': 1}

  def apply(context: propose.Context) -> spec.Harness | None:
    if context.config['grpo.keep'] != 'all':
      return None
    return context.parent.with_overlay(values)

  return Change('grpo.keep', apply)


def within(
    context: propose.Context, path: str, value: int | float
) -> int | float:
  """Return the nearest value inside the bounds, to three digits."""
  field = context.surface.field(path)
  high = field.highest(context.config)
  return skills.round_value(field, min(max(value, field.low), high))


def give_weight(part: str, weight: float) -> Change:
  """Give a reward part a weight where it has none; add it if it is shipped."""
  path = surface_lib.WEIGHTS + part

  def apply(context: propose.Context) -> spec.Harness | None:
    if context.config.get(path):
      return None
    after = skills.with_part(context.parent, part)
    return after and after.with_overlay({path: weight})

  return Change(path, apply)


def shipped_file(source: str) -> Change:
  """Put a function of evojax/harness/library into the harness."""
  name = f'{source.partition("/")[0]}.py'

  def apply(context: propose.Context) -> spec.Harness | None:
    try:
      after = context.parent.with_file(name, shipped.source(source))
    except spec.HarnessError:  # It holds as many files as it may.
      return None
    return None if after == context.parent else after

  return Change(name, apply)


def without_file(name: str) -> Change:
  """Take a function out of the harness."""

  def apply(context: propose.Context) -> spec.Harness | None:
    if name not in context.parent.files:
      return None
    files = {k: v for k, v in context.parent.files.items() if k != name}
    return spec.Harness(context.parent.overlay, files)

  return Change(name, apply)


def original_file(name: str) -> Change:
  """Put the domain's own function back, or none where it has none."""

  def apply(context: propose.Context) -> spec.Harness | None:
    if context.domain not in domains.DOMAINS:
      return None
    folder = domains.folder(context.domain) / 'seed_harness'
    if not folder.is_dir():
      return None
    seed = spec.read(folder)
    if (text := seed.files.get(name)) is None:
      return without_file(name).apply(context)
    if text == context.parent.files.get(name):
      return None
    # Parts of the reward that the domain's own does not have lose their weight.
    gone = {
        path: None
        for path in context.parent.overlay
        if surface_lib.is_weight(path)
        and repr(path.removeprefix(surface_lib.WEIGHTS)) not in text
    }
    return context.parent.with_file(name, text).with_overlay(gone)

  return Change(name, apply)


def half_of_levels(harder: bool) -> Change:
  """Keep the harder or the easier half of every family's levels."""

  def choose(context: propose.Context, old: tuple[str, ...]) -> Any:
    names = old or context.config.get('domain.kwargs.families', ())
    halves = tuple(_half(name, harder) for name in names)
    return old if None in halves or halves == tuple(names) else halves

  return _value('data.families', choose)


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


def off_policy(context: propose.Context) -> bool:
  """Return whether a rollout batch has several updates.

  With one update every ratio is exactly 1, so that no clip could matter.
  """
  return context.config['grpo.epochs'] * context.config['grpo.minibatches'] > 1


def shaped(context: propose.Context) -> bool:
  """Return whether parts besides the outcome have a weight."""
  outcome = f'{surface_lib.WEIGHTS}outcome'
  return any(
      weight and surface_lib.is_weight(path) and path != outcome
      for path, weight in context.config.items()
  )


def grades_partly(context: propose.Context) -> bool:
  """Return whether all tests of a program are run and counted, in coding.

  Without partial credit the part would be the outcome once more.
  """
  return bool(context.config.get('domain.kwargs.partial'))
