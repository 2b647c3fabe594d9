"""The control proposer: any change on the surface, uniformly.

What a search gains over this one is what its knowledge is worth.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from evojax.evolve import propose as propose_lib
from evojax.evolve import skills
from evojax.harness import surface as surface_lib
from evojax.harness import syntax

_ATTEMPTS = 200
_OFF = 0.25  # Share of draws that turn off what can be turned off.
# No prediction: what a change of a recipe can do at all.
_EXPECTED = (-0.1, 0.1)


def propose(context: propose_lib.Context) -> propose_lib.Proposal | None:
  """A uniform factor at a uniform (where it has a scale, log-uniform) value.

  Returns:
    The change, or None if 200 draws gave nothing that may be proposed.
  """
  factors = _factors(context)
  for _ in range(_ATTEMPTS):
    factor = factors[int(context.rng.integers(len(factors)))]
    after = context.parent.with_overlay(_draw(context, factor))
    try:
      delta, note = propose_lib.consider(context, after)
    except propose_lib.ProposalError:
      continue
    return propose_lib.Proposal(
        hypothesis='None: drawn at random, to compare with.',
        after=after,
        delta=delta,
        expected=_EXPECTED,
        criterion=propose_lib.CRITERION,
        rollback=propose_lib.rollback(context),
        source='uniform on the surface',
        proposer='random',
        trigger='',
        note=note,
    )
  return None


def _factors(
    context: propose_lib.Context,
) -> list[tuple[surface_lib.Field, ...]]:
  """The fields of every factor; reward parts of the harness included."""
  source = context.parent.files.get('reward.py')
  parts = sorted(syntax.parts(source)) if source else []
  return [
      fields
      for fields in context.surface.factors(parts).values()
      if all(f.kind != 'names' or _names(context, f) for f in fields)
  ]


def _names(
    context: propose_lib.Context, field: surface_lib.Field
) -> Sequence[str]:
  """The names that a field may hold: its choices, or the domain's families."""
  names = field.choices or context.config.get('domain.kwargs.families', ())
  return names.split(',') if isinstance(names, str) else names


def _draw(
    context: propose_lib.Context, factor: Sequence[surface_lib.Field]
) -> dict[str, Any]:
  """Values of the factor's fields that go together."""
  values = {field.path: _value(context, field) for field in factor}
  if values.get('grpo.keep') == 'all':  # Nothing is dropped, nothing refilled.
    values['grpo.refill_rounds'] = 0
  return values


def _value(context: propose_lib.Context, field: surface_lib.Field) -> Any:
  rng = context.rng
  if field.kind == 'choice':
    return field.choices[int(rng.integers(len(field.choices)))]
  if field.kind == 'names':
    names = _names(context, field)
    count = int(rng.integers(1, len(names) + 1))
    chosen = sorted(rng.choice(len(names), count, replace=False).tolist())
    return tuple(names[i] for i in chosen)
  if field.off is not None and rng.random() < _OFF:
    return field.off
  high = field.highest(context.config)
  if field.kind == 'int':
    return int(rng.integers(round(field.low), round(high) + 1))
  if field.scale == 'log':
    drawn = np.exp(rng.uniform(np.log(field.low), np.log(high)))
  else:
    drawn = rng.uniform(field.low, high)
  return min(max(skills.round_value(field, float(drawn)), field.low), high)
