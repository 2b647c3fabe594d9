import dataclasses
import functools
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np

from evojax import records
from evojax.episodes import collect
from evojax.eval import evaluate
from evojax.eval import report
from evojax.evidence import schema
from evojax.evidence import store
from evojax.models import decoder
from evojax.rollout import engine as engine_lib
from evojax.rollout import slots
from evojax.runtime import metrics
from tests.eval import fakes


def _script(weights, problem, sample):
  """Even problems: right, with steps. Odd ones: rambling, then one guess."""
  position = int(problem.split()[-1])
  if position % 2 == 0:
    return 'steps 4'
  return 'direct 3' if sample == 3 else 'ramble '


def _evaluate(engine=None, domain=None, **changes):
  engine = engine or fakes.Engine(_script)
  names = ('max_prompt_tokens', 'version', 'phases')
  given = {name: changes.pop(name) for name in names if name in changes}
  arguments = dict(split='dev', seed=3, problems=6, samples=4, step=20)
  return evaluate.evaluate(
      fakes.make_scorer(engine, domain, **given), **arguments | changes
  )


class EvaluateTest(parameterized.TestCase):

  def test_scores(self):
    engine = fakes.Engine(_script)
    engine.update_weights('w', 11)
    result = _evaluate(engine)
    self.assertEqual(result.outcomes.tolist(), [[True] * 4, [False] * 4] * 3)
    self.assertEqual(result.modes.tolist(), [[1] * 4, [7, 7, 7, 0]] * 3)
    self.assertEqual(result.mode_codes, fakes.MODES)
    self.assertEqual(result.families, ('odd', 'even') * 3)
    self.assertEqual(
        result.problem_ids,
        tuple(p.problem_id for p in fakes.Source('dev', 3).take(0, 6)),
    )
    self.assertEqual((result.step, result.policy_version), (20, 11))
    # 3 problems at 1 and 3 at 0: squares 6 / 4; / (6 * 5).
    self.assertEqual(result.avg_at_k.value, 0.5)
    self.assertAlmostEqual(
        result.avg_at_k.standard_error, (1.5 / 30) ** 0.5, places=12
    )
    self.assertEqual(result.pass_at_k, {1: 0.5, 2: 0.5, 4: 0.5})
    # 'steps 4' 7; 'ramble ' 7; 'direct 3' 8: one of eight.
    self.assertEqual(result.n_tokens, 7 + 1 / 8)
    self.assertEqual(result.truncated, 3 / 8)

  def test_pass_at_the_number_of_samples_is_always_there(self):
    right_last = lambda weights, problem, sample: f'direct {sample + 2}'
    result = _evaluate(fakes.Engine(right_last), samples=3)
    # The last of three: 1/3, 1 - C(2, 2) / C(3, 2) = 2/3, 1.
    self.assertEqual(list(result.pass_at_k), [1, 2, 3])
    np.testing.assert_allclose(
        list(result.pass_at_k.values()), [1 / 3, 2 / 3, 1], rtol=1e-12
    )

  def test_equal_arguments_ask_the_same(self):
    engine = fakes.Engine(_script)
    _evaluate(engine)
    _evaluate(engine, step=40)
    _evaluate(engine, seed=4)
    first, second, other = engine.calls
    self.assertEqual(first, second)
    self.assertLen(first, 24)
    self.assertEqual({r.seed for r in other}, {4})
    self.assertNotEqual(first[0].prompt_tokens, other[0].prompt_tokens)

  def test_evidence(self):
    with tempfile.TemporaryDirectory() as workdir:
      result = _evaluate(workdir=workdir, version='v1')
      self.assertEqual(store.splits(workdir), ['dev'])
      frame = store.read(workdir, 'dev', [20])
    self.assertEqual(
        frame['outcome'].tolist(), result.outcomes.reshape(-1).tolist()
    )
    self.assertEqual(frame['mode'].tolist(), result.modes.reshape(-1).tolist())
    self.assertEqual(frame['grade_status'].tolist()[4:8], [3, 3, 3, 0])
    self.assertEqual(set(frame['version']), {'v1'})
    self.assertEqual(set(frame['seed']), {3})
    self.assertTrue(frame['reward'].isna().all())

  def test_metrics_are_numbers_by_name(self):
    values = _evaluate().metrics()
    self.assertEqual(values['dev/avg_at_k'], 0.5)
    self.assertEqual(values['dev/pass_at_4'], 0.5)
    self.assertEqual(values['dev/share_ramble'], 3 / 8)
    self.assertEqual(values['dev/share_direct'], 1 / 8)
    with tempfile.TemporaryDirectory() as workdir:
      with metrics.MetricWriter(workdir) as writer:
        writer.write(1, values)

  def test_domain_without_modes(self):
    class Domain(fakes.Domain):
      columns = fakes.Domain.columns[:1]

      def grade(self, problem, completion):
        return records.Grade(completion.text == 'steps 4', 0.0, 'ok', {})

    result = _evaluate(domain=Domain())
    self.assertIsNone(result.modes)
    self.assertEqual(result.avg_at_k.value, 0.5)
    self.assertNotIn('dev/share_direct', result.metrics())

  def test_what_could_not_be_graded_is_not_measured(self):
    """It counts neither as solved nor as unsolved, nor in any share."""

    class Domain(fakes.Domain):
      columns = (
          schema.with_codes('grade_status', {'ok': 0, 'infra_error': 1}),
          fakes.Domain.columns[1],
      )
      failing = ('direct 1', 'direct 3')

      def grade(self, problem, completion):
        status = 'infra_error' if completion.text in self.failing else 'ok'
        return dataclasses.replace(
            super().grade(problem, completion), status=status
        )

    # Each problem has: right, not graded, wrong, not graded.
    texts = ('direct 4', 'direct 1', 'steps 2', 'direct 3')
    engine = fakes.Engine(lambda weights, problem, sample: texts[sample])
    with tempfile.TemporaryDirectory() as workdir:
      result = _evaluate(engine, Domain(), workdir=workdir)
      np.testing.assert_array_equal(store.problem_scores(workdir, 'dev'), 0.5)
      self.assertEqual(store.mean_outcome(workdir, 'dev', 20), 0.5)
    np.testing.assert_array_equal(result.problem_scores, 0.5)
    self.assertEqual(result.avg_at_k.value, 0.5)
    # pass@4 uses the two graded samples, one of which is right.
    self.assertEqual(result.pass_at_k, {1: 0.5, 2: 1.0, 4: 1.0})
    values = result.metrics()
    self.assertEqual(values['dev/share_direct'], 0.5)
    self.assertEqual(values['dev/not_graded'], 2 * len(result.problem_ids))
    gain = report.report_gain(result, result)
    direct = next(m for m in gain['modes'] if m['name'] == 'direct')
    self.assertEqual(direct['share_after'], 0.5)
    self.assertEqual(direct['accuracy_after'], 1.0)
    self.assertEqual(gain['families'][0]['after'], 0.5)

    domain = Domain()
    domain.failing = ('direct 4', *texts)
    mixed = lambda weights, problem, sample: (
        'direct 5' if problem.endswith('3') else texts[sample]
    )
    with self.assertRaisesRegex(
        collect.GradingError, 'none of the 4 completions of 5 dev problems'
    ):
      _evaluate(fakes.Engine(mixed), domain)

  def test_time_is_charged_to_its_phase(self):
    phases = metrics.Phases()
    with tempfile.TemporaryDirectory() as workdir:
      _evaluate(workdir=workdir, phases=phases)
    self.assertEqual(set(phases.seconds), {'other', 'rollout', 'grade', 'log'})

  @parameterized.parameters(
      (dict(problems=1), r'eval\.problems=1'),
      (dict(samples=0), r'eval\.samples=0'),
      (dict(split='sealed'), 'once per run'),
      (dict(max_prompt_tokens=6), r'data\.max_prompt_tokens=6'),
  )
  def test_refused_before_anything_is_sampled(self, changes, message):
    engine = fakes.Engine(_script)
    with self.assertRaisesRegex(ValueError, message):
      _evaluate(engine, **changes)
    self.assertEmpty(engine.calls)

  def test_through_the_engine(self):
    cfg = decoder.DecoderConfig(
        family='qwen3',
        vocab_size=128,
        hidden_size=16,
        intermediate_size=32,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        qk_norm=True,
    )

    class Domain(fakes.Domain):

      def grade(self, problem, completion):
        even = bool(len(completion.text) % 2 == 0)
        return records.Grade(even, float(even), 'ok', {'mode': int(even)})

    engine = engine_lib.Engine(
        cfg,
        slots.Shapes(
            max_prompt_tokens=16,
            max_tokens=16,
            decode_slots=8,  # A third of the completions: slots are refilled.
            prefill_rows=4,
        ),
        eos_ids=tuple(range(8)),
        decode_text=lambda ids: ''.join(chr(i) for i in ids if i > 7),
        refill_every=4,
    )
    init = jax.jit(functools.partial(decoder.init, cfg))
    results = []
    for version, seed in ((5, 0), (6, 0), (7, 1)):
      engine.update_weights(init(jax.random.key(seed)), version)
      results.append(_evaluate(engine, Domain()))
    one, same, other = results
    self.assertEqual((one.policy_version, other.policy_version), (5, 7))
    self.assertBetween(one.n_tokens, 1, 16)
    self.assertBetween(one.truncated, 0.01, 0.99)
    np.testing.assert_array_equal(one.modes, one.outcomes)
    np.testing.assert_array_equal(one.outcomes, same.outcomes)
    self.assertEqual(one.n_tokens, same.n_tokens)
    self.assertNotEqual(one.n_tokens, other.n_tokens)


if __name__ == '__main__':
  absltest.main()
