"""Changes that make up interventions, and conditions for them."""

from collections.abc import Callable
import dataclasses
import re
from typing import Any

from evojax import domains
from evojax.evolve import propose
from evojax.evolve import skills
from evojax.harness import library as shipped
from evojax.harness import spec
from evojax.harness import surface as surface_lib

# The end of an inverted function, after the function itself as `_straight`.
_INVERSES = {
    'keep.py': '''

def keep(e, state):
  """bool [P, G]: what the function above drops."""
  kept, state = _straight(e, state)
  return ~kept, state
''',
    'weight.py': '''

def weight(e):
  """float32 [P, G, A]: the credit above, mirrored at 1."""
  return np.maximum(2 - _straight(e), 0)
''',
}


@dataclasses.dataclass(frozen=True)
class Change:
  """A change of one path."""

  path: str  # A config value, or a file of the harness.
  # Returns the parent with the change, or None if nothing would change.
  apply: Callable[[propose.Context], spec.Harness | None]

  def factor(self, surface: surface_lib.Surface) -> str:
    """Return the name of the changed factor, as `harness.delta` gives it."""
    stem = self.path.removesuffix('.py')
    return surface.factor(self.path) if stem == self.path else stem


def _value(path: str, choose: Callable[[propose.Context, Any], Any]) -> Change:
  """Return a change that sets a path to a function of its value."""
  return Change(path, lambda context: _changed(context, path, choose))


def _changed(
    context: propose.Context,
    path: str,
    choose: Callable[[propose.Context, Any], Any],
) -> spec.Harness | None:
  old = context.config.get(path)
  new = choose(context, old)
  # `rules` discards a change that makes no difference.
  return None if new == old else context.parent.with_overlay({path: new})


def set_value(path: str, value: Any) -> Change:
  """Return a change that sets a path."""
  return _value(path, lambda context, old: value)


def scale(path: str, factor: float) -> Change:
  """Return a change that multiplies a value, clipped to its bounds."""
  # A value that is off, or missing from this config, stays.
  return _value(
      path, lambda context, old: old and within(context, path, old * factor)
  )


def shift(path: str, step: float) -> Change:
  """Return a change that adds to a value, clipped to its bounds."""
  return _value(path, lambda context, old: within(context, path, old + step))


def warm_up() -> Change:
  """Return a change to warm up for a sixth of the arm, if it is less now."""

  def choose(context: propose.Context, old: int) -> int:
    # A warm-up of one update begins and ends at the whole learning rate.
    return max(old, round(context.config['steps'] / 6), 2)

  return _value('optim.warmup_steps', choose)


def shorter_limit() -> Change:
  """Return a change to three quarters of a completion's token limit."""

  def choose(context: propose.Context, old: int) -> int:
    limit = old or context.config['rollout.max_tokens']
    return 3 * limit // 4 or old

  return _value('rollout.token_limit', choose)


def filter_and_refill() -> Change:
  """Return a change to drop groups of equal rewards and refill once."""
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
  """Return a change that weights a reward part, and adds a shipped one."""
  path = surface_lib.WEIGHTS + part

  def apply(context: propose.Context) -> spec.Harness | None:
    if context.config.get(path):
      return None
    after = skills.with_part(context.parent, part)
    return after and after.with_overlay({path: weight})

  return Change(path, apply)


def shipped_file(source: str) -> Change:
  """Return a change that adds a function of evojax/harness/library."""
  name = f'{source.partition("/")[0]}.py'

  def apply(context: propose.Context) -> spec.Harness | None:
    try:
      after = context.parent.with_file(name, shipped.source(source))
    except spec.HarnessError:  # It has the maximum number of files.
      return None
    return None if after == context.parent else after

  return Change(name, apply)


def without_file(name: str) -> Change:
  """Return a change that removes a function from the harness."""

  def apply(context: propose.Context) -> spec.Harness | None:
    if name not in context.parent.files:
      return None
    files = {k: v for k, v in context.parent.files.items() if k != name}
    return spec.Harness(context.parent.overlay, files)

  return Change(name, apply)


def original_file(name: str) -> Change:
  """Return a change that restores the domain's own function, if it has one."""

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
    # Reward parts that the domain's own function lacks lose their weight.
    gone = {
        path: None
        for path in context.parent.overlay
        if surface_lib.is_weight(path)
        and repr(path.removeprefix(surface_lib.WEIGHTS)) not in text
    }
    return context.parent.with_file(name, text).with_overlay(gone)

  return Change(name, apply)


def with_name(path: str, name: str) -> Change:
  """Return a change that adds a name to a list, in the order of its choices."""

  def choose(context: propose.Context, old: tuple[str, ...]) -> Any:
    choices = context.surface.field(path).choices
    if name not in choices or old is None:
      return old
    return tuple(n for n in choices if n in old or n == name)

  return _value(path, choose)


def inverted_file(name: str) -> Change:
  """Return a change that inverts a filter or a credit function.

  An inverted filter keeps the groups that it dropped. An inverted credit is
  mirrored at 1, the credit without a function, down to 0. A second inversion
  restores the first function.
  """
  function, tail = name.removesuffix('.py'), _INVERSES[name]

  def apply(context: propose.Context) -> spec.Harness | None:
    text = context.parent.files.get(name, '')
    if not re.search(rf'^def {function}\(', text, re.MULTILINE):
      return None
    if 'np.' in tail and 'import numpy as np' not in text:
      return None
    if text.endswith(tail):
      straight = text.removesuffix(tail)
      new = straight.replace('def _straight(', f'def {function}(')
    else:
      new = re.sub(
          rf'^def {function}\(', 'def _straight(', text, flags=re.MULTILINE
      )
      new = f'{new.rstrip()}\n{tail}'
    return context.parent.with_file(name, new)

  return Change(name, apply)


# ------------------------------------------------------------------ conditions


def off_policy(context: propose.Context) -> bool:
  """Return whether a rollout batch is used for several updates.

  With a single update every ratio is exactly 1, so clipping has no effect.
  """
  return context.config['grpo.epochs'] * context.config['grpo.minibatches'] > 1


def shaped(context: propose.Context) -> bool:
  """Return whether reward parts besides the outcome have a weight."""
  outcome = f'{surface_lib.WEIGHTS}outcome'
  return any(
      weight and surface_lib.is_weight(path) and path != outcome
      for path, weight in context.config.items()
  )


def has_turns(context: propose.Context) -> bool:
  """Return whether tools may answer the policy within an episode."""
  return context.config.get('domain.kwargs.max_turns', 1) > 1


def grades_partly(context: propose.Context) -> bool:
  """Return whether coding runs and counts all tests of a program.

  Without partial credit the part would equal the outcome.
  """
  return bool(context.config.get('domain.kwargs.partial'))
