"""Families: cases worked by hand, and references against brute force.

The brute force of a level is written from its statement, with a method
different from the program that the family teaches.
"""

import math
import random

from absl.testing import absltest
from absl.testing import parameterized

from evojax.domains.coding import problems
from evojax.domains.coding import programs
from evojax.domains.coding.families import FAMILIES
from evojax.domains.coding.families import level as level_lib

LEVELS = [(f, i) for f, levels in FAMILIES.items() for i in range(len(levels))]

# Family, level, parameters, input, output.
BY_HAND = (
    # 5 and 9 are above 4; nothing is above 9.
    ('sums', 0, dict(rel='>', k=4, d=-1), '3\n4 5 9\n', '14'),
    ('sums', 0, dict(rel='>', k=9, d=-1), '2\n4 9\n', '-1'),
    ('sums', 0, dict(rel='>=', k=9, d=-1), '0\n\n', '-1'),
    # 7 // 3 = 2, -1 // 3 = -1, 11 // 3 = 3: 2 and -1 are at most 2.
    ('sums', 1, dict(m=3, rel='<=', m2=2, d=-9), '3\n7 -1 11\n', '1'),
    # -20 counts as -5, 3 as 3, 50 as 10.
    ('sums', 2, dict(k=-5, m=10), '3\n-20 3 50\n', '8'),
    # 1, 2 and 5 are from 1 to 5; 2 is there twice.
    ('counting', 0, dict(k=1, m=5), '6\n2 2 1 5 0 6\n', '3'),
    # -4 = -2 * 3 + 2 and 5 have remainder 2; so has 8, but it is not below 8.
    ('counting', 1, dict(m=3, r=2, k=8), '4\n-4 5 8 6\n', '2'),
    # 5 twice, 7 three times, 3 twice: but 3 is below 4.
    ('counting', 2, dict(c=2, rel='>', k=4), '7\n5 7 7 5 7 3 3\n', '1'),
    ('extremes', 0, dict(fn='min', rel='>', k=3, d=-2), '3\n3 9 5\n', '5'),
    ('extremes', 0, dict(fn='max', rel='<', k=3, d=-2), '2\n3 9\n', '-2'),
    ('extremes', 1, dict(which='0', rel='>=', k=9, d=-3), '3\n1 9 9\n', '2'),
    ('extremes', 1, dict(which='-1', rel='>=', k=9, d=-3), '3\n1 9 9\n', '3'),
    # Different ones, falling: 9 7 4.
    ('extremes', 2, dict(rev='True', k=3, d=-9), '4\n9 4 9 7\n', '4'),
    ('extremes', 2, dict(rev='False', k=4, d=-9), '4\n9 4 9 7\n', '-9'),
    ('sorting', 0, dict(rel='<', k=5, rev='True', d=-1), '3\n1 5 3\n', '3 1'),
    # Remainders by 4 of 9 6 5 -3: 1 2 1 1.
    ('sorting', 1, dict(rel='<=', k=9, m=4), '4\n9 6 5 -3\n', '-3 5 9 6'),
    # 9 + 7 - 1
    ('sorting', 2, dict(k=2, j=1, d=-8), '3\n7 1 9\n', '15'),
    ('sorting', 2, dict(k=3, j=1, d=-8), '2\n7 1\n', '-8'),
    # 1+4 1+4 4+4: two are below 8.
    ('pairs', 0, dict(op='+', rel='<', k=8), '3\n1 4 4\n', '2'),
    # |1-4| |1-4| |4-4|
    ('pairs', 0, dict(op='-', rel='>=', k=3), '3\n1 4 4\n', '2'),
    # 3 + 9 reaches 12, no single one does.
    ('pairs', 1, dict(fn='min', rel='>=', k=12, d=-1), '3\n2 3 9\n', '2'),
    ('pairs', 1, dict(fn='max', rel='<', k=12, d=-1), '3\n12 13 40\n', '-1'),
    # 5-1 = 4, 1-7 = -6, 7-5 = 2: by at least 4 differ two, one exceeds.
    ('pairs', 2, dict(what='abs', rel='>=', k=4), '3\n5 1 7\n', '2'),
    ('pairs', 2, dict(what='', rel='>=', k=4), '3\n5 1 7\n', '1'),
    ('windows', 0, dict(rel='>', k=2, d=-1), '6\n3 4 2 5 6 7\n', '3'),
    ('windows', 0, dict(rel='>', k=7, d=-1), '2\n3 7\n', '-1'),
    # 1+5 5-2 -2+9
    ('windows', 1, dict(fn='max', k=2, d=-9), '4\n1 5 -2 9\n', '7'),
    ('windows', 1, dict(fn='min', k=3, d=-9), '2\n1 5\n', '-9'),
    # 6, 10, 19: it takes three to be above 10.
    ('windows', 2, dict(rel='>', k=10, d=-1), '3\n6 4 9\n', '3'),
    ('windows', 2, dict(rel='>=', k=10, d=-1), '3\n6 4 9\n', '2'),
    ('windows', 2, dict(rel='>=', k=20, d=-1), '3\n6 4 9\n', '-1'),
    # b three times, d once: 3 * 5 + 2.
    ('letters', 0, dict(c='b', e='d', k=5, m=2), 'BbxDb\n', '17'),
    ('letters', 1, dict(c='x', k=2, d=-4), 'axbx\n', '4'),
    ('letters', 1, dict(c='x', k=3, d=-4), 'axbx\n', '-4'),
    ('letters', 2, dict(c='x', k=2, d=-4), 'xaxxxb\n', '3'),
    ('letters', 2, dict(c='x', k=2, d=-4), 'xax\n', '-4'),
    ('slices', 0, dict(k=2, d=70), 'abcde\n', 'bd'),
    ('slices', 0, dict(k=2, d=70), 'a\n', '70'),
    # Four times one letter is one time, for a word of three.
    ('slices', 1, dict(dir='', k=4, c='x'), 'abc\n', 'xbca'),
    ('slices', 1, dict(dir='-', k=4, c='x'), 'abc\n', 'xcab'),
    ('slices', 2, dict(k=2, d=10), 'abcde\n', 'ab10cd10e'),
    ('slices', 2, dict(k=2, d=10), 'ab\n', 'ab'),
    # y + 3 = b around the circle; c stays.
    ('ciphers', 0, dict(k=3, op='+', c='c'), 'yca\n', 'bcd'),
    ('ciphers', 0, dict(k=3, op='-', c='c'), 'yca\n', 'vcx'),
    # a = 1, b = 2 doubled, c = 3 doubled.
    ('ciphers', 1, dict(k=2, rel='>', c='a'), 'aBC\n', '11'),
    # The last b is the fourth letter.
    ('ciphers', 2, dict(k=3, c='b', e='d'), 'bdxb\n', 'dbxb'),
    ('words', 0, dict(rel='>', k=2, c='b', has='in'), 'ab Abc bcd\n', '2'),
    ('words', 0, dict(rel='>', k=2, c='b', has='not in'), 'a acd BCD\n', '1'),
    ('words', 1, dict(fn='max', c='b', has='in', d=-1), 'ab cb ccc\n', 'ab'),
    ('words', 1, dict(fn='min', c='b', has='not in', d=-1), 'ab b\n', '-1'),
    ('words', 2, dict(rel='>', k=1, rev='True', d=-20), 'a b a b c\n', 'b a'),
    ('words', 2, dict(rel='>=', k=2, rev='True', d=-20), '\n', '-20'),
    # 2..9 holds 9 and is 7 wide; 1..8 does not; 9..8 is 1 wide.
    ('intervals', 0, dict(k=9, m=5), '3\n9 2\n1 8\n9 8\n', '1'),
    # 1..4 and 3..7 cover 1 to 7: 2, 4 and 6, of which 4 and 6 are above 3.
    ('intervals', 1, dict(m=2, rel='>', k=3), '2\n1 4\n3 7\n', '2'),
    # From 3: 3..5, then from 5 + 2: 7..8. 4..6 and 6..9 overlap.
    ('intervals', 2, dict(t=3, k=2), '4\n6 9\n7 8\n4 6\n3 5\n', '2'),
    ('intervals', 2, dict(t=4, k=2), '1\n3 5\n', '0'),
    ('grids', 0, dict(c='x', k=2, d=-1), '2 3\nxxx\nxax\n', '2'),
    ('grids', 0, dict(c='x', k=3, d=-1), '2 3\nxxx\nxax\n', '-1'),
    # Rows xa, xa, aa: one different row has an x; columns xxa and aaa.
    ('grids', 1, dict(of='g', c='x', rel='>=', k=1), '3 2\nxa\nxa\naa\n', '1'),
    ('grids', 1, dict(of='zip(*g)', c='x', rel='<', k=1), '2 1\nx\nx\n', '0'),
    ('grids', 2, dict(c='x', k=2, d=-1), '3 2\nxa\nxx\nxx\n', '2'),
    ('grids', 2, dict(c='x', k=2, d=-1), '1 2\nxa\n', '-1'),
    # 3 5 6 9 10 12 15: 15 counts once.
    ('multiples', 0, dict(a=3, b=5, end='n + 1'), '15\n', '60'),
    ('multiples', 0, dict(a=3, b=5, end='n'), '15\n', '45'),
    ('multiples', 1, dict(m=7, r=2, op='+'), '10\n', '16'),
    ('multiples', 1, dict(m=7, r=2, op='-'), '-6\n', '-12'),
    # 1 2 3 4 6 12, at most 6 and not even: 1 3.
    ('multiples', 2, dict(rel='<=', k=6, m=2), '-12\n', '2'),
    ('multiples', 2, dict(rel='<=', k=6, m=2), '0\n', '0'),
    # 0, 4, 8, 10 (not 12), 7.
    ('simulation', 0, dict(k=4, j=3, m=10), 'LRRRL\n', '7'),
    # 5 + 9 = 14; 14 + 8 is above 20: 2; 2 - 5: 0; 0 + 3.
    ('simulation', 1, dict(t=5, k=20, r=2), '4\n9 8 -5 3\n', '3'),
    # 1..5, skip 1: 2 goes; from 3 skip 3: 4 goes; from 5 skip 5: 1 goes.
    ('simulation', 2, dict(k=1, r=2), '5\n', '3 5'),
    ('simulation', 2, dict(k=1, r=3), '2\n', '1 2'),
    # 1+1+1, 1+2, 2+1; modulo 2 that is 1.
    ('dynamic', 0, dict(a=1, b=2, m=10), '3\n', '3'),
    ('dynamic', 0, dict(a=2, b=3, m=10), '1\n', '0'),
    # 8 = 4 + 4: greedily 5 + ... cannot.
    ('dynamic', 1, dict(a=4, b=5, d=-1), '8\n', '2'),
    ('dynamic', 1, dict(a=4, b=5, d=-1), '7\n', '-1'),
    # 9 and 8 are 2 apart: (9 - 1) + (8 - 1).
    ('dynamic', 2, dict(k=2, c=1), '3\n9 9 8\n', '15'),
    ('dynamic', 2, dict(k=2, c=10), '1\n9\n', '0'),
)

_HOLDS = {
    '>': lambda x, k: x > k,
    '<': lambda x, k: x < k,
    '>=': lambda x, k: not x < k,
    '<=': lambda x, k: not x > k,
}


def _numbers(stdin):
  return [int(x) for x in stdin.split()[1:]]


def _pick(p, values, name='k'):
  return [x for x in values if _HOLDS[p['rel']](x, p[name])]


def _sums_0(p, stdin):
  found = _pick(p, _numbers(stdin))
  return sum(found) if found else p['d']


def _sums_1(p, stdin):
  found = _pick(p, [math.floor(x / p['m']) for x in _numbers(stdin)], 'm2')
  return sum(found) if found else p['d']


def _sums_2(p, stdin):
  return sum(sorted((p['k'], x, p['m']))[1] for x in _numbers(stdin))


def _counting_0(p, stdin):
  values = _numbers(stdin)
  return sum(k in values for k in range(p['k'], p['m'] + 1))


def _counting_1(p, stdin):
  reached = {p['r'] + p['m'] * i for i in range(-200, 200)}
  return len([x for x in _numbers(stdin) if x in reached and x < p['k']])


def _counting_2(p, stdin):
  values = sorted(_numbers(stdin))
  runs = {}
  for x in values:
    runs[x] = runs.get(x, 0) + 1
  return len([x for x in _pick(p, runs) if runs[x] == p['c']])


def _extremes_0(p, stdin):
  found = sorted(_pick(p, _numbers(stdin)))
  if not found:
    return p['d']
  return found[-1 if p['fn'] == 'max' else 0]


def _extremes_1(p, stdin):
  places = list(enumerate(_numbers(stdin), 1))
  if p['which'] == '-1':
    places.reverse()
  return next((i for i, x in places if _HOLDS[p['rel']](x, p['k'])), p['d'])


def _extremes_2(p, stdin):
  values = _numbers(stdin)
  for _ in range(p['k'] - 1):
    if values:
      best = max(values) if p['rev'] == 'True' else min(values)
      values = [x for x in values if x != best]
  if not values:
    return p['d']
  return max(values) if p['rev'] == 'True' else min(values)


def _sorting_0(p, stdin):
  found = sorted(_pick(p, _numbers(stdin)))
  return (found[::-1] if p['rev'] == 'True' else found) or p['d']


def _sorting_1(p, stdin):
  found = sorted(_pick(p, _numbers(stdin)))
  return [x for r in range(p['m']) for x in found if x % p['m'] == r]


def _sorting_2(p, stdin):
  values = sorted(_numbers(stdin), reverse=True)
  if len(values) < p['k']:
    return p['d']
  return sum(values[: p['k']]) - sum(values[::-1][: p['j']])


def _pairs_0(p, stdin):
  values = _numbers(stdin)
  found = []
  for i, x in enumerate(values):
    for y in values[i + 1 :]:
      found.append(x + y if p['op'] == '+' else max(x, y) - min(x, y))
  return len(_pick(p, found))


def _pairs_1(p, stdin):
  values = _numbers(stdin)
  sizes = range(1, len(values) + 1)
  for size in sizes if p['fn'] == 'min' else reversed(sizes):
    for start in range(len(values) - size + 1):
      if _pick(p, [sum(values[start : start + size])]):
        return size
  return p['d']


def _pairs_2(p, stdin):
  values = _numbers(stdin)
  steps = [x - y for x, y in zip(values, values[-1:] + values[:-1])]
  return len(_pick(p, map(abs, steps) if p['what'] else steps))


def _windows_0(p, stdin):
  marks = ''.join('x' if _pick(p, [x]) else ' ' for x in _numbers(stdin))
  return max(map(len, marks.split()), default=p['d'])


def _windows_1(p, stdin):
  values = _numbers(stdin)
  total = sum(values[: p['k']])
  sums = [total]
  for new, old in zip(values[p['k'] :], values):
    total += new - old
    sums.append(total)
  if len(values) < p['k']:
    return p['d']
  return sorted(sums)[-1 if p['fn'] == 'max' else 0]


def _windows_2(p, stdin):
  values = _numbers(stdin)
  taken = [i for i in range(1, len(values) + 1) if _pick(p, [sum(values[:i])])]
  return taken[0] if taken else p['d']


def _letters_0(p, stdin):
  worth = {p['c']: p['k'], p['e']: p['m']}
  worth |= {c.upper(): points for c, points in worth.items()}
  return sum(worth.get(x, 0) for x in stdin)


def _letters_1(p, stdin):
  at = -1
  for _ in range(p['k']):
    at = stdin.find(p['c'], at + 1)
    if at < 0:
      return p['d']
  return at + 1


def _letters_2(p, stdin):
  longest = max(n for n in range(99) if p['c'] * n in stdin)
  return longest if longest >= p['k'] else p['d']


def _slices_0(p, stdin):
  word = stdin.strip()
  kept = [x for i, x in enumerate(word, 1) if i % p['k'] == 0]
  return ''.join(kept) or p['d']


def _slices_1(p, stdin):
  word = list(stdin.strip())
  for _ in range(p['k']):
    if p['dir']:
      word.insert(0, word.pop())
    else:
      word.append(word.pop(0))
  return p['c'] + ''.join(word)


def _slices_2(p, stdin):
  word = ''
  for i, x in enumerate(stdin.strip()):
    word += f'{p["d"]}{x}' if i and i % p['k'] == 0 else x
  return word


def _ciphers_0(p, stdin):
  circle = 'abcdefghijklmnopqrstuvwxyz' * 3
  step = p['k'] if p['op'] == '+' else -p['k']
  return ''.join(
      x if x == p['c'] else circle[26 + circle.index(x) + step]
      for x in stdin.strip()
  )


def _ciphers_1(p, stdin):
  total = 0
  for x in stdin.strip().lower():
    place = ' abcdefghijklmnopqrstuvwxyz'.index(x)
    total += place * p['k'] if _HOLDS[p['rel']](x, p['c']) else place
  return total


def _ciphers_2(p, stdin):
  swap = str.maketrans(p['c'] + p['e'], p['e'] + p['c'])
  word = stdin.strip()
  return word[: p['k']].translate(swap) + word[p['k'] :]


def _words_0(p, stdin):
  found = 0
  for word in stdin.split():
    has = p['c'] in word or p['c'].upper() in word
    found += has == (p['has'] == 'in') and _HOLDS[p['rel']](len(word), p['k'])
  return found


def _words_1(p, stdin):
  best = None
  for word in stdin.split():
    if (p['c'] in word) != (p['has'] == 'in'):
      continue
    longer = best is not None and len(word) > len(best)
    shorter = best is not None and len(word) < len(best)
    if best is None or (longer if p['fn'] == 'max' else shorter):
      best = word
  return best or p['d']


def _words_2(p, stdin):
  given = sorted(stdin.split(), reverse=p['rev'] == 'True')
  found = [w for w in dict.fromkeys(given) if _pick(p, [given.count(w)])]
  return found or p['d']


def _intervals(stdin):
  return [tuple(map(int, x.split())) for x in stdin.splitlines()[1:]]


def _intervals_0(p, stdin):
  found = 0
  for a, b in _intervals(stdin):
    inside = p['k'] in range(min(a, b), max(a, b) + 1)
    found += inside and abs(a - b) >= p['m']
  return found


def _intervals_1(p, stdin):
  covered = [
      x for x in range(200) if any(l <= x <= r for l, r in _intervals(stdin))
  ]
  return len([x for x in _pick(p, covered) if x % p['m'] == 0])


def _intervals_2(p, stdin):
  """The most meetings by dynamic programming over the time of the room."""
  meetings = _intervals(stdin)
  held = [0] * 400
  for time in range(250, -1, -1):
    held[time] = max(
        [held[time + 1]]
        + [1 + held[max(r + p['k'], time)] for l, r in meetings if l == time]
    )
  return held[p['t']]


def _rows(stdin):
  return stdin.split()[2:]


def _grids_0(p, stdin):
  rows = dict(enumerate(_rows(stdin), 1))
  if p['k'] not in rows:
    return p['d']
  return len([x for x in rows[p['k']] if x == p['c']])


def _grids_1(p, stdin):
  rows = _rows(stdin)
  if p['of'] != 'g':
    rows = [''.join(r[i] for r in rows) for i in range(len(rows[0]))]
  counts = [len(r) - len(r.replace(p['c'], '')) for r in dict.fromkeys(rows)]
  return len(_pick(p, counts))


def _grids_2(p, stdin):
  best, row = p['k'] - 1, p['d']
  for i, x in enumerate(_rows(stdin), 1):
    if x.count(p['c']) > best:
      best, row = x.count(p['c']), i
  return row


def _multiples_0(p, stdin):
  last = int(stdin) - (p['end'] == 'n')
  found = set(range(p['a'], last + 1, p['a']))
  return sum(found | set(range(p['b'], last + 1, p['b'])))


def _multiples_1(p, stdin):
  n = int(stdin)
  if p['op'] == '+':
    return n + (p['r'] - n) % p['m']
  return n - (n - p['r']) % p['m']


def _multiples_2(p, stdin):
  n = abs(int(stdin))
  divisors = [n // x for x in range(1, n + 1) if x * (n // x) == n]
  return len([x for x in _pick(p, divisors) if x % p['m']])


def _simulation_0(p, stdin):
  at = 0
  for move in stdin.strip():
    for _ in range(p['k'] if move == 'R' else p['j']):
      at = min(at + 1, p['m']) if move == 'R' else max(at - 1, 0)
  return at


def _simulation_1(p, stdin):
  at = p['t']
  for x in _numbers(stdin):
    at += x
    at = 0 if at < 0 else p['r'] if at > p['k'] else at
  return at


def _simulation_2(p, stdin):
  circle = list(range(1, int(stdin) + 1))
  while len(circle) > p['r']:
    for _ in range(p['k']):
      circle.append(circle.pop(0))
    circle.pop(0)
  return sorted(circle)


def _dynamic_0(p, stdin):
  n, ways = int(stdin), 0
  for many in range(n // p['b'] + 1):
    few, rest = divmod(n - many * p['b'], p['a'])
    ways += math.comb(many + few, many) if not rest else 0
  return ways % p['m']


def _dynamic_1(p, stdin):
  n = int(stdin)
  pays = [
      i + j
      for i in range(n // p['a'] + 1)
      for j in range(n // p['b'] + 1)
      if i * p['a'] + j * p['b'] == n
  ]
  return min(pays, default=p['d'])


def _dynamic_2(p, stdin):
  values = [x - p['c'] for x in _numbers(stdin)]

  def best(i):
    if i >= len(values):
      return 0
    if i not in known:
      known[i] = max(best(i + 1), values[i] + best(i + p['k']))
    return known[i]

  known = {}
  return best(0)


class FamiliesTest(parameterized.TestCase):

  def test_at_least_twelve_families_of_three_levels(self):
    self.assertGreaterEqual(len(FAMILIES), 12)
    for levels in FAMILIES.values():
      self.assertLen(levels, 3)

  def test_every_level_has_a_case_by_hand(self):
    self.assertEqual({case[:2] for case in BY_HAND}, set(LEVELS))

  @parameterized.parameters(*BY_HAND)
  def test_by_hand(self, family, level, parameters, stdin, expected):
    kind = FAMILIES[family][level]
    right = kind.programs(parameters)['right']
    self.assertEqual(programs.run(right, stdin).split(), expected.split())
    self.assertEqual(set(parameters), set(kind.parameters))

  @parameterized.parameters(*LEVELS)
  def test_reference_agrees_with_brute_force(self, family, level):
    brute = globals()[f'_{family}_{level}']
    kind = FAMILIES[family][level]
    rng = random.Random(f'{family} {level}')
    for parameters in rng.sample(kind.contents, 12):
      given = kind.inputs(parameters, rng)
      right = kind.programs(parameters)['right']
      for stdin in (*given.edges, *map(given.some, (1, 3, 6, 12))):
        answer = brute(parameters, stdin)
        tokens = answer if isinstance(answer, list) else [answer]
        self.assertEqual(
            programs.run(right, stdin).split(),
            [str(x) for x in tokens if x != ''],
            (parameters, stdin),
        )

  @parameterized.parameters(*LEVELS)
  def test_every_parameter_is_in_the_statement_and_in_the_program(
      self, family, level
  ):
    # Otherwise two contents would be one problem in two splits.
    kind = FAMILIES[family][level]
    rng = random.Random(0)
    for wording in range(level_lib.WORDINGS):
      asked, right = {}, {}
      for parameters in rng.sample(kind.contents, 200):
        key = tuple(parameters.items())
        asked.setdefault(kind.ask(parameters, wording), set()).add(key)
        right.setdefault(kind.programs(parameters)['right'], set()).add(key)
      self.assertEqual(max(map(len, asked.values())), 1)
      self.assertEqual(max(map(len, right.values())), 1)

  @parameterized.parameters(*LEVELS)
  def test_wordings_differ(self, family, level):
    kind = FAMILIES[family][level]
    ways = {kind.ask(kind.contents[0], w) for w in range(level_lib.WORDINGS)}
    self.assertLen(ways, level_lib.WORDINGS)

  def test_an_edit_that_changes_nothing_is_refused(self):
    kind = FAMILIES['sums'][0]
    with self.assertRaisesRegex(ValueError, 'edge=.* changes nothing'):
      level_lib.Level(
          kind.parameters,
          kind.statement,
          kind.grammar,
          kind.program,
          kind.off_by_one,
          ('not there', ''),
      )

  def test_a_table_is_read(self):
    table = {
        'parameters': {'k': '-1..1', 'c': 'ab', 'rel': ['<', '>=']},
        'where': "k != 0 and (c, rel) == ('b', '>=')",
        'grammar': {'form': 'numbers', 'low': 1, 'high': 9},
        'statement': 'Print what\nis {rel} {k}.',
        'program': 'print({k} {rel} 0)',
        'off_by_one': ['{rel}', '{rel_off}'],
        'edge': [' 0', ' 1'],
    }
    kind = level_lib.parse(table)
    self.assertEqual(
        kind.contents,
        ({'k': -1, 'c': 'b', 'rel': '>='}, {'k': 1, 'c': 'b', 'rel': '>='}),
    )
    self.assertEqual(kind.statement, 'Print what is {rel} {k}.')
    self.assertEqual(kind.programs(kind.contents[0])['edge'], 'print(-1 >= 1)')
    with self.assertRaisesRegex(TypeError, 'edges'):
      level_lib.parse({**table, 'edges': []})

  def test_identities_are_distinct(self):
    found = set()
    count = 0
    for family, level in LEVELS:
      for parameters in FAMILIES[family][level].contents:
        found.add(problems.identity(family, level, parameters))
        count += 1
    self.assertLen(found, count)
    self.assertGreaterEqual(count, 2_600)


class ProgramsTest(absltest.TestCase):

  def test_reads_and_prints_as_python_does(self):
    self.assertEqual(programs.run('print(input(), 1)', 'a\n'), 'a 1\n')
    self.assertEqual(programs.run('print()', ''), '\n')
    self.assertEqual(programs.run('print([input()])', '\n'), "['']\n")

  def test_one_that_dies_prints_nothing_that_counts(self):
    for text in ('print(1)\nx = 1 // 0', 'input()', 'int("x")', '[][0]'):
      self.assertIsNone(programs.run(text, ''))


if __name__ == '__main__':
  absltest.main()
