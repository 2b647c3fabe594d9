"""A harness directory is read back unchanged, by the hash of its content."""

import json
import os
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from evojax.harness import library
from evojax.harness import spec

REWARD = "def parts(e):\n  return {'outcome': e.outcome * 1.0}\n"
HARNESS = spec.Harness(
    {'optim.learning_rate': 3e-4, 'data.families': ['gcd', 'products:0']},
    {'reward.py': REWARD, 'diagnostics/b.py': 'B = 1\n', 'keep.py': 'K = 1\n'},
)


class HashTest(parameterized.TestCase):

  def test_is_what_it_was(self):
    """Stored runs identify harnesses by this hash, so it must never change.

    sha256 of the canonical JSON
    {"files":{"keep.py":"K = 1\\n"},"overlay":{"grpo.clip_low":0.25}}
    by `printf '...' | sha256sum`.
    """
    harness = spec.Harness({'grpo.clip_low': 0.25}, {'keep.py': 'K = 1\n'})
    self.assertEqual(
        harness.sha256,
        '70551c908ca860694c2d8665c2fdb1af87176a4e76fd60bd4eb607e81e8428d8',
    )

  @parameterized.named_parameters(
      ('order', {'b.x': 1, 'a.y': 2.5}, {'keep.py': 'a', 'reward.py': 'b'}),
      ('floats', {'a.y': 2.5, 'b.x': 1.0}, {'reward.py': 'b', 'keep.py': 'a'}),
      (
          'line ends',
          {'a.y': 2.5, 'b.x': 1},
          {'reward.py': 'b\r\n', 'keep.py': 'a\n'},
      ),
      (
          'blank end',
          {'a.y': 2.5, 'b.x': 1},
          {'reward.py': 'b\r', 'keep.py': 'a\n\n'},
      ),
  )
  def test_does_not_depend_on(self, overlay, files):
    plain = spec.Harness(
        {'a.y': 2.5, 'b.x': 1}, {'reward.py': 'b', 'keep.py': 'a'}
    )
    self.assertEqual(spec.Harness(overlay, files).sha256, plain.sha256)

  def test_what_a_source_may_hold(self):
    text = '# h\u00e4\u00df \u65e5\u672c \u05d0 \U0001f600\n\tX = 1\n'
    harness = spec.Harness({}, {'keep.py': text})
    self.assertEqual(harness.files['keep.py'], text)

  @parameterized.named_parameters(
      ('value', {'a.y': 2.25}, {'reward.py': 'b'}),
      ('flag is no number', {'a.y': True}, {'reward.py': 'b'}),
      ('text is no number', {'a.y': '1.0'}, {'reward.py': 'b'}),
      ('name', {'a.z': 1.0}, {'reward.py': 'b'}),
      ('source', {'a.y': 1.0}, {'reward.py': 'b '}),
      ('place', {'a.y': 1.0}, {'keep.py': 'b'}),
      ('none', {}, {'reward.py': 'b'}),
  )
  def test_tells_apart(self, overlay, files):
    plain = spec.Harness({'a.y': 1.0}, {'reward.py': 'b'})
    self.assertNotEqual(spec.Harness(overlay, files).sha256, plain.sha256)

  def test_minus_zero_is_zero(self):
    self.assertEqual(
        spec.Harness({'a.y': -0.0}, {}).sha256,
        spec.Harness({'a.y': 0}, {}).sha256,
    )

  def test_copies_differ_in_one_thing(self):
    other = HARNESS.with_overlay({'grpo.clip_low': 0.1})
    self.assertNotEqual(other.sha256, HARNESS.sha256)
    self.assertEqual(other.with_overlay({'grpo.clip_low': None}), HARNESS)
    other = HARNESS.with_file('weight.py', 'W = 1\n')
    self.assertIn('weight.py', other.files)
    self.assertEqual(other.with_file('weight.py', None), HARNESS)
    with self.assertRaises(TypeError):
      HARNESS.overlay['grpo.clip_low'] = 0.2


class DirectoryTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def folder(self, **files):
    path = self.root / 'given'
    for name, text in files.items():
      file = path / name
      file.parent.mkdir(parents=True, exist_ok=True)
      file.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.mkdir(exist_ok=True)
    return path

  def test_reads_back(self):
    path = spec.write(HARNESS, self.root)
    self.assertEqual(path, self.root / HARNESS.sha256)
    self.assertEqual(spec.read(path), HARNESS)
    self.assertEqual(spec.load(self.root, HARNESS.sha256), HARNESS)
    # File times are not content; a second write does not touch the first.
    os.utime(path / 'reward.py', (1, 1))
    spec.write(HARNESS, self.root)
    self.assertEqual((path / 'reward.py').stat().st_mtime, 1)
    self.assertEqual([p.name for p in self.root.iterdir()], [HARNESS.sha256])

  def test_a_changed_directory_is_noticed(self):
    path = spec.write(HARNESS, self.root)
    (path / 'keep.py').write_text('K = 2\n')
    for read in (
        lambda: spec.load(self.root, HARNESS.sha256),
        lambda: spec.write(HARNESS, self.root),
    ):
      with self.assertRaisesRegex(
          spec.HarnessError, 'was changed: its content'
      ):
        read()

  def test_packaging_is_no_content(self):
    path = self.folder(**{'reward.py': REWARD, '__init__.py': '"""Doc."""\n'})
    (path / '__pycache__').mkdir()
    (path / '__pycache__' / 'reward.cpython-311.pyc').write_bytes(b'\0')
    self.assertEqual(list(spec.read(path).files), ['reward.py'])

  def test_files_of_the_library(self):
    """A directory that names files equals one that contains them."""
    names = {
        'reward.py': 'seed/reward.py',
        'keep.py': 'keep/outcome_variance.py',
    }
    short = spec.read(
        self.folder(**{'library.json': json.dumps(names), 'weight.py': 'W'})
    )
    files = {name: library.source(source) for name, source in names.items()}
    self.assertEqual(short, spec.Harness({}, files | {'weight.py': 'W\n'}))
    # A stored harness is complete: later changes of the library do not affect
    # it.
    self.assertEqual(
        {p.name for p in spec.write(short, self.root).iterdir()},
        {'overlay.json', 'reward.py', 'keep.py', 'weight.py'},
    )

  @parameterized.named_parameters(
      ('unknown file', {'rewards.py': ''}, r"'rewards.py' is not a file of a"),
      ('too deep', {'diagnostics/a/b.py': ''}, 'is not a file of a harness'),
      ('capital', {'diagnostics/A.py': ''}, 'is not a file of a harness'),
      ('no json', {'overlay.json': '{'}, 'overlay.json is not JSON'),
      ('a list', {'overlay.json': '[]'}, 'holds a list, not an object'),
      ('twice', {'overlay.json': '{"a.b": 1, "a.b": 2}'}, r"'a.b'\] occur"),
      ('nested', {'overlay.json': '{"a": {"b": 1}}'}, r'is not a number'),
      ('null', {'overlay.json': '{"a.b": null}'}, 'is not a number'),
      ('lists', {'overlay.json': '{"a.b": [[1]]}'}, 'is a list of lists'),
      (
          'deep',
          {'overlay.json': '{"a.b": ' + '[' * 5000 + ']' * 5000 + '}'},
          'overlay.json is not JSON',
      ),
      (
          'digits',
          {'overlay.json': '{"a.b": ' + '1' * 5000 + '}'},
          'overlay.json is not JSON',
      ),
      (
          'too large a number',
          {'overlay.json': '{"a.b": 1' + '0' * 400 + '}'},
          r'a.b is larger than 2\*\*63',
      ),
      (
          'no name of a file',
          {'library.json': '{"keep.py": ["x"]}'},
          'library.json: the name of a file is a text, not a list',
      ),
      ('infinite', {'overlay.json': '{"a.b": Infinity}'}, 'not a finite'),
      ('path', {'overlay.json': '{"a b": 1}'}, 'not a dotted config path'),
      (
          'a letter that looks like another',
          {'overlay.json': '{"optim.l\u0435arning_rate": 1e-4}'},
          r"'optim.l\\u0435arning_rate' is not a dotted config path",
      ),
      ('large', {'keep.py': '#' * (64 << 10) + '\n'}, 'keep.py is larger'),
      ('bytes', {'keep.py': b'\xff\xfe'}, 'is not UTF-8'),
      (
          'not in the library',
          {'library.json': '{"keep.py": "keep/x.py"}'},
          "library.json: the library has no 'keep/x.py'",
      ),
      (
          'in both',
          {'library.json': '{"reward.py": "seed/reward.py"}', 'reward.py': ''},
          r"\['reward.py'\] are there and in library.json",
      ),
      ('nul', {'keep.py': 'a\0b'}, 'keep.py line 1: it holds U.0000, '),
      ('escape', {'keep.py': 'a\r\n#\x1b[2J'}, 'keep.py line 2: .* U.001B'),
      ('form feed', {'keep.py': 'a\n\x0cb'}, 'keep.py line 2: .* U.000C'),
      ('override', {'keep.py': 'a\r# \u202e'}, 'keep.py line 2: .* U.202E'),
      ('isolate', {'keep.py': '# \u2066'}, 'keep.py line 1: .* U.2066'),
      (
          'many',
          {f'backtests/b{i}.py': '' for i in range(65)},
          '65 files; a harness has <= 64',
      ),
  )
  def test_refuses(self, files, message):
    with self.assertRaisesRegex(spec.HarnessError, message):
      spec.read(self.folder(**files))

  def test_refuses_links(self):
    path = self.folder(**{'reward.py': REWARD})
    (path / 'keep.py').symlink_to(path / 'reward.py')
    with self.assertRaisesRegex(
        spec.HarnessError, 'keep.py is a symbolic link'
    ):
      spec.read(path)

  def test_refuses_a_pipe(self):
    path = self.folder(**{'reward.py': REWARD})
    os.mkfifo(path / 'keep.py')
    with self.assertRaisesRegex(spec.HarnessError, 'keep.py is neither a file'):
      spec.read(path)

  def test_the_mark_of_an_editor_is_no_content(self):
    plain = self.folder(**{'overlay.json': '{"a.b": 1}', 'reward.py': REWARD})
    before = spec.read(plain)
    for name in ('overlay.json', 'reward.py'):
      text = (plain / name).read_text()
      (plain / name).write_text(text, encoding='utf-8-sig')
    self.assertEqual(spec.read(plain), before)

  def test_refuses_what_is_not_there(self):
    with self.assertRaisesRegex(
        spec.HarnessError, 'is not a directory; .*config.harness.path'
    ):
      spec.load(self.root, 'f' * 64)

  def test_overlay_is_plain_json(self):
    path = spec.write(HARNESS, self.root)
    self.assertEqual(
        json.loads((path / 'overlay.json').read_text()),
        {'optim.learning_rate': 3e-4, 'data.families': ['gcd', 'products:0']},
    )


if __name__ == '__main__':
  absltest.main()
