"""Outside of the environment: one line, without a traceback."""

import subprocess
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

import evojax
from tests import tiny


class EnvironmentTest(parameterized.TestCase):

  @parameterized.parameters('absl', 'jax')
  def test_a_package_that_is_missing(self, name):
    program = f"""if True:
        import importlib.util, runpy, sys
        find = importlib.util.find_spec
        importlib.util.find_spec = lambda n: n != {name!r} and find(n) or None
        sys.argv = ['evojax/main.py', '--mode=plan']
        runpy.run_module('evojax.main', run_name='__main__', alter_sys=True)
    """
    done = subprocess.run(
        [sys.executable, '-c', program],
        cwd=tiny.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(done.returncode, 2, done.stderr)
    self.assertRegex(
        done.stderr,
        rf'^error: \S+ has no package {name}\.\n.* makes and uses:\n'
        r'  bash launch/local\.sh --mode=plan\n.*\n$',
    )

  def test_an_older_python(self):
    with open(evojax.__file__, encoding='utf-8') as file:
      code = compile(file.read(), evojax.__file__, 'exec')
    with mock.patch.object(sys, 'version_info', (3, 10, 2)):
      with self.assertRaisesRegex(
          SystemExit, r'needs Python 3\.11 or newer, and .* is 3\.10: run `bash'
      ):
        exec(code, {})


if __name__ == '__main__':
  absltest.main()
