"""Asks the same problem in other words, with another example.

A policy that reads the statement writes the same program again. A policy that
has learned which words go with which program, or that prints the example, does
not. The wordings are those of other problems, so that the warm start has shown
all of them.
"""

import dataclasses
import random

from evojax import records
from evojax.domains import splits
from evojax.domains.coding import comparison
from evojax.domains.coding import problems
from evojax.domains.coding import suite
from evojax.domains.coding.families import FAMILIES
from evojax.domains.coding.families import level as level_lib

_ATTEMPTS = 8  # Examples that are tried.


def perturb(problem: records.Problem) -> records.Problem | None:
  """Return the problem in other words; its hidden tests stay the same.

  The result is a function of the problem alone. Its new id is of the same
  split, so that no other problem becomes a sealed one.

  Returns:
    None where the problem comes from a data set, or no other example serves.
  """
  if 'parameters' not in problem.metadata:
    return None
  kind = FAMILIES[problem.family][problem.difficulty]
  parameters = problem.metadata['parameters']
  given = suite.decode(problem.answer)
  shown = [case.stdin for case in given.cases if case.visible]
  hidden = [case for case in given.cases if not case.visible]
  name = _fresh(problem.problem_id)
  for attempt in range(_ATTEMPTS):
    example = problems.draw_example(kind, parameters, f'{name}/{attempt}')
    if example is None or example.stdin in shown:
      continue
    # A program that prints the new example must not be right.
    printed = example.expected.encode()
    if not all(
        comparison.passes(case.expected, printed, given.comparison)
        for case in hidden
    ):
      break
  else:
    return None
  used = problem.metadata['wording']
  others = [w for w in range(level_lib.WORDINGS) if w != used]
  wording = random.Random(name).choice(others)
  question = problems.ask(kind, parameters, wording, example)
  *before, last = problem.messages
  return dataclasses.replace(
      problem,
      problem_id=name,
      messages=(*before, {**last, 'content': question}),
      answer=suite.encode(dataclasses.replace(given, cases=(example, *hidden))),
      metadata={**problem.metadata, 'wording': wording},
  )


def _fresh(identity: str) -> str:
  """Return another id of the same split, a function of the id."""
  split = splits.split_of(identity)
  fresh = splits.problem_id(f'{identity} perturbed')
  while splits.split_of(fresh) != split:
    fresh = splits.problem_id(fresh)
  return fresh
