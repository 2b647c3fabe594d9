"""Families over one number, simulations and small dynamic programs."""

from collections.abc import Mapping

from evojax.domains.coding.families import inputs
from evojax.domains.coding.families import level

_REL = tuple(level.RELATIONS)
_NONE = tuple(range(-9, 0))
_READ = 'n = int(input())\na = list(map(int, input().split()))\n'
_NUMBERS = inputs.numbers(-30, 99)

MULTIPLES = (
    level.Level(
        parameters={
            'a': tuple(range(2, 20)),
            'b': tuple(range(3, 31)),
            'end': ('n', 'n + 1'),
        },
        statement=(
            'Print the sum of the positive integers {end} n that are multiples'
            ' of {a} or of {b}.'
        ),
        grammar=inputs.one_number(1, 400),
        program=(
            'n = int(input())\nprint(sum(x for x in range(1, {end}) if'
            ' x % {a} == 0 or x % {b} == 0))'
        ),
        off_by_one=('{end}', '{end_off}'),
        edge=(
            'sum(x for x in range(1, {end}) if x % {a} == 0 or x % {b} == 0)',
            'sum(range({a}, {end}, {a})) + sum(range({b}, {end}, {b}))',
        ),
        words={'end': {'n': ('below',), 'n + 1': ('up to',)}},
        # Without a common multiple in range no number is counted twice.
        where=lambda p: p['a'] < p['b'] and p['a'] * p['b'] <= 390,
    ),
    level.Level(
        parameters={
            'm': tuple(range(4, 31)),
            'r': tuple(range(1, 30)),
            'op': ('+', '-'),
        },
        statement=(
            'Print the {op} n that leaves the remainder {r} when divided by'
            ' {m}; it may be n.'
        ),
        grammar=inputs.one_number(-200, 900),
        program=(
            'n = int(input())\nwhile n % {m} != {r}:\n  n {op}= 1\nprint(n)'
        ),
        off_by_one=('input())', 'input()) {op} 1'),
        edge=('int(input())', 'abs(int(input()))'),
        words={
            'op': {
                '+': ('smallest integer from', 'first integer from'),
                '-': ('largest integer up to', 'last integer up to'),
            }
        },
        where=lambda p: p['r'] < p['m'],
    ),
    level.Level(
        parameters={
            'rel': _REL,
            'k': tuple(range(2, 50)),
            'm': tuple(range(2, 10)),
        },
        statement=(
            'Print how many positive divisors of n are {rel} {k} and no'
            ' multiples of {m}.'
        ),
        grammar=inputs.one_number(-600, 600),
        program=(
            'n = abs(int(input()))\nprint(sum(n % x == 0 and x {rel} {k} and'
            ' x % {m} > 0 for x in range(1, n + 1)))'
        ),
        off_by_one=('n + 1', 'n'),
        edge=('abs(int(input()))', 'int(input())'),
    ),
)

SIMULATION = (
    level.Level(
        parameters={
            'k': tuple(range(1, 8)),
            'j': tuple(range(1, 8)),
            'm': tuple(range(15, 60)),
        },
        statement=(
            'A robot starts at 0. R moves it {k} to the right, at most to {m};'
            ' L moves it {j} to the left, at most to 0. Print where it ends.'
        ),
        grammar=inputs.moves('RL'),
        program=(
            "x = 0\nfor c in input():\n  if c == 'R':\n"
            '    x = min(x + {k}, {m})\n  else:\n'
            '    x = max(x - {j}, 0)\nprint(x)'
        ),
        off_by_one=(', {m})', ', {m} - 1)'),
        edge=('max(x - {j}, 0)', 'x - {j}'),
    ),
    level.Level(
        parameters={
            't': tuple(range(10)),
            'k': tuple(range(20, 80)),
            'r': tuple(range(10)),
        },
        statement=(
            'A counter starts at {t}. Each integer is added; below 0 it becomes'
            ' 0, above {k} it becomes {r}. Print its last value.'
        ),
        grammar=_NUMBERS,
        program=_READ
        + 't = {t}\nfor x in a:\n  t = max(t + x, 0)\n  if t > {k}:\n'
        '    t = {r}\nprint(t)',
        off_by_one=('for x in a', 'for x in a[1:]'),
        edge=('max(t + x, 0)', 't + x'),
    ),
    level.Level(
        parameters={'k': tuple(range(1, 100)), 'r': tuple(range(2, 8))},
        statement=(
            'The numbers 1 to n stand in a circle. From 1 on, skip {k} of them'
            ' and remove the next, again and again, until at most {r} are left.'
            ' Print those.'
        ),
        grammar=inputs.one_number(1, 60),
        program=(
            'a = list(range(1, int(input()) + 1))\ni = 0\n'
            'while len(a) > {r}:\n  i = (i + {k}) % len(a)\n  a.pop(i)\n'
            'print(*a)'
        ),
        off_by_one=('i + {k})', 'i + {k} - 1)'),
        edge=('len(a) > {r}', 'len(a) != {r}'),
    ),
)

DYNAMIC = (
    level.Level(
        parameters={
            'a': tuple(range(1, 8)),
            'b': tuple(range(2, 10)),
            'm': tuple(range(10, 100)),
        },
        statement=(
            'Steps of {a} and {b} lead up n stairs. Print in how many orders of'
            ' steps, modulo {m}.'
        ),
        grammar=inputs.one_number(0, 60),
        program=(
            'n = int(input())\nf = [1] + [0] * n\nfor i in range(1, n + 1):\n'
            '  for s in {a}, {b}:\n    if i >= s:\n      f[i] += f[i - s]\n'
            'print(f[n] % {m})'
        ),
        off_by_one=('i >= s', 'i > s'),
        edge=(' % {m}', ''),
        where=lambda p: p['a'] < p['b'],
    ),
    level.Level(
        parameters={
            'a': tuple(range(2, 12)),
            'b': tuple(range(3, 21)),
            'd': _NONE,
        },
        statement=(
            'Print how few coins of {a} and {b} pay n exactly, or {d} if they'
            ' cannot.'
        ),
        grammar=inputs.one_number(0, 120),
        program=(
            'n = int(input())\nf = [0] + [999] * n\nfor i in range(1, n + 1):\n'
            '  for s in {a}, {b}:\n    if i >= s:\n'
            '      f[i] = min(f[i], f[i - s] + 1)\n'
            'print(f[n] if f[n] < 999 else {d})'
        ),
        off_by_one=('i >= s', 'i > s'),
        edge=(' if f[n] < 999 else {d}', ''),
        where=lambda p: p['a'] < p['b'],
    ),
    level.Level(
        parameters={'k': tuple(range(2, 14)), 'c': tuple(range(1, 61))},
        statement=(
            'Choose integers, or none, whose positions are at least {k} apart.'
            ' Each costs {c}. Print the largest sum minus the costs.'
        ),
        grammar=_NUMBERS,
        program=_READ + 'f = [0] * {k}\nfor x in a:\n'
        '  f.append(max(f[-1], f[-{k}] + x - {c}))\nprint(f[-1])',
        off_by_one=('f[-{k}]', 'f[-{k} + 1]'),
        edge=('max(f[-1], f[-{k}] + x - {c})', 'f[-{k}] + x - {c}'),
    ),
)

FAMILIES: Mapping[str, tuple[level.Level, ...]] = {
    'multiples': MULTIPLES,
    'simulation': SIMULATION,
    'dynamic': DYNAMIC,
}
