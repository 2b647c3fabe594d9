"""Families over lists of integers."""

from collections.abc import Mapping

from evojax.domains.coding.families import inputs
from evojax.domains.coding.families import level

_READ = 'n = int(input())\na = list(map(int, input().split()))\n'
_NUMBERS = inputs.numbers(-30, 99)
_POSITIVE = inputs.numbers(1, 40)
_REL = tuple(level.RELATIONS)
_NONE = tuple(range(-9, 0))  # Printed where there is no answer.
_RARE_NONE = tuple(range(-60, 0))
_EXTREME = {'max': ('largest',), 'min': ('smallest',)}
_ORDER = {'True': ('descending', 'falling'), 'False': ('ascending', 'rising')}

SUMS = (
    level.Level(
        parameters={'rel': _REL, 'k': tuple(range(1, 61)), 'd': _NONE},
        statement=(
            'Print the sum of the integers {rel} {k}, or {d} if there are none.'
        ),
        grammar=_NUMBERS,
        program=_READ
        + 'b = [x for x in a if x {rel} {k}]\nprint(sum(b) if b else {d})',
        off_by_one=('x {rel} {k}', 'x {rel_off} {k}'),
        edge=(' if b else {d}', ''),
    ),
    level.Level(
        parameters={
            'm': tuple(range(2, 10)),
            'rel': _REL,
            'm2': tuple(range(1, 10)),
            'd': _NONE,
        },
        statement=(
            'Print the sum of the integers divided by {m} (rounded down) that'
            ' are then {rel} {m2}, or {d} if there are none.'
        ),
        grammar=_NUMBERS,
        program=_READ + 'b = [x // {m} for x in a if x // {m} {rel} {m2}]\n'
        'print(sum(b) if b else {d})',
        off_by_one=('{m} {rel} {m2}', '{m} {rel_off} {m2}'),
        edge=(' if b else {d}', ''),
    ),
    level.Level(
        parameters={'k': tuple(range(-9, 21)), 'm': tuple(range(1, 50))},
        statement=(
            'An integer below {k} counts as {k}, one above {m} counts as {m}.'
            ' Print the sum of what the integers count as.'
        ),
        grammar=_NUMBERS,
        program=_READ + 'print(sum(min(max(x, {k}), {m}) for x in a))',
        off_by_one=(', {m})', ', {m} - 1)'),
        edge=('max(x, {k})', 'x'),
        where=lambda p: p['k'] + 1 < p['m'],
    ),
)

COUNTING = (
    level.Level(
        parameters={'k': tuple(range(-9, 31)), 'm': tuple(range(1, 50))},
        statement=(
            'Print how many different integers are from {k} to {m}, both'
            ' included.'
        ),
        grammar=_NUMBERS,
        program=_READ + 'print(len(set(x for x in a if {k} <= x <= {m})))',
        off_by_one=('<= {m}', '< {m}'),
        edge=(
            'len(set(x for x in a if {k} <= x <= {m}))',
            'sum({k} <= x <= {m} for x in a)',
        ),
        where=lambda p: p['k'] + 1 < p['m'],
    ),
    level.Level(
        parameters={
            'm': tuple(range(2, 10)),
            'r': tuple(range(9)),
            'k': tuple(range(5, 45)),
        },
        statement=(
            'Print how many integers below {k} leave the remainder {r} (0 or'
            ' more) when divided by {m}.'
        ),
        grammar=_NUMBERS,
        program=_READ + 'print(sum(x % {m} == {r} and x < {k} for x in a))',
        off_by_one=('for x in a)', 'for x in a[1:])'),
        edge=('x < {k}', '0 < x < {k}'),
        where=lambda p: p['r'] < p['m'],
    ),
    level.Level(
        parameters={'c': (2, 3), 'rel': _REL, 'k': tuple(range(-20, 71))},
        statement=(
            'Print how many different integers {rel} {k} appear exactly {c}'
            ' times.'
        ),
        grammar=_NUMBERS,
        program=_READ
        + 'print(sum(a.count(x) == {c} and x {rel} {k} for x in set(a)))',
        off_by_one=('x {rel} {k}', 'x {rel_off} {k}'),
        edge=('set(a)', 'a'),
    ),
)

EXTREMES = (
    level.Level(
        parameters={
            'fn': ('max', 'min'),
            'rel': _REL,
            'k': tuple(range(1, 61)),
            'd': _NONE,
        },
        statement=(
            'Print the {fn} integer that is {rel} {k}, or {d} if there is none.'
        ),
        grammar=_NUMBERS,
        program=_READ
        + 'b = [x for x in a if x {rel} {k}]\nprint({fn}(b) if b else {d})',
        off_by_one=('x {rel} {k}', 'x {rel_off} {k}'),
        edge=(' if b else {d}', ''),
        words={'fn': _EXTREME},
    ),
    level.Level(
        parameters={
            'which': ('0', '-1'),
            'rel': _REL,
            'k': tuple(range(1, 61)),
            'd': _NONE,
        },
        statement=(
            'Print the position, from 1, of the {which} integer {rel} {k}, or'
            ' {d} if there is none.'
        ),
        grammar=_NUMBERS,
        program=_READ + 'b = [i for i in range(n) if a[i] {rel} {k}]\n'
        'print(b[{which}] + 1 if b else {d})',
        off_by_one=('] + 1', ']'),
        edge=(' if b else {d}', ''),
        words={'which': {'0': ('first',), '-1': ('last',)}},
    ),
    level.Level(
        parameters={
            'rev': ('True', 'False'),
            'k': tuple(range(2, 7)),
            'd': _RARE_NONE,
        },
        statement=(
            'The different integers are put in {rev} order. Print number {k} of'
            ' them, or {d} if there are fewer.'
        ),
        grammar=_NUMBERS,
        program=_READ + 'b = sorted(set(a), reverse={rev})\n'
        'print(b[{k} - 1] if len(b) >= {k} else {d})',
        off_by_one=('b[{k} - 1] if len(b) >= {k}', 'b[{k}] if len(b) > {k}'),
        edge=('set(a)', 'a'),
        words={'rev': _ORDER},
    ),
)

SORTING = (
    level.Level(
        parameters={
            'rel': _REL,
            'k': tuple(range(1, 61)),
            'rev': ('True', 'False'),
            'd': _NONE,
        },
        statement=(
            'Print the integers {rel} {k} in {rev} order, or {d} if there are'
            ' none.'
        ),
        grammar=_NUMBERS,
        program=_READ + 'b = [x for x in a if x {rel} {k}]\n'
        'print(*sorted(b, reverse={rev}) or [{d}])',
        off_by_one=('x {rel} {k}', 'x {rel_off} {k}'),
        edge=(' or [{d}]', ''),
        words={'rev': _ORDER},
    ),
    level.Level(
        parameters={
            'rel': _REL,
            'k': tuple(range(1, 41)),
            'm': tuple(range(3, 10)),
        },
        statement=(
            'Print the integers {rel} {k} by their remainder (0 or more) when'
            ' divided by {m}, and equal remainders by value.'
        ),
        grammar=_NUMBERS,
        program=_READ + 'b = [x for x in a if x {rel} {k}]\n'
        'print(*sorted(b, key=lambda x: (x % {m}, x)))',
        off_by_one=('x {rel} {k}', 'x {rel_off} {k}'),
        edge=('(x % {m}, x)', 'x % {m}'),
    ),
    level.Level(
        parameters={
            'k': tuple(range(2, 7)),
            'j': tuple(range(1, 5)),
            'd': _RARE_NONE,
        },
        statement=(
            'Print the sum of the {k} largest integers minus the sum of the {j}'
            ' smallest, or {d} if n is below {k}.'
        ),
        grammar=_NUMBERS,
        program=_READ + 'a.sort()\n'
        'print(sum(a[-{k}:]) - sum(a[:{j}]) if n >= {k} else {d})',
        off_by_one=('n >= {k}', 'n > {k}'),
        edge=(' if n >= {k} else {d}', ''),
        where=lambda p: p['j'] <= p['k'],
    ),
)

PAIRS = (
    level.Level(
        parameters={
            'op': ('+', '-'),
            'rel': _REL,
            'k': tuple(range(2, 100)),
        },
        statement=(
            'Print how many pairs of integers, equal ones too, have a {op}'
            ' {rel} {k}.'
        ),
        grammar=inputs.numbers(1, 60),
        program=_READ + 't = 0\nfor i in range(n):\n  for j in range(i):\n'
        '    t += abs(a[i] {op} a[j]) {rel} {k}\nprint(t)',
        off_by_one=('range(i)', 'range(i - 1)'),
        edge=(
            _READ,
            'n = input()\na = sorted(set(map(int, input().split())))'
            '\nn = len(a)\n',
        ),
        words={'op': {'+': ('sum',), '-': ('difference',)}},
        where=lambda p: p['op'] == '+' or p['k'] <= 55,
    ),
    level.Level(
        parameters={
            'fn': ('max', 'min'),
            'rel': _REL,
            'k': tuple(range(12, 75)),
            'd': _NONE,
        },
        statement=(
            'Print the length of the {fn} run of neighbours, of one or more'
            ' integers, with a sum {rel} {k}, or {d} if there is none.'
        ),
        grammar=_POSITIVE,
        program=_READ
        + 'b = [j - i for i in range(n) for j in range(i + 1, n + 1)'
        ' if sum(a[i:j]) {rel} {k}]\nprint({fn}(b) if b else {d})',
        off_by_one=('range(i + 1, n + 1)', 'range(i + 1, n)'),
        edge=(' if b else {d}', ''),
        words={'fn': {'max': ('longest',), 'min': ('shortest',)}},
        where=lambda p: (p['fn'] == 'max') == (p['rel'][0] == '<'),
    ),
    level.Level(
        parameters={
            'what': ('abs', ''),
            'rel': _REL,
            'k': tuple(range(1, 80)),
        },
        statement=(
            'The integers stand in a circle. Print how many {what} the one'
            ' before by a number {rel} {k}.'
        ),
        grammar=_NUMBERS,
        program=_READ
        + 'print(sum({what}(a[i] - a[i - 1]) {rel} {k} for i in range(n)))',
        off_by_one=('{rel} {k}', '{rel_off} {k}'),
        edge=('range(n)', 'range(1, n)'),
        words={'what': {'abs': ('differ from',), '': ('exceed',)}},
    ),
)

WINDOWS = (
    level.Level(
        parameters={'rel': _REL, 'k': tuple(range(1, 61)), 'd': _NONE},
        statement=(
            'Print the length of the longest run of neighbours that are all'
            ' {rel} {k}, or {d} if no integer is.'
        ),
        grammar=_NUMBERS,
        program=_READ
        + 'm = t = 0\nfor x in a:\n  t = t + 1 if x {rel} {k} else 0\n'
        '  m = max(m, t)\nprint(m or {d})',
        off_by_one=('x {rel} {k}', 'x {rel_off} {k}'),
        edge=(' or {d}', ''),
    ),
    level.Level(
        parameters={
            'fn': ('max', 'min'),
            'k': tuple(range(2, 9)),
            'd': _RARE_NONE,
        },
        statement=(
            'Print the {fn} sum of {k} neighbours, or {d} if n is below {k}.'
        ),
        grammar=_NUMBERS,
        program=_READ + 'b = [sum(a[i:i + {k}]) for i in range(n - {k} + 1)]\n'
        'print({fn}(b) if b else {d})',
        off_by_one=('n - {k} + 1', 'n - {k}'),
        edge=(' if b else {d}', ''),
        words={'fn': _EXTREME},
    ),
    level.Level(
        parameters={
            'rel': ('>', '>='),
            'k': tuple(range(10, 100)),
            'd': _NONE,
        },
        statement=(
            'The integers are added up from the left. Print how many it takes'
            ' until the sum is {rel} {k}, or {d} if it never is.'
        ),
        grammar=_POSITIVE,
        program=_READ
        + 't = 0\nfor i in range(n):\n  t += a[i]\n  if t {rel} {k}:\n'
        '    print(i + 1)\n    break\nelse:\n  print({d})',
        off_by_one=('print(i + 1)', 'print(i)'),
        edge=('\nelse:\n  print({d})', ''),
    ),
)

FAMILIES: Mapping[str, tuple[level.Level, ...]] = {
    'sums': SUMS,
    'counting': COUNTING,
    'extremes': EXTREMES,
    'sorting': SORTING,
    'pairs': PAIRS,
    'windows': WINDOWS,
}
