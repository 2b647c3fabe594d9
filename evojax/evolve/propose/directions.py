"""Changes of every field of the surface, in both directions.

The library holds what the literature recommends. A run may be broken in ways
that no paper covers: a penalty too strong, a warm-up longer than the run, a
filter that drops everything, a tool that is missing. So each value can also be
raised, lowered, turned off, inverted or reset to its default, each name can be
added or left out, and each function can be inverted or removed.
"""

from collections.abc import Iterator
import functools
from typing import Any

from evojax import config as config_lib
from evojax.evolve import propose
from evojax.evolve.propose import changes
from evojax.evolve.propose import library
from evojax.evolve.propose import slices
from evojax.harness import parts as parts_lib
from evojax.harness import surface as surface_lib

# Expected effects. Most changes of a chosen value do harm, but a value that is
# not the default may itself be the fault.
_EITHER, _BACK = (-0.05, 0.01), (-0.04, 0.10)
_STEP = 3.0  # Factor for values on a log scale.
_PART = 0.25  # Share of the range of values on a linear scale.
_PAID = 0.1  # Weight of a part of the reward that has none.
_OUTCOME = surface_lib.WEIGHTS + 'outcome'
_FILES = {'keep.py': 'filter', 'weight.py': 'credit'}
_SOURCE = 'evojax: the surface in both directions'

# Alerts that call for a change of an intervention class.
_SIGNAL = ('weak_signal', 'dead_group_ratio', 'reward_spread')
_CERTAIN = ('exploration_collapse', 'mean_logprob')
_LENGTH = ('truncated', 'length_gaming', 'length_reward_corr')
_WRONG = ('slow_learning', 'outcome_falling')
_AGENTS = ('failed_calls', 'edits', 'repeated_calls', 'solution_diversity')
_CALLED = {
    'optimizer': _WRONG,
    'regularisation': (*_WRONG, *_CERTAIN),
    'clip': (*_WRONG, *_CERTAIN),
    'loss': (*_WRONG, *_LENGTH),
    'filter': (*_WRONG, *_SIGNAL, 'alive_by_shaping'),
    'credit': (*_WRONG, *_LENGTH),
    'exploration': (*_WRONG, *_CERTAIN, *_SIGNAL),
    'length': (*_WRONG, *_LENGTH),
    'data': (*_WRONG, *_SIGNAL, 'too_hard', 'too_easy'),
    'tools': (*_WRONG, *_AGENTS),
    'reward': (
        *(*_WRONG, *_SIGNAL, *_LENGTH),
        *('reward_hacking', 'alive_by_shaping', 'format_failures'),
    ),
}


def entries(context: propose.Context) -> Iterator[library.Entry]:
  """Yield the single changes that can be made to a harness."""
  for field in _fields(context):
    old = context.config.get(field.path, 0.0)  # A part may have no weight.
    for what, value in _values(context, field, old):
      # A missing tool, like a value that was changed, may be the fault.
      added = field.choices and field.kind == 'names' and len(value) > len(old)
      back = what == 'back to its default' or added
      yield library.Entry(
          triggers=_CALLED.get(field.intervention_class, _WRONG),
          change=changes.set_value(field.path, value),
          # Clipping has no effect with one update per rollout batch.
          when=changes.off_policy
          if field.intervention_class == 'clip'
          else lambda context: True,
          expected=_BACK if back else _EITHER,
          hypothesis=f'{field.path}={old!r} may be at fault; tried: {what}.',
          source=_SOURCE,
      )
  for name, class_ in _FILES.items():
    if name in context.parent.files:
      yield library.Entry(
          triggers=_CALLED[class_],
          change=changes.without_file(name),
          expected=_BACK,
          hypothesis=f'{name} may be at fault: the run goes on without it.',
          source=_SOURCE,
      )
      yield library.Entry(
          triggers=_CALLED[class_],
          change=changes.inverted_file(name),
          expected=_EITHER,
          hypothesis=f'{name} may be the wrong way round: the run inverts it.',
          source=_SOURCE,
      )
  if context.config.get('data.families'):
    yield library.Entry(
        triggers=_CALLED['data'],
        change=slices.other_families(),
        expected=_EITHER,
        hypothesis='The problems that are left out are the right ones.',
        source=_SOURCE,
    )


def _fields(context: propose.Context) -> Iterator[surface_lib.Field]:
  """Yield the surface fields that the config has, and the reward weights."""
  for field in context.surface.fields:
    if not field.path.endswith('*'):
      if field.path in context.config:
        yield field
      continue
    family = field.path.removesuffix('*')
    named = {p for p in context.config if p.startswith(family)}
    if source := context.parent.files.get('reward.py'):
      named |= {family + part for part in parts_lib.hashes(source)}
    for path in sorted(named):
      yield context.surface.field(path)


@functools.cache
def _defaults() -> dict[str, Any]:
  return config_lib.flatten(config_lib.base())


def _values(
    context: propose.Context, field: surface_lib.Field, old: Any
) -> Iterator[tuple[str, Any]]:
  """Yield (description, value) of the changes of a field."""
  default = _defaults().get(field.path)
  if default is not None and old != default:
    yield 'back to its default', default
  if field.kind == 'choice':
    for choice in field.choices:
      if choice not in (old, default):
        yield f'{choice} instead', choice
  elif field.kind == 'names':
    yield from _name_lists(context, field, old)
  elif surface_lib.is_weight(field.path):
    if not old:
      yield 'this part is now paid', _PAID
      if field.path != _OUTCOME:
        yield 'this part is now fined', -_PAID
    elif changes.shaped(context) or old < 0:  # A lone part has no scale.
      yield from _weights(field, old)
  elif field.kind in ('float', 'int'):
    yield from _numbers(context, field, old)


def _weights(
    field: surface_lib.Field, old: float
) -> Iterator[tuple[str, float]]:
  """Yield (description, value) of the changes of a reward part's weight."""
  # The outcome stays: without it, the reward would lack its target.
  if field.path != _OUTCOME and old:
    yield 'without this part of the reward', 0.0
  if field.path != _OUTCOME or old < 0:
    if old and not field.problem(-old):
      yield 'the other way round', -old
  for what, value in (('half of it', old / 2), ('twice as much', 2 * old)):
    if old and not field.problem(value):
      yield what, value


def _name_lists(
    context: propose.Context, field: surface_lib.Field, old: tuple[str, ...]
) -> Iterator[tuple[str, tuple[str, ...]]]:
  """Yield lists with one name more, and with one less."""
  if not field.choices:  # The families of problems, of which there are many.
    yield from slices.neighbours(context)
    return
  for name in field.choices:
    chosen = {*old} ^ {name}
    what = f'with {name}' if name in chosen else f'without {name}'
    value = tuple(n for n in field.choices if n in chosen)
    if not field.problem(value):
      yield what, value


def _numbers(
    context: propose.Context, field: surface_lib.Field, old: float | int
) -> Iterator[tuple[str, float | int]]:
  """Yield a higher value, a lower one, and one that turns the field off."""
  within = functools.partial(changes.within, context, field.path)
  if old == field.off:
    # A field that is off is set to the middle of its range.
    high = field.highest(context.config)
    if field.scale == 'log' and field.low > 0:
      yield 'turned on', within((field.low * high) ** 0.5)
    else:
      yield 'turned on', within((field.low + high) / 2)
    return
  if field.off is not None:
    yield 'turned off', field.off
  if field.scale == 'log' and old > 0:
    found = old * _STEP, old / _STEP
  else:
    step = _PART * (field.highest(context.config) - field.low)
    found = old + step, old - step
  for what, value in zip(('more of it', 'less of it'), found, strict=True):
    # A step that ends at the old value, because of the bounds, is no change.
    if (value := within(value)) != old:
      yield what, value
