"""The parts of a reward are separated on the syntax tree."""

import ast

from absl.testing import absltest
from absl.testing import parameterized

from evojax.harness import parts as parts_lib
from evojax.harness import syntax

_hashes = parts_lib.hashes

REWARD = '''"""Doc."""
import numpy as np

LIMIT = 0.5


def _used(e):
  """Share."""
  return e.n_tokens / e.max_tokens


def _over(e):
  return np.clip(_used(e) - LIMIT, 0, 1)


def parts(e):
  """Parts."""
  return {
      'outcome': e.outcome * 1.0,
      'length': _used(e),
      'over': _over(e),
  }
'''


LINES = '''import numpy as np

LIMIT = 0.5


def _least(x):
  return x.min(axis=1, keepdims=True)


def parts(e):
  """Parts."""
  # Unsolved ones count as long.
  tokens = np.where(e.outcome, e.n_tokens, e.max_tokens)
  fewest = tokens == _least(tokens)
  limit = e.max_tokens * LIMIT  # Half.
  return {
      'outcome': e.outcome * 1.0,
      'brief': e.outcome & fewest,
      'fits': tokens < limit,
  }
'''


def changed(old, new, source=REWARD):
  """Return the parts whose hash changes when old becomes new."""
  assert source.count(old) == 1, old
  before, after = _hashes(source), _hashes(source.replace(old, new))
  return sorted(
      part for part in {*before, *after} if before.get(part) != after.get(part)
  )


class PartsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('its value', 'e.outcome * 1.0', 'e.outcome * 2.0', ['outcome']),
      ('own helper', '- LIMIT', '+ LIMIT', ['over']),
      ('constant', 'LIMIT = 0.5', 'LIMIT = 0.25', ['over']),
      ('shared', 'e.n_tokens / e', '2 * e.n_tokens / e', ['length', 'over']),
      ('import', 'import numpy as np', 'import scipy as np', ['over']),
      ('default', 'def _over(e)', 'def _over(e, k=[1])', ['over']),
      ('gone', "      'length': _used(e),\n", '', ['length']),
      ('renamed', "'length'", "'long'", ['length', 'long']),
      ('module doc', '"""Doc."""', '"""Other."""', []),
      ('doc', '"""Share."""', '"""Other."""', []),
      ('doc of parts', '  """Parts."""\n', '', []),
      ('comment', 'LIMIT = 0.5', 'LIMIT = 0.5  # Half.', []),
      ('form', 'e.n_tokens / e', '(e.n_tokens\n      / e', []),
      ('blank lines', '\n\n\ndef _used', '\ndef _used', []),
      ('quotes', "'length'", '"length"', []),
  )
  def test_change(self, old, new, parts):
    if new.startswith('(e.n_tokens'):
      old, new = 'e.n_tokens / e.max_tokens', f'{new}.max_tokens)'
    self.assertEqual(changed(old, new), parts)

  def test_order_of_parts_and_of_statements_is_no_change(self):
    lines = (
        REWARD.replace(
            "      'outcome': e.outcome * 1.0,\n      'length': _used(e),\n",
            "      'length': _used(e),\n      'outcome': e.outcome * 1.0,\n",
        ).replace('LIMIT = 0.5\n', '')
        + 'LIMIT = 0.5\n'
    )
    self.assertEqual(_hashes(lines), _hashes(REWARD))

  def test_one_import_line_is_several_names(self):
    source = (
        'from math import cos, sin\n'
        'def parts(e):\n'
        "  return {'a': sin(e.x), 'b': cos(e.x)}\n"
    )
    self.assertEqual(changed('cos, sin', 'cos, tan as sin', source), ['a'])

  @parameterized.named_parameters(
      ('no parts', 'X = 1\n', 'there is no function parts'),
      (
          'local and global',
          "x = 1\ndef parts(e):\n  x = 2\n  return {'a': x}\n",
          'line 3: x is bound twice',
      ),
      (
          'unused local',
          "def parts(e):\n  x = 1\n  y = x\n  return {'a': x}\n",
          'line 3: y is used by no part',
      ),
      (
          'filled dict',
          "def parts(e):\n  r = {}\n  r['a'] = 1\n  return r\n",
          'line 4: `parts` ends in one `return',
      ),
      ('no dict', 'def parts(e):\n  return f(a=e)\n', 'one `return'),
      ('computed name', 'def parts(e):\n  return {str(e): 1}\n', 'literal'),
      ('spread', "def parts(e):\n  return {**e, 'a': 1}\n", 'literal'),
      ('twice', "def parts(e):\n  return {'a': 1, 'a': 2}\n", 'twice'),
      ('walrus', "def parts(e):\n  return {'a': (x := 1), 'b': x}\n", ':='),
      ('signature', "def parts(e, f=1):\n  return {'a': 1}\n", r'parts\(e\)'),
      ('decorated', "@x\ndef parts(e):\n  return {'a': 1}\n", 'decorators'),
      (
          'unused',
          "A = 1\ndef parts(e):\n  return {'a': 1}\n",
          'line 1: A is used by no part',
      ),
      (
          'early return',
          'def parts(e):\n  if e:\n    return {}\n  x = 1\n'
          "  return {'a': x}\n",
          'line 3: `parts` ends in one `return',
      ),
      (
          'local of a block and global',
          'x = 1\ndef parts(e):\n  for x in e.a:\n    pass\n'
          "  return {'a': x}\n",
          'line 3: x is bound twice',
      ),
      (
          'rebound',
          "A = 1\nA = 2\ndef parts(e):\n  return {'a': A}\n",
          'line 2: A is bound twice',
      ),
      (
          'loop',
          "for i in (1, 2):\n  A = i\ndef parts(e):\n  return {'a': A}\n",
          'line 1: only imports, constants',
      ),
      (
          'global',
          'A = 1\ndef f(e):\n  global A\n  A += 1\n  return A\n'
          "def parts(e):\n  return {'a': f(e)}\n",
          'line 3: global is not allowed',
      ),
      (
          'dynamic',
          "def parts(e):\n  return {'a': globals()['b']}\n",
          'globals hides the names',
      ),
      ('capital', "def parts(e):\n  return {'Bonus': 1}\n", "'Bonus' is not a"),
      ('private', "def parts(e):\n  return {'_x': 1}\n", "2: '_x' is not a v"),
      (
          'long name',
          f"def parts(e):\n  return {{'{'x' * 65}': 1}}\n",
          'is not a valid name of a part; use at most 64',
      ),
      (
          'many',
          f'def parts(e):\n  return {dict.fromkeys(map(str, range(65)))}\n',
          'line 1: 65 parts; a reward has <= 64',
      ),
      ('syntax', 'def parts(e:\n', r'line 1: '),
  )
  def test_refuses(self, source, message):
    with self.assertRaisesRegex(syntax.SourceError, message):
      _hashes(source)

  @parameterized.named_parameters(
      ('own line', 'tokens == _', 'tokens <= _', ['brief']),
      ('what a line reaches', 'x.min(', 'x.max(', ['brief']),
      ('constant', 'LIMIT = 0.5', 'LIMIT = 0.25', ['fits']),
      ('shared', 'e.n_tokens', '2 * e.n_tokens', ['brief', 'fits']),
      ('renamed', '_least(tokens)', '_least(e.n_tokens)', ['brief']),
      ('value', 'e.outcome * 1.0', 'e.outcome * 2.0', ['outcome']),
      ('comment', '  # Half.', '', []),
  )
  def test_change_of_a_line_of_parts(self, old, new, parts):
    self.assertEqual(changed(old, new, LINES), parts)

  def test_a_function_sees_no_line_of_parts(self):
    """A function's own variable of the same name is a different one."""
    source = LINES.replace('_least(x)', '_least(limit)').replace(
        'x.m', 'limit.m'
    )
    self.assertEqual(changed('LIMIT = 0.5', 'LIMIT = 1.5', source), ['fits'])

  def test_dict_with_keywords_is_a_dict(self):
    form = 'def parts(e):\n  return {}\n'.format
    self.assertEqual(
        _hashes(form('dict(a=e.a, b=1)')),
        _hashes(form("{'a': e.a, 'b': 1}")),
    )

  @parameterized.parameters(
      '  x[0] = 1\n', '  x += 1\n', '  x.fill(1)\n', '  x.sort(axis=1)\n',
      '  x = np.nan_to_num(x, copy=False)\n',
  )  # fmt: skip
  def test_parts_that_share_a_value_cannot_change_it(self, line):
    """Otherwise changing one part would change another, too."""
    shared = LINES.replace('  return x', f'{line}  return x')
    returned = shared.replace('e.outcome & fewest', '_least(fewest)')
    with self.assertRaisesRegex(
        syntax.SourceError, 'line 7: .* changes a value in place .*np.where'
    ):
      _hashes(returned)
    # On an earlier line, it belongs to every part that these lines compute.
    self.assertEqual(
        changed('LIMIT = 0.5', 'LIMIT = 1.5', shared), ['brief', 'fits']
    )
    alone = REWARD.replace('  return np', f'  x = 1 * e.a\n{line}  return np')
    self.assertLen(_hashes(alone), 3)

  @parameterized.parameters(
      ('x = 0\n  for i in (1, 2):\n    x += i', 'i in (1', 'i in (3'),
      ('x = 1\n  x = x + 1', 'x + 1', 'x + 2'),
      ('x, y = 1, 2', '1, 2', '3, 4'),
      ('x = (y := 1) + y', ':= 1', ':= 2'),
      ('x = {}\n  x["b"] = 1', '= 1', '= 2'),
      ('if e.a:\n    x = 1\n  else:\n    x = 2', '= 2', '= 3'),
      ('def f(y):\n    return y\n  x = f(1)', 'f(1)', 'f(2)'),
      ('x = _HALF\n  del e', '= 0.5', '= 0.25'),
  )
  def test_statements_are_one_block(self, block, old, new):
    """A part that uses one of its names changes with it; others do not."""
    source = (
        f'_HALF = 0.5\n\n\ndef parts(e):\n  {block}\n  found = '
        "{'a': x, 'b': 2 * _HALF, 'c': [x]}\n  return found\n"
    )
    parts = ['a', 'b', 'c'] if '0.5' in old else ['a', 'c']
    self.assertEqual(changed(old, new, source), parts)
    part = "def parts(e):\n  return {'new': e.partial}\n"
    both = _hashes(parts_lib.add(source, part))
    self.assertEqual(both, {**_hashes(source), **_hashes(part)})

  @parameterized.named_parameters(
      ('a closure', 'def f(): x.append(1)\n  x = []', 'f()', r'\.append\(\)'),
      (
          'a counter',
          'x = 0\n  def f():\n    nonlocal x\n    x += 1',
          'f()',
          'nonlocal|an assignment',
      ),
      ('an object', 'x = C()\n  x = x', 'x.add_one()', 'an assignment'),
      ('a table', 'x = [lambda y: y.sort()]\n  x = x', 'x[0](e)', r'\.sort'),
      ('a helper', 'x = 1\n  x = 2', '_write(x)', 'an assignment'),
      ('out', 'x = 1\n  x = 2', 'np.add(1, 2, out=x)', 'out='),
      ('a list', 'x = []\n  x += []', 'x.append(1)', r'\.append\(\)'),
      ('a default', 'x = collections.defaultdict(int)', 'x[1]', 'defaultdict'),
  )
  def test_parts_cannot_change_a_block_either(self, block, value, what):
    classes = 'class C:\n  def add_one(self):\n    self.n = 1\n'
    helper = 'def _write(x):\n  x[0] = 1\n'
    source = (
        'import collections\nimport numpy as np\n'
        f'{classes if "C()" in block else ""}'
        f'{helper if "_write" in value else ""}'
        f'def parts(e):\n  {block}\n'
        f"  return {{'a': {value}, 'b': x}}\n"
    )
    with self.assertRaisesRegex(syntax.SourceError, what):
      _hashes(source)

  def test_what_computes_nothing_may_be_there(self):
    plain = "def parts(e):\n  return {'a': e.outcome}\n"
    typed = (
        'from __future__ import annotations\nimport re\n'
        'from typing import Dict\nimport numpy as np\n'
        "def parts(e) -> Dict[str, np.ndarray]:\n  return {'a': e.outcome}\n"
    )
    self.assertEqual(_hashes(plain), _hashes(typed))
    part = "import math\ndef parts(e):\n  return {'b': math.pi * e.partial}\n"
    for first, second in ((typed, part), (part, typed)):
      both = parts_lib.add(first, second)
      compile(both, 'reward.py', 'exec')
      wanted = [*_hashes(first), *_hashes(second)]
      self.assertEqual(list(_hashes(both)), wanted)

  def test_what_parts_share_is_written_down_once(self):
    source = 'a0 = 0\n' + ''.join(f'a{i} = a{i - 1}\n' for i in range(1, 200))
    listed = ', '.join(f"'p{i}': a199" for i in range(64))
    source += f'def parts(e):\n  return {{{listed}}}\n'
    with absltest.mock.patch.object(
        ast, 'unparse', side_effect=ast.unparse
    ) as written:
      self.assertLen(_hashes(source), 64)
    self.assertEqual(written.call_count, 200 + 64)

  def test_hashes_are_what_they_were(self):
    """A ledger identifies changes by them."""
    self.assertEqual(
        {part: value[:12] for part, value in _hashes(REWARD).items()},
        {
            'outcome': 'f692832bac53',
            'length': '2bd3af06d34a',
            'over': 'df58a72230cc',
        },
    )


class AddTest(parameterized.TestCase):

  def test_adds_with_what_it_needs(self):
    both = parts_lib.add(
        REWARD,
        'import numpy as np\nTWO = 2\n'
        "def parts(e):\n  return {'square': np.abs(e.partial) ** TWO}\n",
    )
    before, after = _hashes(REWARD), _hashes(both)
    self.assertEqual(set(after) - set(before), {'square'})
    self.assertEqual({k: after[k] for k in before}, before)
    self.assertIn('TWO = 2', both)

  def test_replaces_and_drops_what_nothing_needs(self):
    after = parts_lib.add(
        REWARD, "def parts(e):\n  return {'over': e.partial}\n"
    )
    self.assertNotIn('LIMIT', after)
    self.assertIn('_used', after)  # `length` still needs it.
    before = _hashes(REWARD)
    self.assertEqual(
        [k for k, v in _hashes(after).items() if before.get(k) != v],
        ['over'],
    )

  def test_keeps_the_words_of_the_rest(self):
    after = parts_lib.add(
        REWARD.replace('LIMIT = 0.5', 'LIMIT = 0.5  # Half.'),
        "def parts(e):\n  return {'partial': e.partial}\n",
    )
    self.assertIn('LIMIT = 0.5  # Half.', after)
    self.assertIn('"""Share."""', after)

  @parameterized.parameters('\x0c', '\x1c', '\x85', '\u2028')
  def test_lines_end_where_those_of_python_do(self, character):
    part = "def parts(e):\n  return {'partial': e.partial}\n"
    for place in ('LIMIT =', 'def parts', '  return {\n'):
      comment = f'  # a{character}b\n'
      reward = REWARD.replace(place, comment + place)
      after = _hashes(parts_lib.add(reward, part))
      self.assertEqual(after, {**_hashes(REWARD), **_hashes(part)})

  def test_any_form_of_return(self):
    part = "def parts(e):\n  return {'partial': e.partial}\n"
    for reward in (
        "def parts(e): return {'a': e.a}\n",
        "def parts(e):\n    '''Doc.'''\n    return{'a':\n  e.a}\n",
        "def parts(\n    e,\n):\n  # Why.\n  return {'a': e.a}  # End.\n",
    ):
      with self.subTest(reward):
        after = _hashes(parts_lib.add(reward, part))
        self.assertEqual(after, {**_hashes(reward), **_hashes(part)})

  def test_lines_of_parts(self):
    other = (
        'def parts(e):\n    long = (\n        e.n_tokens > 9\n    )\n'
        '    return dict(long=long, outcome=e.partial)\n'
    )
    for first, second in ((LINES, other), (other, LINES), (LINES, REWARD)):
      both = parts_lib.add(first, second)
      self.assertEqual(_hashes(both), {**_hashes(first), **_hashes(second)})
    both = parts_lib.add(LINES, "def parts(e):\n  return {'fits': e.partial}\n")
    self.assertNotIn('limit', both)
    self.assertNotIn('LIMIT', both)
    self.assertIn('  # Unsolved ones count as long.\n  tokens', both)

  def test_lines_that_clash(self):
    part = "def parts(e):\n  tokens = 1\n  return {'new': tokens}\n"
    with self.assertRaisesRegex(syntax.SourceError, 'tokens is something else'):
      parts_lib.add(LINES, part)
    part = "def parts(e): x = 1; return {'new': x}\n"
    with self.assertRaisesRegex(syntax.SourceError, 'one statement a line'):
      parts_lib.add(LINES, part)

  def test_what_compares_groups_is_told_of_the_whole(self):
    reward = f"{REWARD}\n\nACROSS_GROUPS = ('over',)\n"
    self.assertEqual(parts_lib.across('reward.py', reward), ('over',))
    self.assertEqual(_hashes(reward), _hashes(REWARD))
    rank = (
        "ACROSS_GROUPS = ('rank',)\n"
        "def parts(e):\n  return {'rank': e.partial}\n"
    )
    both = parts_lib.add(reward, rank)
    self.assertEqual(parts_lib.across('reward.py', both), ('over', 'rank'))
    plain = "def parts(e):\n  return {'over': e.partial}\n"
    self.assertEqual(
        parts_lib.across('reward.py', parts_lib.add(both, plain)), ('rank',)
    )
    self.assertEqual(parts_lib.across('reward.py', REWARD), ())

  def test_what_compares_groups_is_named(self):
    keep = "ACROSS_GROUPS = ('keep',)\ndef keep(e, s):\n  return e.valid, s\n"
    self.assertEqual(parts_lib.across('keep.py', keep), ('keep',))
    for name, source in (
        ('weight.py', keep),
        ('diagnostics/x.py', keep),
        ('reward.py', f"{REWARD}\nACROSS_GROUPS = ('none',)\n"),
        ('reward.py', f"{REWARD}\nACROSS_GROUPS = 'over'\n"),
        ('reward.py', f'{REWARD}\nACROSS_GROUPS = ([],)\n'),
        ('reward.py', f'{REWARD}\nACROSS_GROUPS = tuple(())\n'),
    ):
      with self.assertRaisesRegex(
          syntax.SourceError, r'line \d+: ACROSS_GROUPS is a tuple'
      ):
        parts_lib.across(name, source)

  def test_names_that_clash(self):
    with self.assertRaisesRegex(syntax.SourceError, '_used is something else'):
      parts_lib.add(
          REWARD,
          'def _used(e):\n  return 1\n'
          "def parts(e):\n  return {'new': _used(e)}\n",
      )


if __name__ == '__main__':
  absltest.main()
