"""Diagnostics that a run writes from its own rollouts, which are made here."""

import dataclasses
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pandas as pd

import evojax
from evojax import config as config_lib
from evojax import domains
from evojax.evidence import store
from evojax.evolve import opening
from evojax.evolve import predicates
from evojax.evolve import propose as propose_lib
from evojax.evolve import recorded
from evojax.evolve import search
from evojax.evolve import validate
from evojax.evolve.propose import discovered
from evojax.evolve.propose import rules
from evojax.evolve.steps import hypothesize
from evojax.harness import delta
from evojax.harness import parts
from evojax.harness import run as run_lib
from evojax.harness import spec
from evojax.harness import surface
from evojax.ledger import history
from evojax.ledger import records
from tests import compiled
from tests import tiny
from tests.ledger import samples

DOMAIN = domains.load('math').make()
SEED = spec.read(domains.folder('math') / 'seed_harness')
SURFACE = surface.recipe()
CONFIG = tiny.evolving()
SIZE = 8


def frame(groups=96, *, format_ok=0.6, seed=0, follows=True, otherwise=0.0):
  """Return the rollouts of an arm, solved only where there is an answer.

  Args:
    groups: Number of groups.
    format_ok: Share with an answer.
    seed: Seed of the random values, of which the problems do not depend.
    follows: Whether solving depends on the answer.
    otherwise: Share of the others that may be solved all the same.
  """
  rng = np.random.default_rng(seed)
  n = groups * SIZE
  answered = rng.random(n) < format_ok
  solved, lucky = rng.random(n) < 0.5, rng.random(n) < otherwise
  return pd.DataFrame(
      dict(
          problem_id=np.repeat([f'p{i}' for i in range(groups)], SIZE),
          step=np.repeat(np.arange(groups, dtype=np.int32) // 12, SIZE),
          group=np.repeat(np.arange(groups, dtype=np.int32) % 12, SIZE),
          sample=np.tile(np.arange(SIZE, dtype=np.int32), groups),
          graded=True,
          outcome=solved & (answered | lucky) if follows else solved,
          n_tokens=rng.integers(10, 60, n).astype(np.int32),
          n_turns=np.int32(1),
          truncated=rng.random(n) < 0.1,
          finish_reason=np.int32(0),
          format_ok=answered,
          answer_chars=np.int32(3),
          mode=rng.integers(0, 2, n).astype(np.int32),
          actions=[np.zeros(0, np.int32)] * n,
          arguments=[np.zeros(0, np.int32)] * n,
          action_ok=[np.zeros(0, bool)] * n,
      )
  )


def version(number, folder, parent=None):
  cls = records.Promote if number else records.Train
  return samples.record(
      cls,
      version=f'v{number}',
      parent=parent,
      folder=folder,
      harness=SEED.sha256,
      checkpoint=f'{folder}/checkpoints/step_000008',
  )


VERSIONS = (
    version(0, 'arms/v0'),
    version(1, 'arms/r000-incumbent-3', 'v0'),
)


def raced(
    number, *, own=0.1, judged=None, predicted=None, alerts=(), scatter=0.001
):
  """Return the records of a trial whose change was raced and not kept."""
  found = samples.trial(
      number,
      'v1',
      '',
      own,
      perturbed_effect=judged,
      low=own - 0.02,
      high=own + 0.02,
      alerts=alerts,
  )
  arms = tuple(
      samples.record(
          records.RacedArm,
          role=role,
          trial=trial,
          pair=pair,
          folder=f'arms/r001-{role}-{pair}',
          status='done',
      )
      for pair in range(4)
      for role, trial in (('incumbent', None), ('candidate', number))
  )
  standing = samples.record(
      records.Standing,
      trial=number,
      differences=tuple(own + 0.001 * i for i in range(4)),
  )
  audits = [
      samples.record(
          records.Audit,
          trial=number,
          round=1,
          differences=tuple(judged + scatter * (-1) ** i for i in range(4)),
          errors=(0.02,) * 4,
      )
      for judged in ([] if judged is None else [judged])
  ]
  race = samples.record(
      records.Race, round=1, arms=arms, standings=(standing,)
  )
  backtest = samples.record(
      records.Backtest, trial=number, predicted=predicted
  )
  return [*found[:2], backtest, race, *audits, found[2]]


class RunTestCase(parameterized.TestCase):

  def _propose(self, found=(), *, arms=None, parent=SEED, gain=0.0):
    """Return what a run with these records proposes.

    Args:
      found: Records of the run, besides its versions.
      arms: Folder of an arm -> its rollouts; others are of the usual kind.
      parent: The harness to change.
      gain: Solved share of v1's last updates minus that of v0's first ones.
    """
    # At first, what was solved had nothing to do with answers.
    arms = {'arms/v0': frame(follows=False, seed=1)} | (arms or {})
    first, last = (
        dataclasses.replace(v, outcome=(0.2, 0.3, solved, solved))
        for v, solved in zip(VERSIONS, (0.4, 0.25 + gain), strict=True)
    )
    past = samples.run(first, last, *found)
    run = mock.Mock(spec=opening.Run, path=pathlib.Path('run'))
    run.recorder = mock.Mock(history=past)
    run.harnesses = mock.Mock()
    config = SURFACE.apply(CONFIG, parent.overlay)
    run.harnesses.config_under.return_value = config
    run.setup = mock.Mock(domain=DOMAIN)
    self.read = []

    def read(folder, split, columns):
      self.read.append(str(folder.relative_to('run')))
      rows = arms.get(self.read[-1])
      return (frame() if rows is None else rows)[columns]

    context = propose_lib.Context(
        parent=parent,
        config=config_lib.flatten(config),
        measures=(),
        findings=(),
        history=[t for t in past.trials if t.verify],
        skills=(),
        rng=np.random.default_rng(0),
        domain='math',
        surface=SURFACE,
    )
    with (
        mock.patch.object(store, 'read', read),
        mock.patch.object(
            history.History, 'arms_of', lambda self, v: [v.folder]
        ),
    ):
      return search.propose(run, context, last)


class SearchTest(RunTestCase):

  def test_each_gain_of_ten_points_is_explained(self):
    self.assertIsNone(self._propose(gain=0.09))
    # All that was ever solved has an answer, and as many had one.
    self.assertIsNone(self._propose(gain=0.2, arms={'arms/v0': frame(seed=1)}))
    # More have one now. That explains a gain if nothing else does, unless
    # nothing can be solved without it.
    for otherwise, found in ((0.1, True), (0.0, False)):
      arms = {
          'arms/v0': frame(seed=1, format_ok=0.3, otherwise=otherwise),
          'arms/r000-incumbent-3': frame(otherwise=otherwise),
      }
      self.assertEqual(bool(self._propose(gain=0.2, arms=arms)), found)
    made = self._propose(gain=0.2)
    self.assertEqual(made.proposer, 'search')
    self.assertEqual(made.trigger, 'search/gain')
    self.assertEqual(made.delta.factor, 'diagnostic:found_format_ok')
    self.assertFalse(made.delta.trains)
    self.assertEqual(self.read, ['arms/r000-incumbent-3', 'arms/v0'])
    self.assertRegex(
        made.hypothesis,
        r'The policy has gained 20 points by v1. In \d+ problems "format_ok"'
        r' holds in 100 % of what is solved and \d+ % of what is not \(p <',
    )
    self.assertIn('it trains nothing', made.criterion)
    # The alert is raised while fewer completions than half-way do it.
    functions = run_lib.Functions(made.after)
    warn = functions.meta('found_format_ok')['WARN']
    sign, middle = warn['found_format_ok']
    self.assertEqual(sign, '<')
    self.assertBetween(middle, 0.6, 0.8)
    asked = [
        samples.record(
            records.Hypothesize,
            trial=0,
            version='v0',
            proposer='search',
            trigger='search/gain',
            expected=(0.0, 0.0),
        ),
        *samples.trial(0, 'v1', '')[1:],
    ]
    self.assertIsNone(self._propose(asked, gain=0.19))
    self.assertIsNotNone(self._propose(asked, gain=0.21))
    # One version is not searched twice.
    same = dataclasses.replace(asked[0], version='v1')
    self.assertIsNone(self._propose([same, *asked[1:]], gain=0.41))

  def test_three_failures_in_a_row(self):
    failed = [r for n in range(3) for r in samples.trial(n, 'v1', '', -0.01)]
    self.assertIsNone(self._propose(failed[:6]))
    made = self._propose(failed)
    self.assertEqual(made.trigger, 'search/failures')
    kept = samples.trial(3, 'v1', 'v2', 0.05)
    self.assertIsNone(self._propose([*failed, *kept]))

  def test_a_refusal_by_the_second_judge(self):
    """The arms of the change answer less often; only two pairs are read."""
    judged = raced(5, own=0.1, judged=-0.02)
    silent = {
        f'arms/r001-candidate-{i}': frame(format_ok=0.2, seed=i)
        for i in range(4)
    }
    made = self._propose(judged, arms=silent)
    self.assertEqual(made.trigger, 'search/audit_of_trial_5')
    self.assertEqual(made.delta.factor, 'diagnostic:found_format_ok')
    self.assertCountEqual(
        self.read,
        [
            f'arms/r001-{role}-{pair}'
            for role in ('candidate', 'incumbent')
            for pair in (0, 1)
        ],
    )
    # A gate, which later changes have to pass.
    meta = run_lib.Functions(made.after).meta('found_format_ok')
    self.assertEmpty(meta['WARN'])
    self.assertEqual(meta['CRITICAL']['found_format_ok'][0], '<')
    self.assertBetween(meta['CRITICAL']['found_format_ok'][1], 0.3, 0.5)
    # It replaces a diagnostic that only warns, and is not found twice.
    warns = self._propose(gain=0.2).after
    replaced = self._propose(judged, arms=silent, parent=warns)
    self.assertEqual(replaced.delta.factor, made.delta.factor)
    again = raced(6, own=0.1, judged=-0.02)
    third = self._propose(again, arms=silent, parent=replaced.after)
    if third is not None:
      self.assertNotEqual(third.delta.factor, made.delta.factor)
    for other in (
        # Half of the gain is gone, perhaps by chance: undecided.
        raced(5, own=0.1, judged=0.03, scatter=0.08),
        raced(5, own=0.1, judged=0.09),  # The gain remains.
        raced(5, own=0.1, judged=-0.02, alerts=('too_short',)),  # Explained.
    ):
      self.assertIsNone(self._propose(other, arms=silent))

  def test_a_race_against_its_backtest(self):
    silent = {
        f'arms/r001-candidate-{i}': frame(format_ok=0.2, seed=i)
        for i in range(4)
    }
    made = self._propose(
        raced(5, own=-0.1, predicted=(0.0, 0.05)), arms=silent
    )
    self.assertEqual(made.trigger, 'search/race_of_trial_5')
    meta = run_lib.Functions(made.after).meta('found_format_ok')
    self.assertEqual(meta['WARN']['found_format_ok'][0], '<')
    agrees = raced(5, own=-0.1, predicted=(-0.15, 0.05))
    self.assertIsNone(self._propose(agrees, arms=silent))

  def test_nothing_is_made_of_noise(self):
    noise = {'arms/r000-incumbent-3': frame(follows=False)}
    failed = [r for n in range(3) for r in samples.trial(n, 'v1', '', -0.01)]
    self.assertIsNone(self._propose(failed, gain=0.2, arms=noise))

  def test_what_the_harness_has_is_not_found_again(self):
    first = self._propose(gain=0.2)
    second = self._propose(gain=0.2, parent=first.after)
    if second is not None:
      text = second.after.files[f'diagnostics/{second.delta.factor[11:]}.py']
      self.assertNotIn('return e.format_ok\n', text)
    path = 'diagnostics/found_format_ok.py'
    written = predicates.read(path, first.after.files[path])
    self.assertEqual(
        (written.text, written.below, written.critical),
        ('e.format_ok', True, False),
    )
    self.assertIn('The policy has gained 20 points by v1.', written.why)
    files = {
        f'diagnostics/found_{i}.py': first.after.files[
            'diagnostics/found_format_ok.py'
        ].replace('found_format_ok', f'found_{i}')
        for i in range(4)
    }
    full = dataclasses.replace(SEED, files={**SEED.files, **files})
    self.assertIsNone(self._propose(gain=0.2, parent=full))

  def test_pairs_are_divided(self):
    (trial,) = samples.run(*raced(5)).trials
    one, other = search.compared(trial, held_out=True)
    self.assertEqual(one, ('arms/r001-candidate-2', 'arms/r001-candidate-3'))
    self.assertEqual(other, ('arms/r001-incumbent-2', 'arms/r001-incumbent-3'))
    self.assertEqual(search.raced('search/audit_of_trial_5'), 5)
    self.assertEqual(search.raced('search/race_of_trial_12'), 12)
    self.assertIsNone(search.raced('search/gain'))


class DiscoveredTest(RunTestCase):

  def test_what_was_found_can_be_paid(self):
    parent = self._propose(gain=0.2).after
    measure = records.Measure(
        'found_format_ok', 'behaviour', '', 0.5, ('<', 0.8), None, 'warn'
    )
    context = propose_lib.Context(
        parent=parent,
        config=config_lib.flatten(SURFACE.apply(CONFIG, parent.overlay)),
        measures=(measure,),
        findings=(),
        history=(),
        skills=(),
        rng=np.random.default_rng(0),
        domain='math',
        surface=SURFACE,
    )
    (entry,) = discovered.entries(context)
    self.assertEqual(entry.triggers, ('found_format_ok',))
    after = entry.apply(context)
    change = delta.diff(parent, after, SURFACE, context.config)
    self.assertEqual(change.factor, 'reward:found_format_ok')
    weights = {p: v for p, _, v in change.changes if surface.is_weight(p)}
    self.assertEqual(weights, {'reward.weights.found_format_ok': 0.1})
    self.assertIn('found_format_ok', parts.hashes(after.files['reward.py']))
    self.assertTrue(delta.diff(parent, after, SURFACE, context.config).trains)
    # Only its alert calls for it, and it is among the changes that are tried.
    made = rules.propose(context)
    self.assertEqual(made.trigger, 'found_format_ok')
    self.assertEqual(made.delta.factor, change.factor)

  def test_a_users_file_of_that_name_is_left_alone(self):
    source = "LAYER = 'score'\nUNIT = ''\ndef measure(e):\n  return {}\n"
    parent = SEED.with_file('diagnostics/found_mine.py', source)
    context = mock.Mock(spec=propose_lib.Context)
    context.parent = parent
    self.assertEmpty(list(discovered.entries(context)))


class EndToEndTest(absltest.TestCase):

  def test_a_run_adds_a_diagnostic(self):
    """Far too small to find anything: so everything counts as found."""
    path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    with (
        compiled.optimised(),
        mock.patch.object(search, '_GAINED', -1.0),
        mock.patch.multiple(
            predicates, LEAST_UNITS=2, _LEAST_T=0.0, _LEAST_GAP=0.0, LEVEL=1.0
        ),
        mock.patch.object(validate, 'LEVEL', 1.01),
    ):
      evojax.run(tiny.evolving(), str(path))
    past = history.read(path)
    trial, *_ = [t for t in past.trials if t.proposer == 'search']
    self.assertEqual(trial.hypothesize.trigger, 'search/gain')
    # The first version is the only one on which it was not chosen.
    self.assertEqual(trial.hypothesize.version, 'v1')
    self.assertEqual(trial.status, 'keep', trial.verify)
    self.assertRegex(' '.join(trial.verify.reasons), 'slices of 1 version')
    self.assertIsNone(trial.effect)
    made = past.version(trial.made)
    self.assertEqual(made.end, past.version('v1').end)
    # It measures what is trained after that.
    name = trial.delta.factor.removeprefix('diagnostic:')
    later = [d for d in past.all(records.Diagnose) if d.trial > trial.number]
    self.assertNotEmpty(later)
    self.assertIn(name, [m.name for m in later[-1].measures])
    self.assertIn(name, (path / 'report.html').read_text())


class SwitchTest(parameterized.TestCase):

  @parameterized.parameters((True, 1), (False, 0))
  def test_it_can_be_switched_off(self, wanted, count):
    run = mock.Mock(spec=opening.Run, path=pathlib.Path('run'))
    run.config = tiny.evolving(evolve__search=wanted)
    run.recorder = mock.Mock(history=samples.run(*VERSIONS))
    run.setup = mock.Mock(surface=SURFACE, domain=mock.Mock(levels=()))
    run.harnesses = mock.Mock()
    run.harnesses.load.return_value = SEED
    run.harnesses.values.return_value = {}
    run.inbox = pathlib.Path('run/inbox')
    diagnosis = samples.record(records.Diagnose, version='v1')
    with (
        mock.patch.object(recorded, 'solved_by_family', return_value={}),
        mock.patch.object(search, 'propose', return_value=None) as asked,
    ):
      row, _ = hypothesize._choose(
          run, diagnosis, VERSIONS[-1], ('critical',), 'It waits.'
      )
    self.assertEqual(asked.call_count, count)
    self.assertEqual((row.proposer, row.note), ('', 'It waits.'))


if __name__ == '__main__':
  absltest.main()
