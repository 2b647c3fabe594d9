"""Changes of a problem that make memorised programs useless.

  constants  one parameter has another value; tests and example are new.
  examples   other words and another example; the old one is a hidden test.

A policy that reads the statement still writes the right program. A policy that
has learned which words go with which program, that prints the example, or that
learned the tests from another source, does not. The wordings are those of other
problems, so that the policy has seen all of them in its warm start.
"""

from collections.abc import Callable, Mapping
import dataclasses
import random

from evojax import records
from evojax.domains import splits
from evojax.domains.coding import comparison
from evojax.domains.coding import problems
from evojax.domains.coding import suite
from evojax.domains.coding.families import FAMILIES
from evojax.domains.coding.families import level as level_lib

# Shares of the problems. A reworded problem keeps its program, so its share is
# the smaller one.
_SHARES = {'constants': 0.6, 'examples': 0.4}
_ATTEMPTS = 8  # Maximum examples, or contents of the split, to try.


def perturb(problem: records.Problem) -> records.Problem | None:
  """Return a changed problem with its own tests.

  The result is a function of the problem alone. Its new id belongs to the same
  split, so that the result is never a sealed problem unless the original is.

  Returns:
    The changed problem; None if the problem comes from a data set, or if no
    attempt succeeds.
  """
  if 'parameters' not in problem.metadata:
    return None
  rng = random.Random(problem.problem_id)
  first = rng.choices(list(_SHARES), list(_SHARES.values()))[0]
  for kind in (first, *_SHARES):
    if (changed := _CHANGES[kind](problem)) is not None:
      return changed
  return None


def change_constants(problem: records.Problem) -> records.Problem | None:
  """Return the problem with another value of one parameter."""
  level = FAMILIES[problem.family][problem.difficulty]
  mine = problem.metadata['parameters']
  split = splits.split_of(problem.problem_id)
  found = [
      (problems.identity(problem.family, problem.difficulty, other), number)
      for number, other in enumerate(level.contents)
      if sum(other[k] != v for k, v in mine.items()) == 1
  ]
  # Ids are hashes, so their order is as good as random.
  near = sorted(pair for pair in found if splits.split_of(pair[0]) == split)
  start = int(problem.problem_id, 16) % max(len(near), 1)
  for name, number in (near[start:] + near[:start])[:_ATTEMPTS]:
    made = problems.generate(problem.family, problem.difficulty, number)
    if made is not None:
      return _replaced(
          problem, _fresh(name), made.question, made.answer, made.metadata
      )
  return None


def reword(problem: records.Problem) -> records.Problem | None:
  """Return the problem in other words, with another example.

  The old example becomes one of the hidden tests.
  """
  kind = FAMILIES[problem.family][problem.difficulty]
  parameters = problem.metadata['parameters']
  given = suite.decode(problem.answer)
  shown = [case for case in given.cases if case.visible]
  hidden = [case for case in given.cases if not case.visible]
  name = _fresh(problem.problem_id)
  for attempt in range(_ATTEMPTS):
    example = problems.draw_example(kind, parameters, f'{name}/{attempt}')
    if example is None or example.stdin in [case.stdin for case in shown]:
      continue
    # A program that only prints the new example must fail.
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
  tests = (example, *hidden, *(c._replace(visible=False) for c in shown))
  return _replaced(
      problem,
      name,
      problems.ask(kind, parameters, wording, example),
      suite.encode(dataclasses.replace(given, cases=tests)),
      {**problem.metadata, 'wording': wording},
  )


def _replaced(
    problem: records.Problem,
    name: str,
    question: str,
    answer: str,
    metadata: Mapping[str, object],
) -> records.Problem:
  """Return the problem with another question and its other messages."""
  *before, last = problem.messages
  return dataclasses.replace(
      problem,
      problem_id=name,
      messages=(*before, {**last, 'content': question}),
      answer=answer,
      metadata=metadata,
  )


def _fresh(identity: str) -> str:
  """Return another id of the same split, as a function of the id."""
  split = splits.split_of(identity)
  fresh = splits.problem_id(f'{identity} perturbed')
  while splits.split_of(fresh) != split:
    fresh = splits.problem_id(fresh)
  return fresh


_CHANGES: Mapping[str, Callable[[records.Problem], records.Problem | None]] = {
    'constants': change_constants,
    'examples': reword,
}
