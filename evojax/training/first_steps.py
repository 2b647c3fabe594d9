"""The first steps of a run: do they hold anything to learn from?

A group teaches by the differences of its rewards. Where all rewards of a group
are equal (a dead group), its advantages are 0 and the update ignores it.
"""

import pathlib

import numpy as np

from evojax.evidence import store
from evojax.rl import filters

STEPS = 3  # Later ones are the policy's own doing.
_DEAD = 0.9  # Share of dead groups from which on little is learned.
_FEW = 0.1  # Share solved up to which dead groups are all wrong.
_REMEDY = {
    'hard': (
        'the problems are too hard for this policy: train on easier ones'
        ' (config.data.families, or other data), start from a policy that'
        ' solves some (--mode=warmstart), or sample larger groups'
        ' (config.grpo.group_size)'
    ),
    'easy': (
        'the problems are too easy for this policy: train on harder ones'
        ' (config.data.families, or other data)'
    ),
    'mixed': (
        'each group is all right or all wrong: sample larger groups'
        ' (config.grpo.group_size), hotter (config.rollout.temperature), or'
        ' train on problems of middle difficulty'
    ),
}


def warning(workdir: pathlib.Path) -> str:
  """Return a line for whoever watches a run without signal; '' with signal.

  Args:
    workdir: Holds the evidence of the first steps.
  """
  steps = store.list_steps(workdir, 'train')[:STEPS]
  shares = [_shares(workdir, step) for step in steps]
  solved, dead = np.mean(shares, 0) if shares else (1, 0)
  if dead < _DEAD and solved > 0:
    return ''
  kind = 'hard' if solved <= _FEW else 'mixed'
  kind = 'easy' if solved >= 1 - _FEW else kind
  learned = (
      f'so {"little" if dead < 1 else "nothing"} is learned'
      if dead >= _DEAD
      else 'so only the other parts of the reward are learned'
  )
  return (
      f'no signal: in the first {len(steps)} steps {solved:.1%} of the'
      f' completions are solved and {dead:.0%} of the groups have equal'
      f' rewards, {learned}; {_REMEDY[kind]}'
  )


def _shares(workdir: pathlib.Path, step: int) -> tuple[float, float]:
  """Return the shares of solved completions and of dead groups of a step."""
  columns = 'group', 'graded', 'outcome', 'reward'
  group, graded, outcome, reward = store.read_numbers(
      workdir, 'train', step, *columns
  )
  spread = [reward[graded & (group == g)] for g in np.unique(group)]
  dead = [len(r) < 2 or r.std() < filters.MIN_STD for r in spread]
  return outcome[graded].mean(), np.mean(dead)
