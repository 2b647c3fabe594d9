"""Domains are found by name, a user's own by dotted path."""

import pathlib
import sys
import tempfile
import textwrap
import time
import types
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax import domains
from evojax import records
from evojax.domains import base
from evojax.domains import sources
from tests.eval import fakes


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

  @parameterized.parameters(
      ('verifiers', dict(environment='wordle'), "'verifiers>=0.3,<0.4'"),
      ('openenv', dict(url='http://localhost:1'), 'requirements/openenv.txt'),
  )
  def test_a_library_that_is_not_installed(self, name, kwargs, wanted):
    with absltest.mock.patch.dict(sys.modules, {name: None}):
      with self.assertRaisesRegex(ValueError, f'pip install .*{wanted}'):
        domains.make(name, **kwargs)

  def test_unknown_argument_is_named_with_those_that_exist(self):
    with self.assertRaisesRegex(ValueError, "'family'.*takes: families, w"):
      domains.make('math', family='gcd')

  def test_a_module_of_the_users_own(self):
    package = tempfile.TemporaryDirectory()
    self.addCleanup(package.cleanup)
    root = pathlib.Path(package.name)
    (root / 'users_domain.py').write_text(textwrap.dedent("""
            from evojax.domains import base

            class Domain(base.Domain):
              name = 'capitals'

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
    (root / 'users_function.py').write_text('def make(): return 3')
    (root / 'base_policy').mkdir()
    sys.path.insert(0, package.name)
    self.addCleanup(sys.path.remove, package.name)
    domain = domains.make('users_domain', country='France')
    self.assertEqual((domain.name, domain.country), ('capitals', 'France'))
    with self.assertRaisesRegex(ValueError, "'country'"):
      domains.make('users_domain')
    with self.assertRaisesRegex(ValueError, "'int', not.*base.Domain"):
      domains.make('users_function')
    self.assertEqual(domains.folder('users_domain'), root)
    self.assertEqual(
        domains.policy_path('package:users_domain'), root / 'base_policy'
    )
    # A missing library of the user's is not mistaken for a missing domain.
    with self.assertRaisesRegex(ModuleNotFoundError, 'no_such_library'):
      domains.load('users_broken')

  @parameterized.parameters('math', 'coding')
  def test_shipped_policies(self, name):
    path = domains.policy_path(f'package:{name}')
    self.assertTrue((path / 'model.safetensors').is_file())
    self.assertEqual(path.parent, domains.folder(name))

  def test_other_paths_stay_as_they_are(self):
    self.assertEqual(domains.policy_path('a/b'), pathlib.Path('a/b'))
    self.assertEqual(
        domains.policy_path('~/b'), pathlib.Path('~/b').expanduser()
    )

  @parameterized.parameters('chess', 'json', '', '/')
  def test_a_domain_without_a_policy(self, name):
    with self.assertRaisesRegex(
        ValueError, f"path='package:{name}'.*'package:coding', 'package:math'"
    ):
      domains.policy_path(f'package:{name}')


class _Fixed(base.Domain):
  """A domain that defines only the required methods."""

  name = 'fixed'

  def source(self, split, seed):
    raise NotImplementedError

  def grade(self, problem, completion):
    time.sleep(0.01 if completion.text == 'slow' else 0)
    seconds = 5.0 if completion.text == 'timed' else None
    status = f'{problem.answer} {completion.text}'
    return records.Grade(False, 0.0, status, {}, seconds=seconds)

  def reward_parts(self, e):
    raise NotImplementedError


def _completion(text):
  none = np.zeros(0)
  return records.Episode(none, none, 'stop', 0, text)


class DefaultsTest(parameterized.TestCase):

  def test_an_incomplete_domain_is_refused(self):
    class Half(base.Domain):
      name = 'half'

    with self.assertRaisesRegex(TypeError, 'abstract'):
      Half()
    module = types.ModuleType('halves')
    module.make = Half
    with (
        mock.patch.dict('sys.modules', halves=module),
        self.assertRaisesRegex(
            ValueError,
            "'halves': class Half lacks grade, reward_parts, source; evojax",
        ),
    ):
      domains.make('halves')

  @parameterized.parameters((None, "'NoneType'"), ([], "'list'"))
  def test_a_source_of_another_type_is_refused(self, returned, named):
    domain = _Fixed()
    domain.source = lambda split, seed: returned
    with self.assertRaisesRegex(
        ValueError, rf"'fixed': source\('dev', 3\) returned {named}, not an .*;"
    ):
      base.source_of(domain, 'dev', 3)

  def test_grades_one_by_one_and_times_each(self):
    problems = [records.Problem(16 * digit, 'f', (), digit) for digit in '1234']
    texts = ('quick', 'slow', 'timed', 'quick')
    grades = _Fixed().grade_many(problems, list(map(_completion, texts)))
    self.assertEqual(
        [g.status for g in grades], ['1 quick', '2 slow', '3 timed', '4 quick']
    )
    self.assertEqual(grades[2].seconds, 5.0)
    self.assertGreaterEqual(grades[1].seconds, 0.01)
    with self.assertRaises(ValueError):
      _Fixed().grade_many(problems, [_completion('quick')])

  def test_what_is_optional(self):
    domain, problem = _Fixed(), records.Problem('0' * 16, 'f', (), '42')
    self.assertFalse(domain.perturbs)
    self.assertIsNone(domain.perturb(problem))
    self.assertIsNone(domain.demonstrations)
    self.assertEqual([c.name for c in domain.columns], ['grade_status'])
    self.assertEmpty(domain.surface_fields)
    attempts = domain.attempts(problem)
    for form in ('<answer>42</answer>', '\\boxed{42}', '#### 42'):
      self.assertTrue(any(form in text for text in attempts), form)
    self.assertLen(domain.attempts(problem), len(attempts))
    self.assertTrue(domains.make('math', families='gcd:0').perturbs)

  def test_demonstrations_are_a_function_of_seed_and_step(self):
    def demonstrate(problem, rng):
      return records.Demonstration(problem.messages, str(rng.integers(1 << 30)))

    source = fakes.Source('train', 7)

    def batch(*args):
      shown = base.Demonstrations(demonstrate).batch(source, *args)
      return [(d.messages[0]['content'], d.completion) for d in shown]

    self.assertEqual(
        [p for p, _ in batch(1, 2, 3)], ['train 7 6', 'train 7 7', 'train 7 8']
    )
    self.assertEqual(batch(1, 2, 3), batch(1, 2, 3))
    self.assertNotEqual(batch(1, 2, 3)[0][1], batch(2, 2, 3)[0][1])
    self.assertNotEqual(batch(1, 2, 3)[0][1], batch(1, 3, 3)[0][1])

  def test_a_small_source_is_shown_several_times(self):
    given = [records.Problem(f'{i:016x}', 'f', (), '') for i in range(3)]
    source = sources.FiniteSource(given, 'train', 0)
    shown = base.Demonstrations(
        lambda problem, rng: records.Demonstration((), problem.problem_id)
    )
    found = shown.batch(source, 0, 0, 7)
    ids = [demonstration.completion for demonstration in found]
    self.assertLen(set(ids[:3]), 3)
    self.assertEqual(set(ids[3:6]), set(ids[:3]))
    self.assertLen(ids, 7)


if __name__ == '__main__':
  absltest.main()
