import dataclasses
import pathlib
import tempfile

from absl.testing import absltest

from evojax.eval import sealed
from evojax.evidence import store
from evojax.runtime import workdir as workdir_lib
from tests.eval import fakes


def _script(weights, problem, sample):
  if weights == 'trained':
    return 'steps 4'
  return 'steps 4' if sample == 0 else 'direct 3'


class SealedTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.workdir = pathlib.Path(
        self.enter_context(tempfile.TemporaryDirectory())
    )
    self.engine = fakes.Engine(_script)

  def _score(self, scorer=None, **changes):
    arguments = dict(
        install_base=lambda: self.engine.update_weights('base', 0),
        install_trained=lambda: self.engine.update_weights('trained', 40),
        workdir=self.workdir,
        seed=1,
        problems=5,
        samples=2,
        step=20,
    )
    scorer = scorer or fakes.make_scorer(self.engine, version='v1')
    return sealed.score(scorer, **arguments | changes)

  def test_base_and_trained_on_the_same_problems(self):
    result = self._score()
    self.assertEqual(result['split'], 'sealed')
    self.assertEqual(result['gain']['value'], 0.5)
    # Half of the completions change mode and become right: all of this is
    # shift.
    self.assertEqual((result['mode_shift'], result['within_mode']), (0.5, 0))
    base, trained = self.engine.calls
    self.assertEqual(base, trained)
    self.assertEqual(store.list_steps(self.workdir, 'sealed'), [0, 20])
    frame = store.read(self.workdir, 'sealed')
    self.assertEqual(
        frame.groupby('step')['policy_version'].unique().explode().to_dict(),
        {0: 0, 20: 40},
    )

  def test_a_stricter_judge_has_the_last_word(self):
    class Strict(fakes.Domain):

      def grade(self, problem, completion):
        found = super().grade(problem, completion)
        return dataclasses.replace(found, outcome=False, partial=0.0)

    class Gamed(fakes.Domain):
      audit = Strict()

    scorer = fakes.make_scorer(self.engine, Gamed(), version='v1')
    result = self._score(scorer=scorer)
    self.assertEqual(result['gain']['value'], 0.0)
    self.assertEqual(self._solved(), 0.0)

  def _solved(self):
    """Return the share of all sealed completions that are right."""
    return store.read(self.workdir, 'sealed')['outcome'].mean()

  def test_second_call_draws_nothing(self):
    first = self._score()
    again = self._score(seed=2, problems=50)
    self.assertEqual(again, first)
    self.assertLen(self.engine.calls, 2)

  def test_training_on_after_the_score_does_not_renew_it(self):
    first = self._score()
    with self.assertLogs(level='WARNING') as logs:
      again = self._score(step=30)
    self.assertEqual(again, first)
    self.assertIn('scored at step 20 already', logs.output[0])

  def test_killed_between_the_two_policies(self):
    def killed():
      raise KeyboardInterrupt

    with self.assertRaises(KeyboardInterrupt):
      self._score(install_trained=killed)
    self.assertIsNone(sealed.read(self.workdir))
    self.assertEqual(self._score()['gain']['value'], 0.5)
    first, again, _ = self.engine.calls
    self.assertEqual(first, again)

  def test_only_the_first_process_writes(self):
    self.assertEqual(self._score(primary=False)['gain']['value'], 0.5)
    self.assertEmpty(list(self.workdir.iterdir()))

  def test_a_file_that_is_no_result_is_not_overwritten(self):
    path = sealed.path_of(self.workdir)
    for text in ('{', '[]', '{"split": "dev"}'):
      path.write_text(text)
      with self.assertRaisesRegex(workdir_lib.WorkdirError, 'sealed.json'):
        self._score()
      self.assertEqual(path.read_text(), text)
    self.assertEmpty(self.engine.calls)

  def test_nothing_trained(self):
    with self.assertRaisesRegex(ValueError, 'nothing was trained'):
      self._score(step=0)


if __name__ == '__main__':
  absltest.main()
