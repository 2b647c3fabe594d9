"""Generated problems: a problem is a function of its content alone.

The content is family, level and parameters; its hash is the problem's id.
Wording, example and hidden tests are drawn from that hash, so one id is one
text and one set of tests, whatever the seed of the stream.
"""

from collections.abc import Mapping, Sequence
import functools
import random

from evojax import records
from evojax.domains import sources
from evojax.domains import splits
from evojax.domains.coding import programs
from evojax.domains.coding import tests
from evojax.domains.coding.families import FAMILIES
from evojax.domains.coding.families import inputs
from evojax.domains.coding.families import level as level_lib

MIN_DISTINCT = 40  # Distinct problems that a level must have in every split.
HIDDEN = 8  # Hidden tests of a problem, at most.
LEAST_HIDDEN = 6  # Where inputs coincide.
_EDGES = 4  # Of which so many edges, if there are.
_SIZES = (2, 3, 4, 5, 6, 8, 9, 12)  # Of the inputs that are no edges.
_MORE = (1, 8, 2, 20) * 10  # Further ones, while a wrong program survives.
_EXAMPLES = 24  # Draws until one says something.
_GENERIC = ('constant', 'echo', 'nothing')  # Wrong for any problem.
_SECONDS = 2.0  # Limit of a test; a right program takes milliseconds.
# Least share of a level's contents whose tests kill all wrong programs. The
# others are never drawn; problems_test measures each level.
ACCEPTED = 0.85

_SETS = {'all': {f: range(len(levels)) for f, levels in FAMILIES.items()}}


def select(
    families: str | Sequence[str], weights: Sequence[float] = ()
) -> tuple[sources.Entry, ...]:
  """Levels and their weights from a config, see `sources.select`.

  Args:
    families: 'all', or families with levels such as 'sums:0-1'.
    weights: One per name, > 0; equal if empty.

  Raises:
    ValueError: If a name, a level or a weight is impossible.
  """
  counts = {family: len(levels) for family, levels in FAMILIES.items()}
  return sources.select(families, weights, counts, _SETS)


def capacity(family: str, level: int) -> int:
  """Distinct problems of a level, a lower bound."""
  return int(len(FAMILIES[family][level].contents) * ACCEPTED)


def check_capacity(family: str, level: int) -> int:
  """Return `capacity`.

  Raises:
    ValueError: If the smallest split would hold fewer than MIN_DISTINCT.
  """
  count = capacity(family, level)
  return sources.check_capacity(family, level, count, MIN_DISTINCT)


def stream(
    entries: Sequence[sources.Entry],
    split: str,
    seed: int,
    system_prompt: str = '',
) -> sources.ProceduralSource:
  """An endless stream of generated problems.

  Args:
    entries: Levels and weights, see `select`.
    split: One of splits.SHARES.
    seed: Another seed is another stream of the same split.
    system_prompt: First message of every problem; empty is none.

  Raises:
    ValueError: If a level is too small for disjoint splits.
  """
  draft = functools.partial(_draft, system_prompt)
  return sources.ProceduralSource(entries, split, seed, draft, check_capacity)


def _draft(
    system_prompt: str, entry: sources.Entry, seed: int, index: int
) -> sources.Draft:
  contents = FAMILIES[entry.family][entry.level].contents
  key = f'{entry.family}/{entry.level}/{seed}/{index}'
  number = sources.uniform64(key) % len(contents)
  return sources.Draft(
      identity(entry.family, entry.level, contents[number]),
      lambda: _generated(entry.family, entry.level, number, system_prompt),
  )


def identity(family: str, level: int, parameters: level_lib.Parameters) -> str:
  """Id of a generated problem: the hash of its content."""
  return splits.problem_id(level_lib.content(family, level, parameters))


@functools.lru_cache(maxsize=1 << 14)
def _generated(
    family: str, level: int, number: int, system_prompt: str
) -> records.Problem | None:
  parameters = FAMILIES[family][level].contents[number]
  name = identity(family, level, parameters)
  return generate(family, level, parameters, name, system_prompt)


def generate(
    family: str,
    level: int,
    parameters: level_lib.Parameters,
    name: str,
    system_prompt: str = '',
) -> records.Problem | None:
  """Make the problem of a content.

  Args:
    family: Key of FAMILIES.
    level: Of the family.
    parameters: One of the level's contents.
    name: Its `identity`, which draws everything else.
    system_prompt: First message; empty is none.

  Returns:
    None where some wrong program passes the hidden tests, or no example says
    anything.
  """
  kind = FAMILIES[family][level]
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
  messages: tuple[records.Message, ...] = (
      {'role': 'user', 'content': question},
  )
  if system_prompt:
    messages = ({'role': 'system', 'content': system_prompt}, *messages)
  return records.Problem(
      problem_id=name,
      family=family,
      messages=messages,
      answer=tests.encode(tests.Tests((example, *hidden), seconds=_SECONDS)),
      difficulty=level,
      metadata={'parameters': dict(parameters), 'wording': wording},
  )


def ask(
    kind: level_lib.Level,
    parameters: level_lib.Parameters,
    wording: int,
    example: tests.Case,
) -> str:
  """The question: statement, input grammar and one example."""
  task = kind.ask(parameters, wording)
  return f'{task}\nInput:\n{example.stdin}Output:\n{example.expected}'.rstrip()


def draw_example(
    kind: level_lib.Level, parameters: level_lib.Parameters, seed: str
) -> tests.Case | None:
  """A short visible case, a pure function of the arguments.

  Returns:
    None where all that were drawn are dull: they print nothing, or what stands
    for nothing.
  """
  given = kind.inputs(parameters, random.Random(seed))
  right = kind.programs(parameters)['right']
  nothing = ('', str(parameters.get('d')))
  zero = None  # Says little, and yet more than nothing.
  for attempt in range(_EXAMPLES):
    stdin = given.some(given.short + attempt // 4)
    expected = programs.run(right, stdin)
    case = tests.Case(stdin, expected, True)
    if expected.strip() not in (*nothing, '0'):
      return case
    if expected.strip() == '0':
      zero = zero or case
  return zero


def choose_tests(
    given: inputs.Inputs, texts: Mapping[str, str], shown: str
) -> tuple[tests.Case, ...] | None:
  """Pick hidden tests that kill every wrong program, most killing first.

  Args:
    given: Inputs to choose from.
    texts: Program texts; 'right' is what tests expect, all others are wrong.
    shown: Output of the visible example, see `killed`.

  Returns:
    None where some wrong program survives, or there are too few tests.
  """
  pool = {}
  alive = {*texts, *_GENERIC} - {'right'}
  stdins = list(given.edges)
  for size in (*_SIZES, *_MORE):
    # Where the usual inputs do not kill all, more of them may.
    if len(pool) >= len(given.edges) + len(_SIZES) and not alive:
      break
    stdins.append(given.some(size))
    for stdin in stdins:
      if stdin not in pool:
        case = tests.Case(stdin, programs.run(texts['right'], stdin), False)
        pool[stdin] = case, killed(case, texts, shown)
        alive -= pool[stdin][1]
    stdins = []
  if alive:
    return None
  alive = {*texts, *_GENERIC} - {'right'}
  edges = set(given.edges)
  chosen = []
  while pool and len(chosen) < HIDDEN:
    room = sum(case.stdin in edges for case, _ in chosen) < _EDGES
    # What kills one that is still alive; then edges; then what kills most.
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
    alive -= best[1]
  if len(chosen) < LEAST_HIDDEN:
    return None
  chosen.sort(key=lambda test: -len(test[1]))
  return tuple(case for case, _ in chosen)


def killed(
    case: tests.Case, texts: Mapping[str, str], shown: str
) -> frozenset[str]:
  """Names of the wrong programs that fail a test.

  Args:
    case: The test.
    texts: As for `choose_tests`.
    shown: What 'constant' prints; 'echo' prints its input, 'nothing' nothing.
  """
  printed = {
      name: programs.run(text, case.stdin)
      for name, text in texts.items()
      if name != 'right'
  }
  printed |= {'constant': shown, 'echo': case.stdin, 'nothing': ''}
  return frozenset(
      name
      for name, output in printed.items()
      if output is None or not tests.passes(case, output.encode(), 0.0)
  )
