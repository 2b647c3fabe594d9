"""reasoning-gym's data sets: problems are made here, answers scored in the box.

The answers in SCORED have many right forms, or a form that only the library can
parse. Its `score_answer` judges them. Since it sometimes evaluates text, it
runs only in the box, which starts from this file: each answer is scored by a
fresh process, see `scoring`. For that reason this file imports nothing from
evojax.
"""

from collections.abc import Mapping
import fractions
import importlib
import json
import random
import re
import sys
from typing import Any

# All except repeated_parts, whose references are themselves integrals, and
# trigonometric, whose references depend on PYTHONHASHSEED.
_INTEGRALS = (
    'linear', 'radical', 'log_inverse_trig', 'polynomial_exp_trig',
    'exponential', 'cyclic',
)  # fmt: skip
# Data set -> its arguments. They are the library's defaults, unless a problem
# would take seconds to make or too few are distinct.
SCORED: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(
        """
        ab advanced_geometry arc_1d arc_agi bf binary_matrix caesar_cipher
        complex_arithmetic countdown cryptarithm decimal_arithmetic
        emoji_mystery figlet_font game_of_life group_anagrams
        isomorphic_strings kakurasu
        knights_knaves letter_jumble mahjong_puzzle manipulate_matrix
        mini_sudoku modulo_grid n_queens needle_haystack number_filtering
        number_format number_sorting palindrome_generation
        palindrome_partitioning path_star polynomial_equations
        polynomial_multiplication pool_matrix power_function puzzle24
        ransom_note rearc rectangle_count rotate_matrix sentence_reordering
        shortest_path simple_integration spell_backward spiral_matrix
        string_insertion string_manipulation sudoku survo tsumego
        word_sequence_reversal word_sorting zebra_puzzles
        """.split(),
        {},
    ),
    'acre': {'size': 3000},
    'futoshiki': {'max_board_size': 5, 'max_difficulty': 1},
    'game_of_life_halting': {'grid_size_x': 20, 'grid_size_y': 20},
    'intermediate_integration': {
        'problem_types': _INTEGRALS,
        'problem_type_weights': [1 / len(_INTEGRALS)] * len(_INTEGRALS),
        'linear_upper_bound': 30, 'outer_constant_max': 9,
    },
    'jugs': {'difficulty': 16},
    'knight_swap': {
        'impossible_ratio': 0.0, 'min_pieces': 1, 'max_pieces': 1,
        'min_nodes': 8, 'max_nodes': 11, 'min_steps': 2, 'max_steps': 40,
    },
    'list_functions': {'size': 1 << 16},
    'quantum_lock': {'difficulty': 6},
    'sokoban': {
        'max_w': 8, 'max_h': 8, 'min_boxes': 3, 'max_boxes': 4, 'max_depth': 40,
    },
    'string_splitting': {'max_initial_machines': 12},
    'string_synthesis': {'max_initial_blocks': 12},
    'tower_of_hanoi': {'max_pegs': 14, 'max_disks': 6},
    'word_ladder': {'size': 20_000},
}  # fmt: skip
# Number of distinct problems of a data set, from `problems.measure_capacity`;
# it gives MOST if no two of its draws are equal.
MOST = 26_600
CAPACITY: Mapping[str, int] = {
    'acre': 1_601,
    'bf': 2_406,
    'binary_matrix': 4_129,
    'caesar_cipher': 4_433,
    'intermediate_integration': 1_496,
    'jugs': 1_639,
    'kakurasu': 13_300,
    'knight_swap': 1_496,
    'list_functions': 8_431,
    'n_queens': 1_529,
    'puzzle24': 1_349,
    'quantum_lock': 2_321,
    'sentence_reordering': 3_259,
    'spiral_matrix': 13_300,
    'string_splitting': 1_404,
    'string_synthesis': 1_975,
    'tower_of_hanoi': 1_078,
    'word_ladder': 8_431,
}
# Data sets that cannot be families, and why.
LEFT_OUT: Mapping[str, str] = {
    'composite': 'it mixes other data sets; name these, with weights',
    'codeio': 'making its problems runs programs of its data file',
    **dict.fromkeys(
        (
            'boxnet', 'graph_color', 'propositional_logic', 'rubiks_cube',
            'rush_hour',
        ),
        'it has no reference answer',
    ),
}  # fmt: skip
_BFIT = 'reasoning_gym.code.contrib.bfit.Compiler'
# Number of indices of a data set, as pool_matrix seeds NumPy with 32 bits.
_INDICES = {'pool_matrix': 1 << 32}


class _Ordered:
  """A set that is iterated in sorted order, whatever PYTHONHASHSEED is."""

  def __iter__(self):
    return iter(sorted(super().__iter__()))

  def __sub__(self, other):
    return type(self)(super().__sub__(other))


class _Set(_Ordered, set):
  pass


class _FrozenSet(_Ordered, frozenset):
  pass


def create(name: str, arguments: Mapping[str, Any]):
  """Return a data set whose items depend only on their index."""
  # Imported here because the import takes most of a second, with matplotlib and
  # sympy, and problems from a file do not need it.
  import reasoning_gym
  from reasoning_gym.logic import aiw
  import sympy

  arguments = dict(arguments)
  if 'task_types' in arguments:
    arguments['task_types'] = [aiw.TaskType(t) for t in arguments['task_types']]
  dataset = reasoning_gym.create_dataset(name, seed=0, **arguments)
  module = sys.modules[type(dataset).__module__]
  if name in ('isomorphic_strings', 'ransom_note'):
    dataset.letters = _Set(dataset.letters)
  elif name == 'knight_swap':
    module.frozenset = _FrozenSet
  elif name == 'word_ladder':
    for graph in dataset.word_graphs.values():
      graph.update({word: _Set(near) for word, near in graph.items()})
  elif name == 'polynomial_multiplication':
    monomials = sympy.polys.monomials.itermonomials
    module.itermonomials = lambda *a: sorted(monomials(*a), key=str)
  elif name == 'bf':
    optimizer = importlib.import_module(f'{_BFIT}.Optimizer')
    optimizer.print = lambda *_, **__: None  # It prints dots.
  return dataset


def item(dataset, name: str, index: int) -> Mapping[str, Any]:
  """Return an item of one of SCORED; `index` is any number.

  Some data sets use Python's and NumPy's global random generators, whose state
  is restored afterwards.
  """
  import numpy as np

  arguments = SCORED[name]
  index %= arguments.get('size', _INDICES.get(name, 1 << 48))
  before = random.getstate(), np.random.get_state()
  random.seed(index)
  try:
    return dataset[index]
  finally:
    random.setstate(before[0])
    np.random.set_state(before[1])


# ------------------------------------------------------------------ in the box

# A number, or a name that occurs in the library's own references. A text with
# other names, attributes, strings or items would be a program.
_PIECE = r'[\s+\-*/^()]|\d+\.?\d*|\.\d+'
_NAMES = (
    r'\b(?:[A-Za-z]|pi|a?(?:sin|cos|tan|sec|csc|cot)h?|exp|log|ln|sqrt|Abs)\b'
)
_EXPRESSION = re.compile(f'(?:{_PIECE}|{_NAMES})*')
# Texts that the library reads as numbers without a finite distance.
_NO_NUMBER = re.compile(r'(?<![a-z])(?:nan|inf(?:inity)?)[ij]?(?![a-z])', re.I)
# Only one text is right here, but the library's scorer also accepts it with
# more text after it or, for game_of_life_halting, accepts any text for True.
_EXACT = ('game_of_life_halting', 'letter_jumble', 'spell_backward')
# Signs between whole numbers; neither ** nor //.
_ARITHMETIC = re.compile(r'(?:[0-9\s+()-]|\*(?!\*)|/(?!/))+')
_datasets = {}  # The data sets of this process.


def warm() -> None:
  """Import everything that scoring needs; afterwards no file can be read."""
  import ast
  import io

  import sympy
  import sympy.physics.units  # noqa: F401 (simplify imports it.)

  parse = sympy.parse_expr

  def parse_expression(text, *args, **kwargs):
    if not _EXPRESSION.fullmatch(text):
      raise ValueError('not an expression')
    return parse(text, *args, **kwargs)

  for name, arguments in SCORED.items():
    dataset = _datasets[name] = create(name, arguments)
    entry = item(dataset, name, 0)
    dataset.score_answer(entry['answer'], entry)
  for name, module in list(sys.modules.items()):
    if name.startswith('reasoning_gym.'):
      module.eval = ast.literal_eval
      if getattr(module, 'parse_expr', None) is parse:
        module.parse_expr = parse_expression
  sympy.parse_expr = parse_expression
  sys.stdout = io.StringIO()  # Some scorers print; stdout carries the score.


def call(source: str, data: memoryview) -> bytes:
  """Return the score of an answer as JSON: a number or null.

  Args:
    source: JSON with the family, the item and the answer.
    data: Unused.
  """
  del data
  request = json.loads(source)
  family, entry = request['family'], request['entry']
  answer, reference = request['answer'], entry['answer']
  if family in _EXACT:
    same = answer.strip().casefold() == reference.strip().casefold()
    return json.dumps(float(same)).encode()
  if family == 'puzzle24' and _numbers(answer) != _numbers(reference):
    return b'0.0'  # Its scorer does not check which numbers are used.
  if _NO_NUMBER.search(answer) and not _NO_NUMBER.search(reference):
    return b'null'
  if family in ('arc_agi', 'rearc'):  # They compare tuples.
    entry['metadata'] = _tuples(entry['metadata'])
  try:
    score = float(_datasets[family].score_answer(answer, entry))
    if score == 1.0 and not _STRICTER.get(family, _all)(answer, entry):
      score = 0.0
  except Exception:  # The library may fail on an unexpected text.
    score = None
  return json.dumps(score).encode()


def _all(answer: str, entry: Mapping[str, Any]) -> bool:
  """Accept all that the library's scorer accepts."""
  return True


def _makes_target(answer: str, entry: Mapping[str, Any]) -> bool:
  """Return whether + - * / make exactly the target of whole numbers.

  The library also accepts letters (x - x is 0, x / x is 1), functions, powers
  and decimal points, and for puzzle24 any value from 24 to 25.
  """
  if not _ARITHMETIC.fullmatch(answer):
    return False
  # Only digits, brackets and these signs are left.
  text = re.sub('[0-9]+', r"Fraction('\g<0>')", answer.strip())
  value = eval(text, {'Fraction': fractions.Fraction})
  return value == entry['metadata'].get('target', 24)


def _sorts(answer: str, entry: Mapping[str, Any]) -> bool:
  """Return whether the numbers are the right ones; the library rounds them."""
  read = lambda text: list(map(float, json.loads(text.replace("'", '"'))))
  return read(answer) == read(entry['answer'])


# Family -> a condition that an answer with a score of 1 must also meet.
_STRICTER = {
    'countdown': _makes_target,
    'number_sorting': _sorts,
    'puzzle24': _makes_target,
}


def _numbers(text: str) -> list[str]:
  return sorted(re.findall(r'\d+', text))


def _tuples(value: Any) -> Any:
  if isinstance(value, dict):
    return {key: _tuples(each) for key, each in value.items()}
  return tuple(map(_tuples, value)) if isinstance(value, list) else value
