"""Generated coding problems, each a function of its content alone.

The content is family, level and parameters; its hash is the problem's id. The
id also seeds the choice of wording, example and hidden tests, so that an id
always has the same text and tests, whatever the seed of the stream.
"""

from collections.abc import Mapping
import functools
import json
import random

from evojax import records
from evojax.domains import sources
from evojax.domains import splits
from evojax.domains.coding import comparison
from evojax.domains.coding import programs
from evojax.domains.coding import suite
from evojax.domains.coding.families import FAMILIES
from evojax.domains.coding.families import inputs
from evojax.domains.coding.families import level as level_lib

_LEAST = 40  # Minimum number of distinct problems of a level in every split.
HIDDEN = 8  # Maximum number of hidden tests of a problem.
LEAST_HIDDEN = 6  # Minimum; there are fewer than HIDDEN if inputs coincide.
_EDGES = 4  # Maximum number of hidden tests on edge cases.
_SIZES = (2, 3, 4, 5, 6, 8, 9, 12)  # Sizes of the other inputs.
_MORE = (1, 8, 2, 20) * 10  # Used while a wrong program passes all tests.
_EXAMPLES = 24  # Maximum draws of the visible example.
# Wrong programs for any problem: they print the visible example's output, their
# input, or nothing.
_GENERIC = ('constant', 'echo', 'nothing')
# Outputs are words and integers, and the statement requires no layout.
_COMPARISON = comparison.Comparison('tokens')
_SECONDS = 2.0  # Limit of a test; a right program takes milliseconds.
# Minimum share of a level's contents whose tests fail all wrong programs. Other
# contents are never used; problems_test measures the share of each level.
ACCEPTED = 0.85


def capacity(family: str, level: int) -> int:
  """Return a lower bound of the number of distinct problems of a level."""
  return int(len(FAMILIES[family][level].contents) * ACCEPTED)


def identity(family: str, level: int, parameters: level_lib.Parameters) -> str:
  """Return the id of a generated problem, a hash of all except its wording."""
  return splits.problem_id(json.dumps([family, level, dict(parameters)]))


@functools.lru_cache(maxsize=1 << 14)
def generate(
    family: str, level: int, number: int, system_prompt: str = ''
) -> records.Problem | None:
  """Make the problem of a content.

  Args:
    family: Key of FAMILIES.
    level: Level of the family.
    number: Index of one of the level's contents. Its `identity` seeds all
      random choices.
    system_prompt: First message; '' for none.

  Returns:
    The problem; None if some wrong program passes the hidden tests, or no
    visible example is informative.
  """
  kind = FAMILIES[family][level]
  parameters = kind.contents[number]
  name = identity(family, level, parameters)
  texts = kind.programs(parameters)
  wording = random.Random(f'{name}/wording').randrange(level_lib.WORDINGS)
  example = draw_example(kind, parameters, f'{name}/example')
  if example is None:
    return None
  given = kind.inputs(parameters, random.Random(f'{name}/tests'))
  hidden = choose_tests(given, texts, example.expected)
  if hidden is None:
    return None
  question = ask(kind, parameters, wording, example)
  tests = suite.Suite((example, *hidden), _COMPARISON, seconds=_SECONDS)
  return sources.make_problem(
      ({'role': 'user', 'content': question},),
      suite.encode(tests),
      family,
      system_prompt,
      level,
      {'parameters': dict(parameters), 'wording': wording},
      identity=name,
  )


def ask(
    kind: level_lib.Level,
    parameters: level_lib.Parameters,
    wording: int,
    example: suite.Case,
) -> str:
  """Return the question: statement, input grammar and one example."""
  task = kind.ask(parameters, wording)
  return f'{task}\nInput:\n{example.stdin}Output:\n{example.expected}'.rstrip()


def draw_example(
    kind: level_lib.Level, parameters: level_lib.Parameters, seed: str
) -> suite.Case | None:
  """Return a short visible case, a pure function of the arguments.

  Returns:
    The case; None if no case that was tried is informative, because all of them
    print nothing or the value for "no result".
  """
  given = kind.inputs(parameters, random.Random(seed))
  right = kind.programs(parameters)['right']
  zero = None  # An output of 0 is less informative; it is the second choice.
  for attempt in range(_EXAMPLES):
    stdin = given.some(given.short + attempt // 4)
    case = suite.Case(stdin, programs.run(right, stdin), True)
    if case.expected.strip() == '0':
      zero = zero or case
    elif case.expected.strip() not in ('', str(parameters.get('d'))):
      return case
  return zero


def choose_tests(
    given: inputs.Inputs, texts: Mapping[str, str], shown: str
) -> tuple[suite.Case, ...] | None:
  """Return hidden tests, of which every wrong program fails at least one.

  Tests that more wrong programs fail come first, as grading may stop at the
  first failure.

  Args:
    given: Inputs to choose from.
    texts: Texts of programs; 'right' gives the expected outputs, the others are
      wrong.
    shown: Output of the visible example, see `killed`.

  Returns:
    The tests; None if some wrong program passes every test, or there are too
    few.
  """
  pool = {}
  alive = wrong = {*texts, *_GENERIC} - {'right'}
  for size in (*_SIZES, *_MORE):
    # More inputs are tried only if the usual ones are not enough.
    if len(pool) >= len(given.edges) + len(_SIZES) and not alive:
      break
    for stdin in (*given.edges, given.some(size)):
      if stdin not in pool:
        case = suite.Case(stdin, programs.run(texts['right'], stdin), False)
        pool[stdin] = case, killed(case, texts, shown)
        alive = alive - pool[stdin][1]
  if alive:
    return None
  alive = wrong
  edges = set(given.edges)
  chosen = []
  while pool and len(chosen) < HIDDEN:
    room = sum(case.stdin in edges for case, _ in chosen) < _EDGES
    # Tests that fail a wrong program that still passes come first, then edge
    # cases, then those that fail most programs.
    best = max(
        pool.values(),
        key=lambda test: (
            len(test[1] & alive),
            room and test[0].stdin in edges,
            len(test[1]),
        ),
    )
    del pool[best[0].stdin]
    chosen.append(best)
    alive = alive - best[1]
  if len(chosen) < LEAST_HIDDEN:
    return None
  chosen.sort(key=lambda test: -len(test[1]))
  return tuple(case for case, _ in chosen)


def killed(
    case: suite.Case, texts: Mapping[str, str], shown: str
) -> frozenset[str]:
  """Return the names of the wrong programs that fail a test.

  Args:
    case: The test.
    texts: As in `choose_tests`.
    shown: Output of 'constant', one of _GENERIC.
  """
  printed = {k: programs.run(v, case.stdin) for k, v in texts.items()}
  del printed['right']
  printed |= {'constant': shown, 'echo': case.stdin, 'nothing': ''}
  return frozenset(
      name
      for name, output in printed.items()
      if output is None
      or not comparison.passes(case.expected, output.encode(), _COMPARISON)
  )


def _draft(
    entry: sources.Entry, stream: int, index: int, system_prompt: str
) -> sources.Draft:
  contents = FAMILIES[entry.family][entry.level].contents
  key = f'{entry.family}/{entry.level}/{stream}/{index}'
  number = sources.uniform64(key) % len(contents)
  name = identity(entry.family, entry.level, contents[number])
  place = entry.family, entry.level, number
  return name, lambda: generate(*place, system_prompt)


CATALOGUE = sources.Catalogue(
    levels=FAMILIES,
    sets={'all': FAMILIES},
    capacity=capacity,
    least=_LEAST,
    draft=_draft,
)
