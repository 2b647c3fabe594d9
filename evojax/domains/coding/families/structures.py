"""Families over intervals and grids."""

from collections.abc import Mapping

from evojax.domains.coding.families import inputs
from evojax.domains.coding.families import level

_REL = tuple(level.RELATIONS)
_NONE = tuple(range(-9, 0))
_LETTERS = tuple('bcdfghjklmnpqrstvwxyz')
_INTERVALS = inputs.intervals(0, 60)
_READ_INTERVALS = (
    'b = [list(map(int, input().split())) for i in range(int(input()))]\n'
)
_READ_EITHER = (
    'b = [sorted(map(int, input().split())) for i in range(int(input()))]\n'
)
_READ_GRID = (
    'r, c = map(int, input().split())\ng = [input() for i in range(r)]\n'
)

INTERVALS = (
    level.Level(
        parameters={'k': tuple(range(1, 60)), 'm': tuple(range(1, 20))},
        statement=(
            'Print how many of the intervals contain {k} (the ends belong to'
            ' them) and have a distance of at least {m} between their ends.'
        ),
        grammar=inputs.intervals(0, 60, either=True),
        program=_READ_EITHER
        + 'print(sum(l <= {k} <= r and r - l >= {m} for l, r in b))',
        off_by_one=('{k} <= r', '{k} < r'),
        edge=(_READ_EITHER, _READ_INTERVALS),
        # Otherwise no interval ends at k, and '<' would be as right as '<='.
        where=lambda p: p['k'] >= p['m'] + 2,
    ),
    level.Level(
        parameters={
            'm': tuple(range(2, 8)),
            'rel': _REL,
            'k': tuple(range(8, 50)),
        },
        statement=(
            'Print how many multiples of {m} that are {rel} {k} are in at least'
            ' one interval (the ends belong to it).'
        ),
        grammar=_INTERVALS,
        program=_READ_INTERVALS
        + 's = set(x for l, r in b for x in range(l, r + 1))\n'
        'print(sum(x % {m} == 0 and x {rel} {k} for x in s))',
        off_by_one=('r + 1', 'r'),
        edge=(
            'set(x for l, r in b for x in range(l, r + 1))',
            '[x for l, r in b for x in range(l, r + 1)]',
        ),
    ),
    level.Level(
        parameters={'t': tuple(range(1, 31)), 'k': tuple(range(1, 21))},
        statement=(
            'A room is free from time {t}. After a meeting from l to r it is'
            ' free again at r plus {k}. Print how many of the meetings can be'
            ' held at most.'
        ),
        grammar=inputs.intervals(0, 99),
        program=_READ_INTERVALS
        + 't = {t}\nm = 0\nfor r, l in sorted((r, l) for l, r in b):\n'
        '  if l >= t:\n    m += 1\n    t = r + {k}\nprint(m)',
        off_by_one=('l >= t', 'l > t'),
        edge=('r, l in sorted((r, l) for l, r in b)', 'l, r in sorted(b)'),
    ),
)

GRIDS = (
    level.Level(
        parameters={'c': _LETTERS, 'k': (2, 3, 4, 5), 'd': _NONE},
        statement=(
            "Print how many '{c}' are in row {k} (from 1), or {d} if there is"
            ' no such row.'
        ),
        grammar=inputs.grid(),
        program=_READ_GRID
        + "print(g[{k} - 1].count('{c}') if r >= {k} else {d})",
        off_by_one=('g[{k} - 1]', 'g[{k} - 2]'),
        edge=(' if r >= {k} else {d}', ''),
    ),
    level.Level(
        parameters={
            'of': ('g', 'zip(*g)'),
            'c': _LETTERS,
            'rel': _REL,
            'k': (1, 2, 3),
        },
        statement=(
            "Print how many different {of} have a number of '{c}' that is {rel}"
            ' {k}.'
        ),
        grammar=inputs.grid(),
        program=_READ_GRID
        + "print(sum(x.count('{c}') {rel} {k} for x in set({of})))",
        off_by_one=('{rel} {k}', '{rel_off} {k}'),
        edge=('set({of})', '{of}'),
        words={'of': {'g': ('rows',), 'zip(*g)': ('columns',)}},
    ),
    level.Level(
        parameters={'c': _LETTERS, 'k': (1, 2, 3, 4), 'd': _NONE},
        statement=(
            "Print the number (from 1) of the row with the most '{c}', the"
            ' first of equal ones, or {d} if no row has at least {k}.'
        ),
        grammar=inputs.grid(),
        program=_READ_GRID + "b = [x.count('{c}') for x in g]\n"
        'print(b.index(max(b)) + 1 if max(b) >= {k} else {d})',
        off_by_one=('max(b)) + 1', 'max(b))'),
        edge=(' if max(b) >= {k} else {d}', ''),
    ),
)

FAMILIES: Mapping[str, tuple[level.Level, ...]] = {
    'intervals': INTERVALS,
    'grids': GRIDS,
}
