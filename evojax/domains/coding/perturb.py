"""The same problem in other words, with another example.

A policy that reads the statement writes the program that it wrote before; one
that learned which words go with which program, or prints the example, does not.
The wordings are those that other problems have: the warm start taught them all.
"""

import dataclasses
import random

from evojax import records
from evojax.domains import splits
from evojax.domains.coding import problems
from evojax.domains.coding import tests
from evojax.domains.coding.families import FAMILIES
from evojax.domains.coding.families import level as level_lib

_ATTEMPTS = 8  # Examples that are tried.


def perturb(problem: records.Problem) -> records.Problem | None:
  """The problem written otherwise; its hidden tests are the same.

  A function of the problem alone. Its fresh id is of the same split: no other
  problem becomes a sealed one.

  Returns:
    None where it comes from a data set, or no other example passes.
  """
  if 'parameters' not in problem.metadata:
    return None
  kind = FAMILIES[problem.family][problem.difficulty]
  parameters = problem.metadata['parameters']
  given = tests.decode(problem.answer)
  shown = [case.stdin for case in given.cases if case.visible]
  hidden = [case for case in given.cases if not case.visible]
  name = _fresh(problem.problem_id)
  for attempt in range(_ATTEMPTS):
    example = problems.draw_example(kind, parameters, f'{name}/{attempt}')
    # To print the new example must not be right.
    if (
        example is not None
        and example.stdin not in shown
        and not all(
            tests.passes(case, example.expected.encode(), given.tolerance)
            for case in hidden
        )
    ):
      break
  else:
    return None
  others = [
      wording
      for wording in range(level_lib.WORDINGS)
      if wording != problem.metadata['wording']
  ]
  wording = random.Random(name).choice(others)
  messages = list(problem.messages)
  messages[-1] = {
      **messages[-1],
      'content': problems.ask(kind, parameters, wording, example),
  }
  return dataclasses.replace(
      problem,
      problem_id=name,
      messages=tuple(messages),
      answer=tests.encode(dataclasses.replace(given, cases=(example, *hidden))),
      metadata={**problem.metadata, 'wording': wording},
  )


def _fresh(identity: str) -> str:
  """Another id of the same split, a function of the id."""
  split = splits.split_of(identity)
  fresh = splits.problem_id(f'{identity} perturbed')
  while splits.split_of(fresh) != split:
    fresh = splits.problem_id(fresh)
  return fresh
