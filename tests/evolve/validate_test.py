"""Validation of diagnostics and backtest statistics on past evidence."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.evidence import schema
from evojax.evidence import views
from evojax.evolve import validate
from evojax.harness import run
from evojax.harness import spec

COLUMNS = schema.declare((schema.with_codes('grade_status', {'ok': 0}),))


def reading(score, status='', **values):
  return validate.Reading(score, values, status)


def version(name, scores, numbers):
  """Return readings of one number, x, on slices with these scores."""
  slices = tuple(
      reading(float(score), x=float(x))
      for score, x in zip(scores, numbers, strict=True)
  )
  return validate.Readings(
      name,
      reading(float(np.mean(scores)), x=float(np.mean(numbers))),
      slices,
  )


SCORES = np.linspace(0.2, 0.9, 8)


class DiagnosticTest(parameterized.TestCase):

  def test_what_follows_the_score_is_kept(self):
    for sign in (1, -1):
      found = validate.diagnostic([version('v0', SCORES, sign * SCORES**2)])
      self.assertTrue(found.kept)
      self.assertLen(found.reasons, 1)
      self.assertRegex(
          found.reasons[0],
          rf'x: rank agreement \{"+" if sign > 0 else "-"}1.00 with the score'
          r' over 8 slices of 1 version, p .* <= 0.1',
      )

  def test_noise_is_discarded_with_its_numbers(self):
    rng = np.random.default_rng(0)
    kept = [
        validate.diagnostic([version('v0', SCORES, rng.random(8))]).kept
        for _ in range(200)
    ]
    self.assertLess(np.mean(kept), 0.15)  # LEVEL, and its error with 200.
    found = validate.diagnostic(
        [version('v0', SCORES, [3, 1, 4, 1, 5, 9, 2, 3])]
    )
    self.assertFalse(found.kept)
    self.assertRegex(found.reasons[0], r'x: rank agreement .* > 0.1')

  def test_many_numbers_must_be_surer(self):
    """One of 30 noise numbers often agrees, so they share the level."""
    rng = np.random.default_rng(0)

    def noise():
      slices = tuple(
          validate.Reading(s, {f'n{i}': rng.random() for i in range(30)})
          for s in SCORES
      )
      return validate.Readings('v0', slices[0], slices)

    kept = [validate.diagnostic([noise()]).kept for _ in range(20)]
    self.assertLessEqual(sum(kept), 5)

  def test_what_drifts_from_version_to_version_is_discarded(self):
    # All numbers of a run drift, and so does its score.
    rng = np.random.default_rng(0)
    kept = []
    for _ in range(200):
      levels = rng.normal(size=3)
      versions = [
          version(
              f'v{i}',
              score + 0.03 * rng.normal(size=8),
              level + 0.3 * rng.normal(size=8),
          )
          for i, (score, level) in enumerate(zip((0.3, 0.45, 0.55), levels))
      ]
      kept.append(validate.diagnostic(versions).kept)
    self.assertBetween(np.mean(kept), 0.04, 0.17)  # LEVEL, and its error.

  def test_what_follows_the_score_within_versions_is_kept(self):
    # Between versions it falls as the score rises.
    versions = [
        version('v0', SCORES, 5 + SCORES), version('v1', 1 + SCORES, SCORES)
    ]  # fmt: skip
    found = validate.diagnostic(versions)
    self.assertTrue(found.kept)
    self.assertRegex(found.reasons[0], r'\+1.00 with the score over 16 slices')

  def test_a_gap_that_keeps_its_sign_is_kept(self):
    rng = np.random.default_rng(7)
    gaps = 0.3 + 0.1 * rng.permutation(8) / 8

    def named(name, numbers):
      slices = tuple(
          validate.Reading(float(score), {name: float(x)})
          for score, x in zip(rng.permutation(SCORES), numbers, strict=True)
      )
      return [validate.Readings('v0', slices[0], slices)]

    found = validate.diagnostic(named('x_gap', gaps))
    self.assertTrue(found.kept)
    # The smallest p of 8 values: 2 of the 256 assignments of signs.
    self.assertRegex(
        found.reasons[0], r'x_gap: \+0.34 on average over 8 slice.*, p 0.00781'
    )
    # Shares are above 0 as well; and a gap of both signs tells nothing.
    self.assertFalse(validate.diagnostic(named('x', gaps)).kept)
    signs = gaps * np.tile([1, -1], 4)
    self.assertFalse(validate.diagnostic(named('x_gap', signs)).kept)

  def test_nothing_is_kept_without_evidence(self):
    found = validate.diagnostic([])
    self.assertFalse(found.kept)
    self.assertIn('no evidence', found.reasons[0])

  def test_a_constant_is_discarded(self):
    found = validate.diagnostic([version('v0', SCORES, 8 * [0.25])])
    self.assertEqual(
        found,
        validate.Validation(
            False,
            (
                'x: 0.25 everywhere, beside the score over 8 slices of'
                ' 1 version, p 1 > 0.1',
            ),
        ),
    )

  def test_one_failure_on_the_past_discards(self):
    good = version('v0', SCORES, SCORES)
    bad = validate.Readings('v1', reading(0.5, status='hang'), good.slices)
    self.assertEqual(
        validate.diagnostic([good, bad]),
        validate.Validation(False, ('it fails on v1: hang',)),
    )

  def test_silence_on_the_past_discards(self):
    good = version('v0', SCORES, SCORES)
    silent = validate.Readings('v1', reading(0.5), good.slices)
    found = validate.diagnostic([good, silent])
    self.assertEqual(found.reasons, ('it has no number for v1',))

  def test_a_number_that_comes_and_goes_is_discarded(self):
    good = version('v0', SCORES, SCORES)
    other = validate.Readings('v1', reading(0.5, y=1.0), good.slices)
    found = validate.diagnostic([good, other])
    self.assertFalse(found.kept)
    self.assertEqual(
        found.reasons, ('it has y for other versions, but not for v0',)
    )

  def test_too_little_evidence_is_discarded(self):
    found = validate.diagnostic([version('v0', SCORES[:3], SCORES[:3])])
    self.assertFalse(found.kept)
    self.assertIn('only 3 values', found.reasons[0])


class BacktestTest(parameterized.TestCase):

  def trials(self, effects, numbers):
    return [
        validate.PastTrial(i, effect, {'x': float(x)})
        for i, (effect, x) in enumerate(zip(effects, numbers, strict=True))
    ]

  @parameterized.parameters(1, -1)
  def test_what_foretold_the_effects_is_kept(self, sign):
    effects = [-0.02, 0.01, 0.03, -0.01, 0.05]
    found = validate.backtest(
        self.trials(effects, [sign * 3 * e for e in effects])
    )
    self.assertTrue(found.kept)
    agree = 5 if sign > 0 else 0
    self.assertRegex(
        found.reasons[0],
        rf'with 5 realised effects, signs agree in {agree} of 5, p 0.0167',
    )

  def test_what_did_not_is_discarded_with_its_numbers(self):
    found = validate.backtest(
        self.trials([0.01, 0.02, 0.03, 0.04, 0.05], [2, 1, -4, 3, 1])
    )
    self.assertFalse(found.kept)
    self.assertRegex(
        found.reasons[0], r'x: rank agreement .*, signs agree in 4 of 5, p'
    )

  def test_three_trials_prove_nothing(self):
    found = validate.backtest(self.trials([0.1, 0.2, 0.3], [1, 2, 3]))
    self.assertFalse(found.kept)
    self.assertIn('3 past trials have a realised effect', found.reasons[0])

  def test_a_failure_is_a_status_and_no_number(self):
    trials = self.trials([0.1, 0.2, 0.3, 0.4], [1, 2, 3, 4])
    trials[1] = validate.PastTrial(1, 0.2, {}, 'non_finite')
    self.assertEqual(
        validate.backtest(trials).reasons, ('it fails on trial 1: non_finite',)
    )


class EvidenceTest(absltest.TestCase):
  """Real functions on views."""

  def view(self, rows):
    return views.View(
        rows,
        COLUMNS,
        prompts=int(rows['group'].max()) + 1,
        group_size=2,
        max_tokens=8,
        reader='diagnostic',
    )

  def rows(self, groups):
    group, sample = np.indices((groups, 2)).reshape(2, -1)
    return {
        'group': group,
        'sample': sample,
        'outcome': group * 2 + sample < groups,
        'n_tokens': group,
        'graded': np.ones(2 * groups, bool),
    }

  def test_slices_are_whole_groups_and_all_of_them(self):
    for groups, count in ((20, 8), (3, 3)):
      parts = validate.slices(self.rows(groups))
      self.assertLen(parts, count)
      seen = [int(n) for part in parts for n in part['n_tokens']]
      self.assertCountEqual(seen, 2 * list(range(groups)))
      for part in parts:
        self.assertCountEqual(
            part['group'], 2 * list(range(len(part['group']) // 2))
        )

  def test_a_diagnostic_is_read(self):
    source = (
        "LAYER = 'score'\nUNIT = ''\n"
        'def measure(e):\n  return {"solved": float(e.outcome.mean())}\n'
    )
    files = {'diagnostics/new.py': source}
    functions = run.Functions(spec.Harness({}, files))
    found = validate.read(functions, 'new', self.view(self.rows(4)))
    self.assertEqual(found, reading(0.5, solved=0.5))
    broken = {'diagnostics/new.py': source.replace('e.outcome', 'e.nothing')}
    found = validate.read(
        run.Functions(spec.Harness({}, broken)), 'new', self.view(self.rows(4))
    )
    self.assertEqual(found, reading(0.5, status='crash'))

  def test_a_statistic_is_run(self):
    source = (
        'def predict(before, after):\n'
        '  return {"more": float((after.n_tokens - before.n_tokens).mean())}\n'
    )
    functions = run.Functions(spec.Harness({}, {'backtests/new.py': source}))
    rows = self.rows(4)
    pair = (
        self.view(rows),
        self.view(rows | {'n_tokens': rows['n_tokens'] + 2}),
    )
    found = validate.predict(functions, 'new', pair, trial=3, effect=0.1)
    self.assertEqual(found, validate.PastTrial(3, 0.1, {'more': 2.0}))


if __name__ == '__main__':
  absltest.main()
