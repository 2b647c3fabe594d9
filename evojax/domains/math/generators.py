"""Procedural problems: reasoning-gym data sets, grouped into families.

A family is a data set; its levels are arguments, easiest first. `SMALL` holds
problems that a decoder of about a million parameters can learn to solve in a
few short integer steps. `LARGE` holds, at the library's own difficulty and
above, every data set whose answer `grade` can grade: one number, one fraction,
or one exact string. A family in both has its small levels first.

The other data sets with a reference are in `gym.SCORED`, at one level each:
they have answers with many right forms (countdown, integrals, lists, grids),
references with float noise or undeclared rounding (number_format,
power_function), or long prompts. The library's scorer judges them, see
`scoring`.
"""

from collections.abc import Mapping
import functools
import hashlib
from typing import Any

from evojax.domains.math import gym

Level = Mapping[str, Any]  # Keyword arguments of the data set.

_PLUS_MINUS = {'operators': ('+', '-'), 'operators_weights': [0.5, 0.5]}
_TENTHS = {'min_decimal_places': 1, 'max_decimal_places': 1}
# The library's references are wrong with '/', which it truncates, and without
# brackets, because it ignores precedence.
_EXACT = {'operators': ('+', '-', '*'), 'format_style': 'natural'}


def _exactly(**kwargs: int) -> Level:
  """Return the arguments min_x = max_x = value for each x=value."""
  return {f'{end}_{k}': v for k, v in kwargs.items() for end in ('min', 'max')}


def _up_to(*largest: int) -> tuple[Level, ...]:
  """Return levels with numbers from 2 to each of the given ones."""
  return tuple({'min_value': 2, 'max_value': most} for most in largest)


SMALL: Mapping[str, tuple[Level, ...]] = {
    'chain_sum': (
        _exactly(terms=3, digits=1),
        _exactly(terms=2, digits=2),
        _exactly(terms=4, digits=1),
        _exactly(terms=3, digits=2),
        _exactly(terms=4, digits=2),
    ),
    'decimal_chain_sum': (
        {**_exactly(terms=2, digits=1), **_TENTHS},
        {**_exactly(terms=3, digits=1), **_TENTHS},
    ),
    'basic_arithmetic': (
        {**_exactly(terms=3, digits=1), **_EXACT},
        {**_exactly(terms=4, digits=1), **_EXACT},
    ),
    'products': (_exactly(terms=4, digits=1), _exactly(terms=2, digits=2)),
    'leg_counting': (
        {**_exactly(animals=2), 'max_instances': 5},
        {**_exactly(animals=3), 'max_instances': 5},
        {**_exactly(animals=4), 'max_instances': 9},
    ),
    'simple_equations': (
        {'max_terms': 2, 'max_value': 50, **_PLUS_MINUS},
        {'max_terms': 2, 'max_value': 10},
        {'max_terms': 2, 'max_value': 20},
    ),
    'gcd': _up_to(60, 200),
    'lcm': _up_to(60, 100),
    'aiw': tuple(
        {'task_types': (task,), 'task_type_weights': [1.0], 'max_entities': 20}
        for task in ('siblings', 'friends')
    ),
    'fraction_simplification': (
        {'max_value': 40, 'max_factor': 12, 'styles': ('plain',)},
        {'max_value': 100, 'max_factor': 12, 'styles': ('plain',)},
    ),
}

_DEFAULT: tuple[Level, ...] = ({},)  # One level at the library's difficulty.
# fmt: off
_AT_DEFAULT = (
    'aiw', 'base_conversion', 'binary_alternation', 'bitwise_arithmetic',
    'calendar_arithmetic', 'circuit_logic', 'coin_flip', 'color_cube_rotation',
    'count_bits', 'count_primes', 'course_schedule', 'decimal_chain_sum',
    'dice', 'family_relationships', 'fraction_simplification', 'leg_counting',
    'letter_counting', 'maze', 'number_sequence', 'rotten_oranges',
    'self_reference', 'simple_equations', 'syllogism', 'time_intervals',
)
# fmt: on
_LARGE: Mapping[str, tuple[Level, ...]] = {
    **dict.fromkeys(_AT_DEFAULT, _DEFAULT),
    'basic_arithmetic': (_EXACT,),
    'chain_sum': ({}, {'min_terms': 6, 'max_terms': 10, 'max_digits': 6}),
    'gcd': ({}, {'min_numbers': 3, 'max_numbers': 4, 'max_value': 10_000}),
    'gsm_symbolic': ({'size': 1 << 16},),
    'largest_island': ({'min_num_islands': 1},),
    'lcm': ({}, {'min_numbers': 3, 'max_numbers': 3, 'max_value': 200}),
    'prime_factorization': ({'max_value': 100_000},),
    'products': ({'min_digits': 3}, _exactly(terms=3, digits=3)),
    'simple_geometry': ({}, {'min_sides': 7, 'max_sides': 12}),
}
# Sorted, because a stream of problems depends on the order of the families.
LARGE = dict(sorted(_LARGE.items()))

# Families with too few distinct problems for disjoint splits. They are not in
# 'all', and `sources.Catalogue.check_capacity` refuses them with their count.
TOO_SMALL = ('coin_flip', 'number_sequence', 'self_reference')

# Family -> form of its answers, see grade.FORMS; the default is 'value'.
FORMS: Mapping[str, str] = {
    'base_conversion': 'text',  # '1e2' is a base-15 numeral, not 100.
    'bitwise_arithmetic': 'text',  # Hexadecimal.
    'fraction_simplification': 'lowest',
    'prime_factorization': 'text',  # 20 is not the factorisation of 20.
}

FAMILIES: Mapping[str, tuple[Level, ...]] = {
    name: SMALL.get(name, ()) + LARGE.get(name, ())
    for name in (*SMALL, *(n for n in LARGE if n not in SMALL))
} | {name: (arguments,) for name, arguments in gym.SCORED.items()}


@functools.cache
def _dataset(family: str, level: int):
  return gym.create(family, FAMILIES[family][level])


def generate(
    family: str, level: int, seed: int, index: int
) -> tuple[str, str, Mapping[str, Any]]:
  """Return one problem, a pure function of the arguments.

  Args:
    family: Key of FAMILIES.
    level: 0 <= level < len(FAMILIES[family]).
    seed: Any integer.
    index: Any integer; all (seed, index) pairs are independent draws.

  Returns:
    (question, reference answer, reasoning-gym's metadata).
  """
  key = f'{family}/{level}/{seed}/{index}'.encode()
  # reasoning-gym seeds item i with seed + i, so that two seeds give the same
  # items in shifted order. A hashed index under one seed avoids this overlap.
  draw = int.from_bytes(hashlib.blake2b(key, digest_size=6).digest(), 'big')
  if family in gym.SCORED:
    item = gym.item(_dataset(family, level), family, draw)
  else:
    # gsm_symbolic makes a table of `size` items; the others take any index.
    size = FAMILIES[family][level].get('size', 1 << 48)
    item = _dataset(family, level)[draw % size]
  return item['question'].strip(), item['answer'], item['metadata']
