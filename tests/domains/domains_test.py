"""Domains are found by name, the user's own by dotted path."""

import pathlib
import sys
import tempfile
import textwrap

from absl.testing import absltest
from absl.testing import parameterized

from evojax import domains


class LoadTest(parameterized.TestCase):

  def test_builds_math_by_name(self):
    domain = domains.make('math', families='gcd:0', answer_format='boxed')
    self.assertEqual(domain.name, 'math')
    self.assertEqual(domain.answer_format, 'boxed')

  @parameterized.parameters(
      ('maths', 'neither one of .*math.* nor a module'),
      ('my/domain.py', 'nor a dotted path'),
      ('', 'nor a dotted path'),
      ('.math', 'nor a dotted path'),
      ('json', 'no make'),
      ('json.nothing', 'nor a module'),
  )
  def test_refuses_what_is_no_domain(self, name, message):
    with self.assertRaisesRegex(ValueError, message):
      domains.load(name)

  def test_unknown_argument_is_named_with_those_that_exist(self):
    with self.assertRaisesRegex(ValueError, "'family'.*takes: families, w"):
      domains.make('math', family='gcd')

  def test_a_module_of_the_users_own(self):
    package = tempfile.TemporaryDirectory()
    self.addCleanup(package.cleanup)
    root = pathlib.Path(package.name)
    (root / 'users_domain.py').write_text(textwrap.dedent("""
            class Domain:
              name = 'capitals'
              columns = ()

              def source(self, split, seed):
                raise NotImplementedError

              def grade(self, problem, completion):
                raise NotImplementedError

              def reward_parts(self, e):
                raise NotImplementedError

            def make(*, country):
              domain = Domain()
              domain.country = country
              return domain
        """))
    (root / 'users_broken.py').write_text('import no_such_library')
    sys.path.insert(0, package.name)
    self.addCleanup(sys.path.remove, package.name)
    domain = domains.make('users_domain', country='France')
    self.assertEqual((domain.name, domain.country), ('capitals', 'France'))
    with self.assertRaisesRegex(ValueError, "'country'"):
      domains.make('users_domain')
    # Their missing library is not mistaken for a missing domain.
    with self.assertRaisesRegex(ModuleNotFoundError, 'no_such_library'):
      domains.load('users_broken')


if __name__ == '__main__':
  absltest.main()
