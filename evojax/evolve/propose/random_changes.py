"""The control proposer: uniformly random changes on the surface.

The gain of another proposer over this one measures what its knowledge is worth.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from evojax.evolve import propose as propose_lib
from evojax.evolve import skills
from evojax.harness import parts as parts_lib
from evojax.harness import surface as surface_lib

_ATTEMPTS = 200
_OFF = 0.25  # Share of samples that turn a field off, if it can be.
# A range that covers any recipe change: this proposer makes no prediction.
_EXPECTED = (-0.1, 0.1)


def propose(context: propose_lib.Context) -> propose_lib.Proposal | None:
  """Propose a uniformly chosen factor at a uniform value.

  Values with a logarithmic scale are uniform in the logarithm.

  Returns:
    The change, or None if none of 200 samples may be proposed.
  """
  factors = _factors(context)
  for _ in range(_ATTEMPTS):
    factor = factors[int(context.rng.integers(len(factors)))]
    try:
      return propose_lib.make(
          context,
          context.parent.with_overlay(_sample(context, factor)),
          hypothesis='None: drawn at random, to compare with.',
          expected=_EXPECTED,
          source='uniform on the surface',
      )
    except propose_lib.ProposalError:
      continue
  return None


def _factors(
    context: propose_lib.Context,
) -> list[tuple[surface_lib.Field, ...]]:
  """Return the fields of every factor, with the harness's reward parts."""
  source = context.parent.files.get('reward.py')
  parts = sorted(parts_lib.hashes(source)) if source else []
  return [
      fields
      for fields in context.surface.factors(parts).values()
      if all(f.kind != 'names' or _names(context, f) for f in fields)
  ]


def _names(
    context: propose_lib.Context, field: surface_lib.Field
) -> Sequence[str]:
  """Return the names that a field may hold: its choices or its families."""
  names = field.choices or context.config.get('domain.kwargs.families', ())
  return names.split(',') if isinstance(names, str) else names


def _sample(
    context: propose_lib.Context, factor: Sequence[surface_lib.Field]
) -> dict[str, Any]:
  """Sample values for the fields of a factor that are valid together."""
  values = {field.path: _value(context, field) for field in factor}
  if values.get('grpo.keep') == 'all':  # Without a filter there is no refill.
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
    value = np.exp(rng.uniform(np.log(field.low), np.log(high)))
  else:
    value = rng.uniform(field.low, high)
  return min(max(skills.round_value(field, float(value)), field.low), high)
