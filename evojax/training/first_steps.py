"""A check of whether the first steps of a run have a learning signal.

The policy learns from differences of rewards within a group. If all rewards of
a group are equal (a dead group), its advantages are 0 and it has no effect.
"""

import pathlib

import numpy as np

from evojax.evidence import schema
from evojax.evidence import store
from evojax.rl import filters
from evojax.runtime import numerals

STEPS = 3  # Later steps depend on what the policy has learned.
_DEAD = 0.9  # If at least this share of the groups is dead, little is learned.
# If at most this share is solved, dead groups count as all wrong; if at least 1
# minus this share, as all right.
_FEW = 0.1
_CUT = 0.5  # If a limit cuts more than this share, it is why few are solved.
_TURNS = schema.FINISH_REASON['turns']
_REMEDY = {
    'cut': (
        'most completions are cut by their limit of tokens: raise it'
        ' (config.rollout.token_limit, turn_tokens or max_tokens)'
    ),
    'turns': (
        'most episodes end by their limit of turns: raise it'
        ' (config.domain.kwargs.max_turns), unless they repeat their calls'
        ' (--mode=inspect shows some)'
    ),
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
  """Return a line that warns of a run without learning signal, otherwise ''.

  Args:
    workdir: Workdir with the evidence of the first steps.
  """
  steps = store.list_steps(workdir, 'train')[:STEPS]
  shares = [_shares(workdir, step) for step in steps]
  solved, dead, cut, ended = np.mean(shares, 0) if shares else (1, 0, 0, 0)
  if dead < _DEAD and solved > 0:
    return ''
  kind = 'hard' if solved <= _FEW else 'mixed'
  kind = 'easy' if solved >= 1 - _FEW else kind
  if kind == 'hard' and max(cut, ended) > _CUT:
    kind = 'cut' if cut >= ended else 'turns'
  learned = (
      f'so {"little" if dead < 1 else "nothing"} is learned'
      if dead >= _DEAD
      else 'so only the other parts of the reward are learned'
  )
  return (
      f'no signal: in the first {numerals.counted(len(steps), "step")}'
      f' {solved:.1%} of the completions are solved and {dead:.0%} of the'
      f' groups have equal rewards, {learned}; {_REMEDY[kind]}'
  )


def _shares(
    workdir: pathlib.Path, step: int
) -> tuple[float, float, float, float]:
  """Return four shares that describe the learning signal of a step.

  They are the shares of solved completions among the graded ones, of dead
  groups, of completions cut by the token limit, and of episodes ended by the
  turn limit.
  """
  columns = 'group', 'graded', 'outcome', 'reward', 'truncated', 'finish_reason'
  group, graded, outcome, reward, cut, reason = store.read_numbers(
      workdir, 'train', step, *columns
  )
  varies = []
  for g in np.unique(group):
    members = [x[None, group == g] for x in (reward, outcome > 0, graded)]
    varies.append(filters.keep_reward_variance(*members)[0, 0])
  ended = (reason == _TURNS).mean()
  return outcome[graded].mean(), 1 - np.mean(varies), cut.mean(), ended
