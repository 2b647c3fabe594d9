"""Interventions that reward or penalise what a run found in its rollouts.

A diagnostic of `evolve.search` measures how often a predicate holds. While its
alert is raised, the predicate can be made a part of the reward: with a positive
weight if it holds too rarely, with a negative one if it holds too often. As
with any shaping, the race and the second judge decide.
"""

from collections.abc import Iterator

from evojax.evolve import predicates
from evojax.evolve import propose
from evojax.evolve.propose import changes
from evojax.evolve.propose import library
from evojax.harness import parts
from evojax.harness import spec
from evojax.harness import surface as surface_lib
from evojax.harness import syntax

_WEIGHT = 0.1


def entries(context: propose.Context) -> Iterator[library.Entry]:
  """Yield an intervention for every found diagnostic of the harness."""
  for path, source in context.parent.files.items():
    found = predicates.read(path, source)
    if found is None:
      continue
    yield library.Entry(
        triggers=(found.name,),
        change=_give(found, _WEIGHT if found.below else -_WEIGHT),
        expected=(-0.05, 0.06),
        hypothesis=' '.join(found.why.split()),
        source='evojax.evolve.search',
        check=f'{found.name} {"rises" if found.below else "falls"} and outcome'
        ' rises',
    )


def _give(found: predicates.Written, weight: float) -> changes.Change:
  """Return a change that makes a found predicate a part of the reward."""
  path = surface_lib.WEIGHTS + found.name
  part = f'''"""1 where the predicate of diagnostics/{found.name}.py holds."""

import numpy as np


def parts(e):
  return {{'{found.name}': ({found.text}).astype(np.float32)}}
'''

  def apply(context: propose.Context) -> spec.Harness | None:
    reward = context.parent.files.get('reward.py')
    if reward is None or context.config.get(path):
      return None
    try:
      combined = parts.add(reward, part)
      after = context.parent.with_file('reward.py', combined)
    except (syntax.SourceError, spec.HarnessError):
      return None
    return after.with_overlay({path: weight})

  return changes.Change(path, apply)
