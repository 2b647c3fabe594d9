import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from evojax.domains import base
from evojax.eval import evaluate
from evojax.eval import perturb
from evojax.evidence import store
from tests.eval import fakes


class _Source(fakes.Source):
  """100 problems."""

  asked: list[tuple[int, int]] = []

  def take(self, cursor, count):
    if cursor + count > len(self):
      raise AssertionError(f'{cursor} + {count} is beyond the split')
    self.asked.append((cursor, count))
    return super().take(cursor, count)

  def __len__(self):
    return 100


class _Domain(fakes.Domain):
  """Every n-th problem can be changed, to 'new ...'."""

  def __init__(self, every=3):
    self.every = every

  def source(self, split, seed):
    return _Source(split, seed)

  def perturb(self, problem):
    if int(problem.question.split()[-1]) % self.every:
      return None
    return fakes.make_problem(f'new {problem.question}', problem.family)


class _Endless(_Domain):

  def source(self, split, seed):
    return fakes.Source(split, seed)  # 1000, and more on request.


class _Merging(_Domain):
  """Two neighbours become one problem."""

  def perturb(self, problem):
    number = int(problem.question.split()[-1])
    return fakes.make_problem(f'new {number // 2}')


def _texts(source, cursor, count):
  return [p.question for p in source.take(cursor, count)]


class PerturbedTest(parameterized.TestCase):

  def test_the_first_that_can_be_changed(self):
    source = perturb.Perturbed(_Domain()).source('dev', 5)
    self.assertEqual(
        _texts(source, 0, 4),
        ['new dev 5 0', 'new dev 5 3', 'new dev 5 6', 'new dev 5 9'],
    )

  def test_a_position_does_not_depend_on_the_call(self):
    source = perturb.Perturbed(_Domain()).source('dev', 5)
    together = _texts(source, 0, 34)
    self.assertEqual(together[-1], 'new dev 5 99')
    self.assertLen(set(together), 34)
    apart = [_texts(source, i, 1)[0] for i in range(34)]
    self.assertEqual(together, apart)
    self.assertEqual(_texts(source, 20, 14), together[20:])

  def test_problems_stay_distinct(self):
    source = perturb.Perturbed(_Merging()).source('dev', 0)
    self.assertEqual(_texts(source, 1, 3), ['new 1', 'new 2', 'new 3'])

  def test_never_looks_beyond_the_split_and_says_so(self):
    source = perturb.Perturbed(_Domain()).source('dev', 0)
    with self.assertRaisesRegex(
        ValueError,
        r"split 'dev' of domain 'fake': 34 of its first 100 problems \(it has"
        r' 100\) can be perturbed, 35 were asked for; ask for fewer',
    ):
      source.take(0, 35)

  def test_one_in_fifty(self):
    # The problems 0, 40, 80, ...: the 25th is at 960, within 50 * 25.
    source = perturb.Perturbed(_Endless(40)).source('dev', 0)
    self.assertLen(source.take(0, 25), 25)
    # The problems 0, 60, 120, ...: 3 of the first 150 positions are 0 to 120,
    # but the 10th, 540, is beyond the first 500.
    source = perturb.Perturbed(_Endless(60)).source('dev', 0)
    with self.assertRaisesRegex(ValueError, '9 of its first 500 problems'):
      source.take(0, 10)

  def test_length_is_a_lower_bound(self):
    source = perturb.Perturbed(_Domain()).source('dev', 0)
    self.assertLen(source, 2)
    self.assertLen(source.take(0, len(source)), 2)

  @parameterized.parameters('train', 'test')
  def test_other_splits_are_refused(self, split):
    with self.assertRaisesRegex(ValueError, f"split='{split}'.*never trained"):
      perturb.Perturbed(_Domain()).source(split, 0)

  def test_a_domain_without_the_hook_is_refused(self):
    with self.assertRaisesRegex(ValueError, "domain 'fake' has no perturb"):
      perturb.Perturbed(fakes.Domain())

  def test_has_perturbations(self):
    self.assertTrue(perturb.has_perturbations(_Domain()))
    self.assertTrue(perturb.has_perturbations(_Domain(), 34))
    self.assertFalse(perturb.has_perturbations(_Domain(), 35))
    self.assertFalse(perturb.has_perturbations(fakes.Domain()))

  def test_a_domain_of_its_own(self):
    domain = perturb.Perturbed(_Domain())
    self.assertIsInstance(domain, base.Domain)
    self.assertFalse(perturb.has_perturbations(domain))


class EvaluateTest(absltest.TestCase):

  def _evaluate(self, domain, **changes):
    # Right only on memorised problems, the unchanged ones.
    engine = fakes.Engine(
        lambda weights, text, sample: (
            'direct 3' if text.startswith('new') else 'direct 4'
        )
    )
    arguments = dict(
        split='dev',
        seed=3,
        problems=6,
        samples=2,
        step=20,
    )
    return evaluate.evaluate(
        fakes.make_scorer(engine, domain), **arguments | changes
    )

  def test_scores_and_evidence(self):
    domain = _Domain()
    self.assertEqual(self._evaluate(domain).avg_at_k.value, 1.0)
    wrapped = perturb.Perturbed(domain)
    with tempfile.TemporaryDirectory() as workdir:
      result = self._evaluate(wrapped, workdir=workdir)
      frame = store.read(workdir, 'dev', [20])
    self.assertEqual(result.avg_at_k.value, 0.0)
    ids = tuple(p.problem_id for p in wrapped.source('dev', 3).take(0, 6))
    self.assertEqual(result.problem_ids, ids)
    self.assertEqual(list(dict.fromkeys(frame['problem_id'])), list(ids))

  def test_sealed_stays_sealed(self):
    wrapped = perturb.Perturbed(_Domain())
    with self.assertRaisesRegex(ValueError, 'scored once'):
      self._evaluate(wrapped, split='sealed')
    result = self._evaluate(wrapped, split='sealed', allow_sealed=True)
    self.assertEqual(result.split, 'sealed')


if __name__ == '__main__':
  absltest.main()
