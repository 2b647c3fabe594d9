"""Grades programs in the real box, for the tests of this folder."""

import numpy as np

from evojax import records
from evojax.domains.coding import grade
from evojax.domains.coding import suite

# The sum of the positive numbers of a line; the visible answer is 6.
CASES = (
    suite.Case('0\n\n', '0', False),  # An empty line.
    suite.Case('3\n4 -1 2\n', '6', True),
    suite.Case('2\n-5 -6\n', '0', False),
    suite.Case('4\n1 2 3 4\n', '10', False),
)
TESTS = suite.Suite(CASES, seconds=1.0)
HIDDEN = '10'
RIGHT = """
input()
print(sum(x for x in map(int, input().split()) if x > 0))
"""
SLOTS = 2


def problem(tests=TESTS, number=0):
  return records.Problem(
      problem_id=f'{number:016x}',
      family='sums',
      messages=({'role': 'user', 'content': 'Sum the positive ones.'},),
      answer=suite.encode(tests),
      difficulty=1,
  )


def completion(text, finish_reason='stop'):
  return records.Episode(
      np.zeros(1, np.int32), np.zeros(1, np.float32), finish_reason, 0, text
  )


def fenced(program):
  return f'```python\n{program}\n```'


def grade_many(problems, texts, partial=False):
  """Return grades, with one completion per problem."""
  completions = [completion(text) for text in texts]
  return grade.grade_many(problems, completions, partial=partial, slots=SLOTS)


def grade_texts(texts, tests=TESTS, partial=False):
  """Return grades of several completions of one problem."""
  return grade_many([problem(tests)] * len(texts), texts, partial)


def grade_one(program, tests=TESTS, partial=False):
  (found,) = grade_texts([fenced(program)], tests, partial)
  return found
