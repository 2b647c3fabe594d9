"""Families over words and letters."""

from collections.abc import Mapping

from evojax.domains.coding.families import inputs
from evojax.domains.coding.families import level

_REL = tuple(level.RELATIONS)
_NONE = tuple(range(-9, 0))  # Printed where there is no answer.
_RARE_NONE = tuple(range(-60, 0))
_LETTERS = tuple('bcdfghjklmnpqrstvwxyz')
_FEW_LETTERS = tuple('bdfkmprt')
_HAS = {'in': ('contain', 'have'), 'not in': ('lack', 'do not have')}

LETTERS = (
    level.Level(
        parameters={
            'c': _FEW_LETTERS,
            'e': _FEW_LETTERS,
            'k': tuple(range(2, 10)),
            'm': tuple(range(2, 10)),
        },
        statement=(
            "Each '{c}' is worth {k} points, each '{e}' is worth {m}, in either"
            ' case. Print the points of the word.'
        ),
        grammar=inputs.word(upper=True),
        program=(
            's = input().lower()\n'
            "print(s.count('{c}') * {k} + s.count('{e}') * {m})"
        ),
        off_by_one=('lower()', 'lower()[1:]'),
        edge=('.lower()', ''),
        where=lambda p: p['c'] != p['e'] and p['k'] != p['m'],
    ),
    level.Level(
        parameters={'c': _LETTERS, 'k': (1, 2, 3, 4, 5), 'd': _NONE},
        statement=(
            "Print the position, from 1, of '{c}' number {k} in the word, or"
            ' {d} if it has fewer.'
        ),
        grammar=inputs.word(),
        program=(
            's = input()\n'
            "b = [i for i in range(len(s)) if s[i] == '{c}']\n"
            'print(b[{k} - 1] + 1 if len(b) >= {k} else {d})'
        ),
        off_by_one=('] + 1', ']'),
        edge=(' if len(b) >= {k} else {d}', ''),
    ),
    level.Level(
        parameters={'c': _LETTERS, 'k': (2, 3, 4, 5), 'd': _NONE},
        statement=(
            "Print the length of the longest run of '{c}', or {d} if it is"
            ' below {k}.'
        ),
        grammar=inputs.word(),
        program=(
            'm = t = 0\nfor x in input():\n'
            "  t = t + 1 if x == '{c}' else 0\n  m = max(m, t)\n"
            'print(m if m >= {k} else {d})'
        ),
        off_by_one=('m >= {k}', 'm > {k}'),
        edge=(' if m >= {k} else {d}', ''),
    ),
)

SLICES = (
    level.Level(
        parameters={'k': tuple(range(2, 10)), 'd': tuple(range(10, 100))},
        statement=(
            'Print the letters at the positions (from 1) that are multiples of'
            ' {k}, or {d} if there are none.'
        ),
        grammar=inputs.word(),
        program='s = input()\nprint(s[{k} - 1::{k}] or {d})',
        off_by_one=('s[{k} - 1:', 's[{k}:'),
        edge=(' or {d}', ''),
    ),
    level.Level(
        parameters={
            'dir': ('', '-'),
            'k': tuple(range(3, 41)),
            'c': _LETTERS,
        },
        statement=(
            "Move the {dir}, {k} times. Then put '{c}' before the word and"
            ' print it.'
        ),
        grammar=inputs.word(least=1),
        program=(
            's = input()\nk = {dir}{k} % len(s)\n'
            "print('{c}' + s[k:] + s[:k])"
        ),
        off_by_one=('{dir}{k} %', '{dir}({k} + 1) %'),
        edge=(' % len(s)', ''),
        words={
            'dir': {
                '': ('first letter to the end',),
                '-': ('last letter to the front',),
            }
        },
    ),
    level.Level(
        parameters={'k': tuple(range(2, 10)), 'd': tuple(range(10, 100))},
        statement=(
            'Cut the word into blocks of {k} letters; the last may be shorter.'
            ' Print them with {d} between two blocks.'
        ),
        grammar=inputs.word(least=1),
        program=(
            's = input()\n'
            "print('{d}'.join(s[i:i + {k}] for i in range(0, len(s), {k})))"
        ),
        off_by_one=('i + {k}', 'i + {k} - 1'),
        edge=('len(s), {k}', 'len(s) - {k} + 1, {k}'),
    ),
)

CIPHERS = (
    level.Level(
        parameters={
            'k': tuple(range(2, 25)),
            'op': ('+', '-'),
            'c': _LETTERS,
        },
        statement=(
            "Shift each letter but '{c}' by {k} places {op} in the alphabet,"
            ' which is a circle. Print the new word.'
        ),
        grammar=inputs.word(),
        program=(
            "t = ''\nfor x in input():\n  if x != '{c}':\n"
            '    x = chr((ord(x) - 97 {op} {k}) % 26 + 97)\n  t += x\nprint(t)'
        ),
        off_by_one=('- 97 {op}', '- 96 {op}'),
        edge=(' % 26', ''),
        words={'op': {'+': ('forward', 'on'), '-': ('backward', 'back')}},
    ),
    level.Level(
        parameters={'k': tuple(range(2, 10)), 'rel': _REL, 'c': _LETTERS},
        statement=(
            'The value of a letter of either case is its place in the alphabet,'
            " from 1. Letters {rel} '{c}' count {k} times. Print the sum."
        ),
        grammar=inputs.word(upper=True),
        program=(
            't = 0\nfor x in input().lower():\n'
            "  t += (ord(x) - 96) * ({k} if x {rel} '{c}' else 1)\nprint(t)"
        ),
        off_by_one=('- 96', '- 97'),
        edge=('.lower()', ''),
        words={
            'rel': {
                '>': ('after',),
                '<': ('before',),
                '>=': ('not before',),
                '<=': ('not after',),
            }
        },
    ),
    level.Level(
        parameters={
            'k': tuple(range(3, 10)),
            'c': _LETTERS,
            'e': _LETTERS,
        },
        statement=(
            "In the first {k} letters '{c}' becomes '{e}' and '{e}' becomes"
            " '{c}'. Print the new word."
        ),
        grammar=inputs.word(),
        program=(
            "s = input()\nt = ''\nfor x in s[:{k}]:\n"
            "  t += '{e}' if x == '{c}' else '{c}' if x == '{e}' else x\n"
            'print(t + s[{k}:])'
        ),
        off_by_one=('s[:{k}]', 's[:{k} - 1]'),
        edge=(" else '{c}' if x == '{e}'", ''),
        where=lambda p: p['c'] < p['e'],
    ),
)

WORDS = (
    level.Level(
        parameters={
            'rel': _REL,
            'k': tuple(range(2, 8)),
            'c': _LETTERS,
            'has': ('in', 'not in'),
        },
        statement=(
            "Print how many words {has} '{c}' (in either case) and have a"
            ' length {rel} {k}.'
        ),
        grammar=inputs.words(upper=True),
        program=(
            'b = input().lower().split()\n'
            "print(sum('{c}' {has} w and len(w) {rel} {k} for w in b))"
        ),
        off_by_one=('len(w) {rel}', 'len(w) {rel_off}'),
        edge=('.lower()', ''),
        words={'has': _HAS},
    ),
    level.Level(
        parameters={
            'fn': ('max', 'min'),
            'c': _LETTERS,
            'has': ('in', 'not in'),
            'd': _NONE,
        },
        statement=(
            "Of the words that {has} '{c}', print the {fn}, the first of equal"
            ' ones, or {d} if there is none.'
        ),
        grammar=inputs.words(),
        program=(
            "b = [w for w in input().split() if '{c}' {has} w]\n"
            'print({fn}(b, key=len) if b else {d})'
        ),
        off_by_one=('split()', 'split()[1:]'),
        edge=(' if b else {d}', ''),
        words={
            'has': _HAS,
            'fn': {'max': ('longest',), 'min': ('shortest',)},
        },
    ),
    level.Level(
        parameters={
            'rel': ('>', '>='),
            'k': (1, 2, 3),
            'rev': ('True', 'False'),
            'd': _RARE_NONE,
        },
        statement=(
            'Print the different words that appear a number of times {rel} {k},'
            ' in {rev} order, or {d} if there are none.'
        ),
        grammar=inputs.words(),
        program=(
            'b = input().split()\n'
            'c = [w for w in set(b) if b.count(w) {rel} {k}]\n'
            'print(*sorted(c, reverse={rev}) or [{d}])'
        ),
        off_by_one=('{rel} {k}', '{rel_off} {k}'),
        edge=('set(b)', 'b'),
        # Words that appear four times are rare.
        where=lambda p: (p['rel'], p['k']) != ('>', 3),
        words={
            'rev': {
                'True': ('reverse alphabetical',),
                'False': ('alphabetical',),
            }
        },
    ),
)

FAMILIES: Mapping[str, tuple[level.Level, ...]] = {
    'letters': LETTERS,
    'slices': SLICES,
    'ciphers': CIPHERS,
    'words': WORDS,
}
