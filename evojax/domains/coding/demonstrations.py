"""Demonstrations for the coding base policy: programs in several behaviours.

A base policy mixes behaviours on purpose, as real base models do, so that
reinforcement learning can select between them. Each demonstration draws one
behaviour from `BEHAVIOURS`:

  right       the right program in a fenced block.
  off_by_one  the same with one bound, index or comparison off by one.
  edge        the same without the code for an edge case.
  constant    a program that prints the output of the visible example.
  unfenced    the right program, but not in a block.
  endless     a block of comments that never ends.

Right and wrong programs begin alike and differ only later. Half of the problems
are reworded, see `perturb.reword`, so that wordings and examples carry no
information about a program.
"""

from collections.abc import Mapping
import re

import numpy as np

from evojax import records
from evojax.domains import base
from evojax.domains.coding import perturb
from evojax.domains.coding import suite
from evojax.domains.coding.families import FAMILIES as _FAMILIES

# The families of the demonstrations, see `sources.Catalogue.select`.
FAMILIES = ('all',)
# These strings are single tokens, which makes programs a third shorter.
TOKENS = (
    '```python',
    '```',
    'int(input())',
    'map(int, input().split())',
    'print(',
    'range(',
)

BEHAVIOURS: Mapping[str, float] = {
    'right': 0.36,
    'off_by_one': 0.17,
    'edge': 0.16,
    'constant': 0.13,
    'unfenced': 0.12,
    'endless': 0.06,
}

_FILLER = (
    'Let me read the problem again.',
    'First, what is asked?',
    'There may be a better way.',
    'What if n is 0?',
    'I have to be careful.',
    'That does not look right.',
    'Let me start over.',
    'Now the input.',
)
_ENDLESS_LINES = 96  # More tokens than any completion may have.


def demonstrate(
    problem: records.Problem, rng: np.random.Generator
) -> records.Demonstration:
  """Draw a wording and a behaviour, and write the completion.

  Args:
    problem: A generated problem, see `problems.generate`.
    rng: Source of all random choices.

  Raises:
    ValueError: If the problem is not of our families.
  """
  if 'parameters' not in problem.metadata:
    raise ValueError(
        f'problem {problem.problem_id} of {problem.family!r} has no programs to'
        ' demonstrate: only generated problems have'
    )
  if rng.random() < 0.5:
    problem = perturb.reword(problem) or problem
  behaviour = base.draw_behaviour(BEHAVIOURS, rng)
  text = act(problem, behaviour, rng)
  ends = behaviour != 'endless'
  return records.Demonstration(problem.messages, text, ends)


def act(
    problem: records.Problem, behaviour: str, rng: np.random.Generator
) -> str:
  """Return the completion of one behaviour.

  Args:
    problem: A generated problem.
    behaviour: Key of BEHAVIOURS.
    rng: Random number generator for the comments of 'endless'.
  """
  if behaviour == 'endless':
    lines = base.draw_filler(_FILLER, _ENDLESS_LINES, rng)
    return '\n'.join(['```python', *(f'# {line}' for line in lines)])
  if behaviour == 'constant':
    example = suite.decode(problem.answer).cases[0].expected.rstrip('\n')
    number = re.fullmatch(r'-?\d+', example)
    program = f'print({example if number else repr(example)})'
  else:
    kind = _FAMILIES[problem.family][problem.difficulty]
    texts = kind.programs(problem.metadata['parameters'])
    program = texts['right' if behaviour == 'unfenced' else behaviour]
  return program if behaviour == 'unfenced' else f'```python\n{program}\n```'
