"""The meta-loop, end to end, on the shipped policy at minimal size."""

import contextlib
import dataclasses
import hashlib
import io
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pyarrow as pa
from pyarrow import parquet
import pytest

import evojax
from evojax import config as config_lib
from evojax.episodes import collect
from evojax.eval import race
from evojax.evidence import store
from evojax.evolve import arms
from evojax.evolve import compared
from evojax.evolve import executor
from evojax.evolve import learning
from evojax.evolve import loop
from evojax.evolve import opening
from evojax.evolve import propose
from evojax.evolve import prospects
from evojax.evolve import recorded
from evojax.evolve import recorder as recorder_lib
from evojax.evolve import repairs
from evojax.evolve import scoring
from evojax.evolve import skills
from evojax.evolve import states
from evojax.evolve import validate
from evojax.evolve.steps import validation
from evojax.evolve.steps import verify
from evojax.harness import admit
from evojax.harness import delta
from evojax.harness import library
from evojax.harness import run as run_lib
from evojax.harness import spec
from evojax.harness import surface
from evojax.ledger import budget
from evojax.ledger import chain
from evojax.ledger import history
from evojax.ledger import records
from evojax.models import hf
from evojax.runtime import metrics
from evojax.runtime import preemption
from evojax.runtime import progress
from evojax.runtime import sharding
from evojax.sandbox import probe
from evojax.training import engines
from evojax.training import setup as setup_lib
from tests import compiled
from tests import tiny
from tests.evolve import recompute

RECOMPUTE = pathlib.Path(__file__).with_name('recompute.py')
_LAST = 'arms/v0/evidence/train/step_000002.parquet'
# A budget that the first row uses up, whatever the machine's speed.
ONE_ROW = absltest.mock.patch.object(
    budget.Budget, 'remaining', lambda _, rows: 0.0 if rows else 1e9
)
# A change with a class, rate and seeds chosen by the user; tried first.
QUEUED = {
    'delta': {'overlay': {'optim.learning_rate': 0.002}},
    'hypothesis': 'It learns too slowly.',
    'expected': [0.0, 0.5],
}
# A diagnostic that follows the score, so that it is kept on version 0.
KEPT = {
    'delta': {'file': 'diagnostics/solved.py', 'source_file': 'solved.py'},
    'hypothesis': 'How much is solved should be seen.',
    'expected': [0.0, 0.0],
}
SOLVED = """
LAYER = 'score'
UNIT = 'fraction'


def measure(e):
  if not e.valid.any():
    return {}
  return {'share_solved': float(e.outcome[e.valid].mean())}
"""
# A statistic that no trial has confirmed yet.
UNPROVEN = {
    'delta': {
        'file': 'backtests/alive_groups.py',
        'source_of': 'library/backtests/alive_groups.py',
    },
    'hypothesis': 'Alive groups foretell what a filter does.',
    'expected': [0.0, 0.0],
}


@pytest.fixture(autouse=True, scope='module')
def optimised():
  with compiled.optimised():
    yield


def retrained(**overrides):
  """Return the config of this test: one candidate, its harness retrained."""
  options = dict(evolve__retrain=True, evolve__entries=1)
  return tiny.evolving(**options | overrides)


def payloads(workdir):
  path = pathlib.Path(workdir, 'ledger.jsonl')
  return [row['payload'] for row in chain.read(path)]


def steps(workdir):
  return [p['step'] for p in payloads(workdir)]


def queue(workdir, **files):
  inbox = pathlib.Path(workdir, 'inbox')
  inbox.mkdir(parents=True, exist_ok=True)
  (inbox / 'solved.py').write_text(SOLVED)
  for name, content in files.items():
    (inbox / f'{name}.json').write_text(json.dumps(content))


def problem_ids(root, pattern):
  found = set()
  for path in pathlib.Path(root).glob(pattern):
    column = parquet.read_table(path, columns=['problem_id'])['problem_id']
    found |= set(column.to_pylist())
  return found


class EndToEndTest(parameterized.TestCase):
  """One run: a kept diagnostic, a trial, the final claims."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = pathlib.Path(
        cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    cls.path = cls.root / 'run'
    queue(cls.path, a=KEPT, b=QUEUED, c={'veto': 'grpo.kl_coef'})
    cls.summary = evojax.run(retrained(), str(cls.path))
    cls.rows = payloads(cls.path)

  def row(self, step, **match):
    (found,) = [
        r for r in self.rows if r['step'] == step and match.items() <= r.items()
    ]
    return found

  def test_steps_in_order(self):
    self.assertEqual(
        [r['step'] for r in self.rows],
        [
            'open', 'train',
            # The measurement does not use up the first round.
            'diagnose', 'hypothesize', 'design', 'admit', 'backtest', 'verify',
            'promote', 'accumulate',
            'diagnose', 'hypothesize', 'design', 'admit', 'backtest', 'race',
            'promote',  # It continues racing; no other candidate may enter.
            'diagnose', 'hypothesize',
            'race', 'verify', 'accumulate', 'promote',
            'retrain', 'seal', 'final',
        ],
    )  # fmt: skip

  def test_a_measurement_is_kept_without_training(self):
    verdict = self.row('verify', trial=0)
    self.assertEqual(verdict['status'], 'keep')
    self.assertIsNone(verdict['effect'])
    promoted = self.row('promote', version='v1')
    self.assertEqual(promoted['end'], self.row('train')['end'])
    harness = spec.load(self.path / 'harness', promoted['harness'])
    self.assertIn('diagnostics/solved.py', harness.files)
    self.assertRegex(
        verdict['reasons'][0],
        r'share_solved: rank agreement \+1.00 with the score over . slices of 1'
        r' version, p .* <= 0.1',
    )
    # The next diagnosis uses it.
    measures = self.row('diagnose', trial=1)['measures']
    self.assertIn('share_solved', [m['name'] for m in measures])

  def test_slow_learning_is_judged_by_the_round_before_as_well(self):
    race = self.row('race', round=0)
    arms = {arm['folder']: arm['outcome'] for arm in race['arms']}
    sources = self.row('promote', round=0)['sources']
    last = [x for source in sources for x in arms[source['folder']]]
    both = self.row('train')['outcome'] + last
    *_, found = [row for row in self.rows if row['step'] == 'diagnose']
    measures = {m['name']: m['value'] for m in found['measures']}
    for name, solved in (('outcome_rise', last), ('recent_rise', both)):
      slope, _ = np.polyfit(range(len(solved)), solved, 1)
      self.assertAlmostEqual(measures[name], slope * (len(solved) - 1))

  def test_a_statistic_is_asked_about_past_trials(self):
    """This run's trial realises one effect: too few to prove it."""
    path = self.root / 'validated'
    shutil.copytree(self.path, path)
    options = opening.Options((), '', '', executor.Placement())
    with opening.open_run(retrained(), str(path), options) as run:
      version = run.recorder.history.versions[-1]
      parent = run.harnesses.load(version.harness)
      name = 'backtests/alive_groups.py'
      after = parent.with_file(name, library.source(name))
      spec.write(after, path / 'harness')
      design = run.recorder.history.all(records.Design)[-1]
      design = dataclasses.replace(design, harness=after.sha256)
      change = run.harnesses.delta(version.harness, after.sha256)
      found = validation.validated(run, version, design, change)
      self.assertFalse(found.kept)
      self.assertStartsWith(found.reasons[0], '1 past trials have a realised')
      with absltest.mock.patch.object(validate, 'LEAST', 1):
        found = validation.validated(run, version, design, change)
      self.assertFalse(found.kept)
      # The trial raised the rate, so groups and rewards stay the same.
      self.assertIn(
          'alive_by_outcome_change: 0 everywhere, beside 1 realised effects,'
          ' signs agree in 0 of 0, p 1 > 0.025',
          found.reasons,
      )

  def test_pairs_start_where_the_arm_of_the_incumbent_ended(self):
    for number, count in ((0, 6), (1, 6)):  # The candidate continued.
      row = self.row('race', round=number)
      self.assertLen(row['arms'], count)
      ends = {r['version']: r['end'] for r in self.rows if 'parent' in r}
      self.assertEqual(row['start'], ends[row['version']])
      own = [a for a in row['arms'] if a['role'] == 'incumbent']
      starts = [row['start'], *(a['end'] for a in own)]
      for arm in row['arms']:
        self.assertEqual(arm['start'], starts[arm['pair']])
      self.assertLen({a['end'] for a in row['arms']}, count)

  def test_the_policy_of_a_round_is_the_incumbents_last_arm(self):
    row = self.row('promote', round=0)
    race = self.row('race', round=0)
    arms = [arm for arm in race['arms'] if arm['trial'] is None]
    self.assertEqual(
        [(source['end'], source['weight']) for source in row['sources']],
        [(arm['end'], float(arm is arms[-1])) for arm in arms],
    )
    self.assertEqual(row['end'], arms[-1]['end'])
    self.assertEqual(self.row('race', round=1)['start'], row['end'])
    # All of them trained it, one by one.
    tokens = sum(arm['sampled_tokens'] for arm in arms)
    self.assertEqual(row['sampled_tokens'], tokens)

  def test_candidates_enter_the_policy_only_if_they_are_kept(self):
    verdict = self.row('verify', trial=1)
    trial = 1 if verdict['status'] == 'keep' else None
    arms = self.row('race', round=0)['arms']
    wanted = [a['folder'] for a in arms if a['trial'] == trial]
    row = self.row('promote', round=0)
    self.assertEqual([s['folder'] for s in row['sources']], wanted)
    self.assertEqual({s['harness'] for s in row['sources']}, {row['harness']})

  def test_arms_that_no_step_reads_again_leave_no_checkpoints(self):
    left = {p.parent.name for p in self.path.glob('arms/*/checkpoints')}
    used = {pathlib.Path(r['folder']).name for r in self.rows if 'parent' in r}
    self.assertEqual(left, used | {'final'})

  def test_every_row_names_its_harness(self):
    """The harness that trains, or that trained the scored policy."""
    harnesses = {p.name for p in (self.path / 'harness').iterdir()}
    arms = {
        path.parent: json.loads(path.read_bytes())['harness']
        for path in self.path.rglob('arm.json')
    }
    self.assertGreater(len(set(arms.values())), 1)
    self.assertLessEqual(set(arms.values()), harnesses)
    scored = set()
    for path in self.path.rglob('evidence/*/*.parquet'):
      column = parquet.read_table(path, columns=['version'])['version']
      (version,) = set(column.to_pylist())
      folder = path.parents[2]
      if folder in arms:
        self.assertEqual(version, arms[folder], path)
      elif folder.name == 'base':
        self.assertEqual(version, 'seed', path)
      else:
        self.assertIn(version, harnesses, path)
        scored.add(version)
    self.assertNotEmpty(scored)

  def test_arms_of_a_pair_meet_the_same_problems(self):
    arms = self.row('race', round=0)['arms']
    met = {
        (a['trial'], a['pair']): problem_ids(
            self.path / a['folder'], 'evidence/train/*.parquet'
        )
        for a in arms
    }
    for pair in range(3):
      self.assertEqual(met[None, pair], met[1, pair])
    self.assertNotEqual(met[None, 0], met[None, 1])

  def test_no_seed_is_used_twice(self):
    seeds = [
        arm['seed']
        for row in self.rows
        if row['step'] == 'race'
        for arm in row['arms']
        if arm['trial'] is None
    ]
    self.assertLen({*seeds, tiny.evolving().seed}, 2 * 3 + 1)

  def test_the_change_reached_the_candidate_alone(self):
    rates = {}
    for arm in self.row('race', round=0)['arms']:
      lines = (self.path / arm['folder'] / 'metrics.jsonl').read_text()
      values = [json.loads(line) for line in lines.splitlines()]
      rates.setdefault(arm['trial'], set()).update(
          round(v['learning_rate'], 6) for v in values
      )
    self.assertEqual(rates, {None: {1e-4}, 1: {0.002}})

  def test_numbers_can_be_recomputed(self):
    done = subprocess.run(
        [sys.executable, RECOMPUTE, self.path],
        capture_output=True,
        text=True,
        check=False,
    )
    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

  def test_recomputing_sees_another_score(self):
    copy = self.root / 'altered'
    shutil.copytree(self.path, copy)
    self.addCleanup(shutil.rmtree, copy)
    # All rollouts of one arm are solved.
    for file in copy.glob('arms/r000-t001-0/evidence/train/*.parquet'):
      table = parquet.read_table(file)
      place = table.column_names.index('outcome')
      solved = pa.array(np.ones(len(table), bool))
      table = table.set_column(place, table.schema.field(place), solved)
      parquet.write_table(table, file)
    done = subprocess.run([sys.executable, RECOMPUTE, copy], check=False)
    self.assertEqual(done.returncode, 1)

  def test_sealed_problems_come_from_head_and_salt(self):
    seal = self.row('seal')
    rows = chain.read(self.path / 'ledger.jsonl')
    head = rows[seal['n'] - 1]['hash']
    digest = hashlib.sha256(f'{head} pepper'.encode()).digest()
    self.assertEqual(seal['seed'], int.from_bytes(digest[:4], 'big'))
    sealed = problem_ids(self.path, 'sealed/*/evidence/sealed/*.parquet')
    held = problem_ids(self.path, '**/evidence/train/*.parquet')
    held |= problem_ids(self.path, '**/evidence/dev/*.parquet')
    self.assertNotEmpty(sealed)
    self.assertEmpty(sealed & held)

  def test_the_same_command_changes_nothing(self):
    before = (self.path / 'ledger.jsonl').read_bytes()
    again = evojax.run(retrained(), str(self.path))
    self.assertEqual((self.path / 'ledger.jsonl').read_bytes(), before)
    self.assertEqual(again['sealed'], self.summary['sealed'])
    # The time since its end is not lost.
    for name in ('time', 'time_shares'):
      self.assertEqual(again[name], self.summary[name])

  def test_a_run_that_ended_races_no_more(self):
    before = (self.path / 'ledger.jsonl').read_bytes()
    evojax.run(retrained(evolve__rounds=3), str(self.path))
    self.assertEqual((self.path / 'ledger.jsonl').read_bytes(), before)

  def test_a_change_that_was_not_promised_does_not_enter(self):
    path = self.root / 'more'
    shutil.copytree(self.path, path)
    lines = (path / 'ledger.jsonl').read_text().splitlines(keepends=True)
    # Without retrain, seal, final.
    (path / 'ledger.jsonl').write_text(''.join(lines[:-3]))
    with absltest.mock.patch.object(loop.retrain, 'retrain') as retrain:
      retrain.side_effect = ValueError('the end')
      with self.assertRaisesRegex(ValueError, 'the end'):
        evojax.run(retrained(evolve__rounds=3), str(path))
    # Every round is diagnosed; the first one twice, for the measurement.
    self.assertEqual(steps(path).count('diagnose'), 4)
    self.assertEqual(steps(path).count('design'), 2)
    # The incumbent continued alone.
    last = [r for r in payloads(path) if r['step'] == 'race'][-1]
    self.assertEqual((last['round'], last['standings']), (2, []))

  def test_a_seed_harness_that_changed_is_told(self):
    folder = self.root / 'harness'
    shutil.copytree(self.path / 'harness' / self.row('open')['harness'], folder)
    config = tiny.evolving(harness__path=str(folder))
    path = self.root / 'changed'
    with ONE_ROW:
      evojax.run(config, str(path))
    overlay = json.loads((folder / 'overlay.json').read_text())
    overlay['optim.learning_rate'] = 3e-4
    (folder / 'overlay.json').write_text(json.dumps(overlay))
    before = (path / 'ledger.jsonl').read_bytes()
    with self.assertRaisesRegex(ValueError, 'begun with the seed harness'):
      evojax.run(config, str(path))
    self.assertEqual((path / 'ledger.jsonl').read_bytes(), before)

  def test_summary(self):
    stored = json.loads((self.path / 'summary.json').read_text())
    self.assertEqual(stored['ledger_head'], self.summary['ledger_head'])
    self.assertEqual(stored['sealed']['reference'], 'not run')
    self.assertEqual(stored['time']['restarts'], 0)
    self.assertBetween(stored['time']['goodput'], 0.2, 1)
    final = self.row('final')
    self.assertEqual(stored['sealed']['evolved'], final['scores']['evolved'])
    (measured,) = [t for t in stored['trials'] if t['effect'] is not None]
    change = 'optim.learning_rate (0.0001 -> 0.002)'
    self.assertEqual(measured['change'], change)
    (standing,) = self.row('race', round=1)['standings']
    self.assertEqual(
        measured['minimum_detectable_effect'], standing['detectable']
    )
    hf.check_directory(pathlib.Path(stored['policy']))
    hf.check_directory(self.path / 'policy_retrained')
    page = (self.path / 'report.html').read_text()
    self.assertIn('<html', page[:200])
    # Results always say how untrusted code was isolated.
    tier = probe.tier()
    self.assertRegex(page, f'>sandbox</dt><dd>{tier}</dd>')
    self.assertEqual({row['sandbox'] for row in self.rows}, {tier})
    self.assertEqual(self.summary['sandbox'], [tier])

  def test_inbox_was_taken_after_its_rows(self):
    done = sorted(p.name for p in (self.path / 'inbox/done').iterdir())
    self.assertEqual(done, ['a.json', 'b.json'])

  @pytest.mark.slow
  def test_fork_starts_from_a_version(self):
    forked = self.root / 'fork'
    loop.run(
        tiny.evolving(evolve__rounds=1),
        str(forked),
        fork_from=str(self.path),
        fork_version='v1',
    )
    rows = payloads(forked)
    first = next(r for r in rows if r['step'] == 'train')
    source = self.row('promote', version='v1')
    self.assertEqual(first['harness'], source['harness'])
    self.assertEqual(first['end'], source['end'])
    # A fork does not count the tokens that its source sampled.
    self.assertEqual((first['sampled_tokens'], first['updates']), (0, 0))
    self.assertEqual(rows[0]['forked'], 'run:v1')
    # The same command continues it, even if its source is gone.
    gone = dict(fork_from=str(self.root / 'gone'), fork_version='v1')
    loop.run(tiny.evolving(evolve__rounds=1), str(forked), **gone)
    self.assertEqual(payloads(forked), rows)

  def test_fork_of_an_unknown_version(self):
    with self.assertRaisesRegex(ValueError, r"--fork_version=v9.*'v0', 'v1'"):
      loop.run(
          tiny.evolving(),
          str(self.root / 'none'),
          fork_from=str(self.path),
          fork_version='v9',
      )

  def test_compare_brings_in_a_policy(self):
    path = self.root / 'compared'
    shutil.copytree(self.path, path)
    lines = (path / 'ledger.jsonl').read_text().splitlines(keepends=True)
    (path / 'ledger.jsonl').write_text(''.join(lines[:-1]))  # Without 'final'.
    summary = loop.run(retrained(), str(path), compare=[str(self.path)])
    self.assertEqual(
        summary['sealed']['smoke'], self.summary['sealed']['evolved']
    )

  def test_a_finished_run_is_compared_in_a_row_of_its_own(self):
    path = self.root / 'finished'
    shutil.copytree(self.path, path)
    before = (path / 'ledger.jsonl').read_bytes()
    other = self.root / 'other'  # Another run of the same name.
    shutil.copytree(self.path, other)
    shutil.rmtree(other / 'policy')
    shutil.copytree(self.path / 'policy_retrained', other / 'policy')
    summary = loop.run(retrained(), str(path), compare=[str(self.path)])
    after = (path / 'ledger.jsonl').read_bytes()
    self.assertStartsWith(after, before)
    self.assertEqual(after.count(b'\n'), before.count(b'\n') + 1)
    evolved = self.summary['sealed']['evolved']
    self.assertEqual(summary['sealed']['smoke'], evolved)
    called = f'smoke ({self.path.name})'
    self.assertEqual(summary['names']['smoke'], called)
    self.assertIn(called, (path / 'report.html').read_text())
    # Again: it has its row. A further run is added instead of replacing it.
    loop.run(retrained(), str(path), compare=[str(self.path)])
    self.assertEqual((path / 'ledger.jsonl').read_bytes(), after)
    summary = loop.run(retrained(), str(path), compare=[str(other)])
    self.assertEqual(summary['sealed']['smoke'], evolved)
    self.assertEqual(
        summary['sealed']['other'], self.summary['sealed']['retrained']
    )
    self.assertIn('smoke', summary['compute'])

  def test_policies_are_scored_on_as_many_problems(self):
    path = self.root / 'rescored'
    shutil.copytree(self.path, path)
    before = (path / 'config.json').read_bytes()
    lines = (path / 'ledger.jsonl').read_text().splitlines(keepends=True)
    for left in lines, lines[:-1]:  # The run has ended, or is being scored.
      (path / 'ledger.jsonl').write_text(''.join(left))
      for field in 'problems', 'samples':
        with self.assertRaisesRegex(
            ValueError, r'4 sealed .* --config.eval.problems=4 --config.eval.sa'
        ):
          loop.run(
              retrained(**{f'eval__{field}': 3}),
              str(path),
              compare=[str(self.path)],
          )
        self.assertEqual((path / 'config.json').read_bytes(), before)

  def test_training_of_a_compared_run_is_not_its_scores(self):
    path = self.root / 'trained'
    for split, tokens in (('train', [3, 4]), ('dev', [5])):
      for step, count in enumerate(tokens):
        file = store.path_of(path, split, step)
        file.parent.mkdir(parents=True, exist_ok=True)
        table = pa.table({'n_tokens': np.array([count, 0], np.int32)})
        parquet.write_table(table, file)
    self.assertEqual(
        compared.tokens_of(path), records.Tokens(training=7, total=12)
    )


class MeanTest(absltest.TestCase):

  def test_arms_from_one_state_and_a_fork_of_their_mean(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    # The candidate enters, however small the chance to prove its gain is.
    self.enterContext(absltest.mock.patch.object(prospects, 'LAST_CHANCE', 0.0))
    config = tiny.evolving(evolve__policy='mean', evolve__rounds=1)
    evojax.run(config, str(root / 'run'))
    rows = payloads(root / 'run')
    (race_,) = [row for row in rows if row['step'] == 'race']
    self.assertEqual({a['start'] for a in race_['arms']}, {race_['start']})
    # The candidate was behind after half of its pairs.
    pairs = [a['pair'] for a in race_['arms'] if a['role'] == 'candidate']
    self.assertEqual(pairs, [0, 1])
    (row,) = [r for r in rows if r['step'] == 'promote' and r['sources']]
    self.assertLen(row['sources'], 3)
    self.assertEqual({s['weight'] for s in row['sources']}, {1 / 3})
    self.assertEqual(row['outer_learning_rate'], 2.0)
    self.assertNotIn(row['end'], {a['end'] for a in race_['arms']})
    # A fork starts from the mean, which is none of its arms.
    fork = dict(fork_from=str(root / 'run'), fork_version=row['version'])
    evojax.run(config, str(root / 'fork'), **fork)
    forked = payloads(root / 'fork')
    (again,) = [r for r in forked if r['step'] == 'race']
    self.assertEqual({a['start'] for a in again['arms']}, {row['end']})


class ShadowTest(absltest.TestCase):

  @pytest.mark.slow
  def test_a_kept_change_is_taken_back(self):
    path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), 'run')
    queue(path, b=QUEUED)
    lost = race.Verdict('drop', 'it lost')
    with (
        # Every candidate is kept, and then loses against its shadow.
        absltest.mock.patch.object(race, 'passed', lambda s, _: [*s]),
        absltest.mock.patch.object(verify, '_perturbed', lambda *_: None),
        absltest.mock.patch.object(race, 'horizon', lambda *_, **__: lost),
        # The two updates of an arm may teach too little for a shadow.
        absltest.mock.patch.object(learning, 'could_catch_up', lambda *_: True),
    ):
      evojax.run(tiny.evolving(), str(path))
    rows = payloads(path)
    of = lambda step: [row for row in rows if row['step'] == step]
    begun, looked = of('shadow')
    kept, back = of('promote')
    first, second = of('race')
    self.assertEqual((begun['look'], looked['look']), (0, 1))
    # It starts where the incumbent's own arms ended, and runs beside the policy
    # in place of a candidate.
    of_role = lambda race_, role: [
        a for a in race_['arms'] if a['role'] == role
    ]
    shadows = of_role(second, 'shadow')
    self.assertEqual(begun['end'], of_role(first, 'incumbent')[-1]['end'])
    self.assertEqual(
        [a['start'] for a in shadows],
        [begun['end'], *(a['end'] for a in shadows[:-1])],
    )
    self.assertEqual(begun['harness'], of('open')[0]['harness'])
    self.assertEqual(second['standings'], [])
    self.assertLen(second['arms'], 6)
    self.assertEqual({a['trial'] for a in shadows}, {0})
    # The policy was the candidate's last arm, which continues the incumbent's
    # earlier arms; now it is the shadow's again.
    *before, last = [s['folder'] for s in kept['sources']]
    self.assertEqual(last, of_role(first, 'candidate')[-1]['folder'])
    self.assertEqual(
        before, [a['folder'] for a in of_role(first, 'incumbent')[:-1]]
    )
    self.assertEqual(kept['end'], of_role(first, 'candidate')[-1]['end'])
    self.assertNotEqual(kept['harness'], begun['harness'])
    self.assertEqual(back['harness'], begun['harness'])
    self.assertEqual(back['end'], looked['end'])
    (trial,) = history.read(path).trials
    self.assertEqual((trial.status, trial.kind), ('taken back', 'discard'))


  def _keep_in_the_last_round(self, *patches):
    """Evolve for one round, in which a change is kept; return its path."""
    path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), 'run')
    queue(path, b=QUEUED)
    verdict = lambda *_, last, **__: race.Verdict(
        'keep' if last else 'go_on', 'asked'
    )
    slow = lambda *_: True
    with contextlib.ExitStack() as stack:
      for patch in (
          absltest.mock.patch.object(race, 'passed', lambda s, _: [*s]),
          absltest.mock.patch.object(verify, '_perturbed', lambda *_: None),
          absltest.mock.patch.object(race, 'horizon', verdict),
          absltest.mock.patch.object(learning, 'could_catch_up', slow),
          *patches,
      ):
        stack.enter_context(patch)
      options = dict(evolve__rounds=1, evolve__horizon=2, evolve__entries=1)
      out = stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
      summary = evojax.run(tiny.evolving(**options), str(path))
    return path, payloads(path), summary, ' '.join(out.getvalue().split())

  @pytest.mark.slow
  def test_a_change_kept_in_the_last_round_is_checked(self):
    path, rows, summary, text = self._keep_in_the_last_round()
    looks = [(r['look'], r['decision']) for r in rows if r['step'] == 'shadow']
    self.assertEqual(looks, [(0, 'go_on'), (1, 'go_on'), (2, 'keep')])
    _, *later = [row for row in rows if row['step'] == 'race']
    self.assertEqual([row['round'] for row in later], [1, 2])
    for row in later:
      roles = [arm['role'] for arm in row['arms']]
      self.assertEqual(sorted(roles), ['incumbent'] * 3 + ['shadow'] * 3)
      self.assertEqual((row['standings'], row['queue']), ([], []))
    # The policy is the one that was trained in the last of these rounds.
    last = [row for row in rows if row['step'] == 'promote'][-1]
    self.assertEqual(last['round'], 2)
    self.assertEqual(summary['ended'], 'rounds')
    self.assertEqual([t['horizon_unchecked'] for t in summary['trials']], [''])
    self.assertRegex(
        text,
        r'up to 2 rounds, about [\d,]+ tokens; 2 of them come after the last',
    )
    self.assertEqual(recompute.compare(path), [])

  @pytest.mark.slow
  def test_fewer_rounds_after_a_change_was_kept(self):
    path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), 'run')
    queue(path, b=QUEUED)
    second = lambda found, _: [n for n, s in found.items() if s.rounds > 1]
    verdict = lambda *_, last, **__: race.Verdict(
        'keep' if last else 'go_on', 'asked'
    )
    for owner, name, replaced in (
        (race, 'passed', second),
        (race, 'is_hopeful', lambda *_: True),
        (race, 'horizon', verdict),
        (verify, '_perturbed', lambda *_: None),
        (learning, 'could_catch_up', lambda *_: True),
    ):
      self.enterContext(absltest.mock.patch.object(owner, name, replaced))
    options = dict(evolve__horizon=2, evolve__entries=1)
    fill = loop.field_lib.fill

    def stopped(run, number):
      if number == 2:
        raise KeyboardInterrupt
      return fill(run, number)

    with absltest.mock.patch.object(loop.field_lib, 'fill', stopped):
      with self.assertRaises(KeyboardInterrupt):
        evojax.run(tiny.evolving(**options, evolve__rounds=4), str(path))
    summary = evojax.run(tiny.evolving(**options, evolve__rounds=1), str(path))
    rows = payloads(path)
    looks = [(r['round'], r['look']) for r in rows if r['step'] == 'shadow']
    self.assertEqual(looks, [(1, 0), (2, 1), (3, 2)])
    self.assertEqual(summary['ended'], 'rounds')

  @pytest.mark.slow
  def test_tokens_that_end_during_a_shadow(self):
    payable = loop.costs.payable
    poor = lambda *of, **score: 1.5 if of[1] > 1 else payable(*of, **score)
    path, rows, summary, text = self._keep_in_the_last_round(
        absltest.mock.patch.object(loop.costs, 'payable', poor)
    )
    looks = [(r['look'], r['decision']) for r in rows if r['step'] == 'shadow']
    self.assertEqual(looks, [(0, 'go_on'), (1, 'go_on'), (1, 'unchecked')])
    why = 'evolve.tokens does not pay for another round of its shadow'
    (trial,) = summary['trials']
    self.assertEqual(trial['horizon_unchecked'], why)
    self.assertIn(f'kept, horizon not checked because {why}', text)
    page = (path / 'report.html').read_text()
    self.assertIn(f'horizon not checked because {why}', page)
    self.assertIn('(1 with the horizon not checked)', page)
    before = (path / 'ledger.jsonl').read_bytes()
    options = dict(evolve__rounds=1, evolve__horizon=2, evolve__entries=1)
    evojax.run(tiny.evolving(**options), str(path))
    self.assertEqual((path / 'ledger.jsonl').read_bytes(), before)


class FollowedTest(absltest.TestCase):
  """A chain that follows the repair of a critical fault."""

  def _run(self, *patches, rounds=1):
    path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), 'run')
    self.path = path
    queue(path, b=QUEUED)
    options = dict(evolve__entries=1, evolve__rounds=rounds)
    with contextlib.ExitStack() as stack:
      # Critical in the first round of the repair.
      critical = lambda _, before=1: 'critical' if before else ''
      for patch in (
          absltest.mock.patch.object(repairs, 'severity_of', critical),
          *patches,
      ):
        stack.enter_context(patch)
      evojax.run(tiny.evolving(**options), str(path))
    rows = payloads(path)
    race_, *later = [row for row in rows if row['step'] == 'race']
    promoted = next(
        row for row in rows if row['step'] == 'promote' and row['round'] == 0
    )
    of_role = lambda role: [a for a in race_['arms'] if a['role'] == role]
    return rows, race_, later, promoted, of_role

  def test_all_its_arms_train_the_policy_once_it_is_kept(self):
    rows, race_, _, promoted, of_role = self._run(
        absltest.mock.patch.object(race, 'is_hopeful', lambda *_: True),
        absltest.mock.patch.object(race, 'passed', lambda s, _: [*s]),
        absltest.mock.patch.object(verify, '_perturbed', lambda *_: None),
    )
    repair = of_role('candidate')
    starts = [race_['start'], *(a['end'] for a in repair[:-1])]
    self.assertEqual([a['start'] for a in repair], starts)
    self.assertEqual([a['start'] for a in of_role('incumbent')], starts)
    self.assertEqual(
        [s['folder'] for s in promoted['sources']],
        [a['folder'] for a in repair],
    )
    tokens = sum(a['sampled_tokens'] for a in repair)
    self.assertEqual(promoted['sampled_tokens'], tokens)
    self.assertEqual({a['harness'] for a in repair}, {promoted['harness']})
    # The former harness did not train on, so no shadow continues it.
    self.assertNotIn('shadow', [row['step'] for row in rows])

  def test_none_of_its_arms_trains_the_policy_unless_it_is_kept(self):
    rows, race_, later, promoted, of_role = self._run(
        absltest.mock.patch.object(race, 'passed', lambda *_: []),
        absltest.mock.patch.object(race, 'is_hopeful', lambda *_: True),
        rounds=2,
    )
    self.assertLen(of_role('candidate'), 3)
    first = of_role('incumbent')[0]
    self.assertEqual(
        [s['folder'] for s in promoted['sources']], [first['folder']]
    )
    self.assertEqual(promoted['end'], first['end'])
    # It bet all in its round, and the chain is the incumbent's again.
    (standing,) = race_['standings']
    self.assertIn(standing['e_value'], (0.0, standing['threshold']))
    (verdict,) = [row for row in rows if row['step'] == 'verify']
    self.assertEqual(verdict['status'], 'discard')
    (after,) = later
    self.assertEqual(after['standings'], [])
    starts = [after['start'], *(a['end'] for a in after['arms'][:-1])]
    self.assertEqual([a['start'] for a in after['arms']], starts)

  def test_the_chain_goes_back_once_a_gain_is_unlikely(self):
    train_all, places = arms.train_all, []

    def watched(run, jobs, stage, groups=None, place=(0, 0), whose=()):
      if stage.endswith('incumbent'):
        places.append((place[0], len(jobs), place[1]))
      return train_all(run, jobs, stage, groups, place, whose)

    _, race_, _, promoted, of_role = self._run(
        absltest.mock.patch.object(race, 'is_hopeful', lambda *_: False),
        absltest.mock.patch.object(arms, 'train_all', watched),
    )
    # The progress line counts the arms that train, two of them in two pairs,
    # and says whose they are.
    self.assertEqual(places, [(0, 2, 4), (2, 2, 2), (4, 1, 0)])
    log = (self.path / 'log.txt').read_text()
    shown = re.findall(r' (\w+ \d/\d) step 2/', log)
    wanted = ['incumbent 1/6', 'candidate 2/6', 'incumbent 3/6']
    self.assertEqual(shown, [*wanted, 'candidate 4/6', 'incumbent 5/5'])
    repair, own = of_role('candidate'), of_role('incumbent')
    # Half of three pairs are two. The third goes on from the incumbent's own.
    self.assertEqual([a['pair'] for a in repair], [0, 1])
    self.assertEqual(
        [a['start'] for a in own],
        [race_['start'], repair[0]['end'], own[0]['end']],
    )
    self.assertEqual(
        [s['folder'] for s in promoted['sources']],
        [own[0]['folder'], own[2]['folder']],
    )


class SettledTest(absltest.TestCase):
  """Changes that repair nothing, while the policy learns fast."""

  def test_they_wait_and_the_policy_trains(self):
    path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), 'run')
    config = tiny.evolving(evolve__settled=0.05, evolve__rounds=1)
    with absltest.mock.patch.object(learning, 'rise', lambda *_: 0.06):
      summary = evojax.run(config, str(path))
    *_, told, race_, _, _, _ = payloads(path)
    self.assertEqual(
        steps(path)[-6:],
        ['diagnose', 'hypothesize', 'race', 'promote', 'seal', 'final'],
    )
    note = (
        'the policy still gains 6.0 points in a round; changes that repair'
        ' nothing wait until it gains at most 5 (evolve.settled)'
    )
    self.assertEqual((told['proposer'], told['note']), ('', note))
    self.assertEqual({a['role'] for a in race_['arms']}, {'incumbent'})
    log = ' '.join((path / 'log.txt').read_text().split())
    self.assertIn(f'round 0: {note}', log)
    self.assertEqual(
        summary['nothing_kept'],
        f'Nothing was kept: no change was tried: {note}.',
    )


class FaultTest(absltest.TestCase):
  """A critical fault that no harness can repair."""

  def setUp(self):
    super().setUp()
    root = self.enterContext(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(root, 'run')
    fault = records.Finding(
        check='grader_open',
        severity='critical',
        text='wrong answers are accepted',
        remedies=(records.Remedy(setting='grader'),),
    )
    self.enterContext(
        absltest.mock.patch.object(recorded, 'findings', lambda *_: (fault,))
    )

  def test_ends_the_run(self):
    # Nothing waits for the policy to learn slowly.
    config = tiny.evolving(evolve__settled=0.05)
    ended = evojax.run(config, str(self.path))['ended']
    self.assertEqual(ended, 'a fault outside the harness')
    found = ['open', 'train', 'diagnose', 'hypothesize', 'seal', 'final']
    self.assertEqual(steps(self.path), found)
    log = (self.path / 'log.txt').read_text()
    self.assertIn('evolve.end_at_fault=False', ' '.join(log.split()))
    self.assertNotIn('wait until', ' '.join(log.split()))
    page = (self.path / 'report.html').read_text()
    self.assertIn(
        'only you can repair: wrong answers are accepted. To change: grader.'
        ' Nothing was raced;',
        ' '.join(page.split()),
    )
    self.assertIn('No change was tried.', page)
    self.assertIn('ended: a fault outside the harness', page)
    # The same command finds the end.
    self.assertEqual(evojax.run(config, str(self.path))['ended'], ended)
    self.assertEqual(steps(self.path), found)

  def test_a_change_in_the_inbox_races_first(self):
    queue(self.path, b=QUEUED)
    config = tiny.evolving(evolve__rounds=1)
    self.assertEqual(evojax.run(config, str(self.path))['ended'], 'rounds')
    (race_,) = [row for row in payloads(self.path) if row['step'] == 'race']
    self.assertLen(race_['standings'], 1)


class StopTest(absltest.TestCase):

  def test_the_cost_of_a_step_outlives_a_stop(self):
    root = self.enterContext(tempfile.TemporaryDirectory())
    path = pathlib.Path(root, 'run')
    options = opening.Options()
    with self.assertRaises(preemption.Preempted):
      with opening.open_run(tiny.evolving(), str(path), options) as run:
        run.recorder.stop_if_asked()
        raise preemption.Preempted
    with opening.open_run(tiny.evolving(), str(path), options) as run:
      self.assertGreater(run.recorder._cost().device_seconds, 0)
      before = json.loads((path / 'ledger.unrecorded.json').read_text())
      self.assertGreater(
          run.recorder._cost().device_seconds, before['device_seconds']
      )


class SealedTest(absltest.TestCase):
  """No code that could use sealed problems gets access to them."""

  def test_a_trial_cannot_score_them(self):
    config = tiny.evolving()
    mesh = sharding.make_mesh(data=1, fsdp=1, tensor=1)
    setup = setup_lib.prepare(config)
    with tempfile.TemporaryDirectory() as folder:
      ledger = chain.Ledger(pathlib.Path(folder, 'ledger.jsonl'))
      recorder = recorder_lib.Recorder(
          ledger, budget.Budget(), lambda: None, lambda: None
      )
      scorer = scoring.Scorer(
          states=states.States(setup, mesh),
          engine=engines.make_engine(config, setup.policy, mesh),
          phases=metrics.Phases(),
          progress=progress.Progress([], shown=False),
          stop_if_asked=recorder.stop_if_asked,
          may_open_sealed=lambda: recorder.find(records.Seal) is not None,
      )
      sealed = scoring.Scored(
          folder=pathlib.Path(folder, 'base'),
          checkpoint=None,
          split='sealed',
          seed=0,
          problems=2,
          samples=1,
      )
      with self.assertRaisesRegex(ValueError, 'scored once'):
        scorer.scores(sealed)
      recorder.record(records.Seal, lambda: records.Seal(salt='pepper', seed=0))
      self.assertLen(scorer.scores(sealed), 2)

      # The next call scores the problems that could not be graded.
      domain, graded = type(setup.domain), type(setup.domain).grade_many

      def broken(self_, problems, episodes):
        first, *rest = graded(self_, problems, episodes)
        return [dataclasses.replace(first, status='infra_error'), *rest]

      again = dataclasses.replace(sealed, folder=pathlib.Path(folder, 'again'))
      with absltest.mock.patch.object(domain, 'grade_many', broken):
        for _ in range(2):
          with self.assertRaisesRegex(collect.GradingError, 'evaluates again'):
            scorer.scores(again)
      np.testing.assert_array_equal(
          scorer.scores(again), scorer.scores(sealed)
      )

  def test_a_proposer_sees_no_salt_and_no_workdir(self):
    seen = {f.name for f in dataclasses.fields(propose.Context)}
    self.assertEmpty(seen & {'path', 'workdir', 'domain_object', 'salt'})

  def test_a_reward_part_sees_no_problem(self):
    setup = setup_lib.prepare(tiny.evolving())
    harness = opening.seed_harness(setup.config)
    for name in ('problem_id', 'seed', 'split', 'prompt', 'family'):
      source = f'def parts(e):\n  return {{"outcome": e.{name}}}\n'
      f = run_lib.Functions(harness.with_file('reward.py', source))
      with self.assertRaises(run_lib.FunctionError):
        f.parts(_view(setup))

  def test_a_reward_part_that_reads_files_is_not_admitted(self):
    config = tiny.evolving()
    before = opening.seed_harness(config)
    text = before.files['reward.py'].replace(
        'def parts', 'import glob\n\ndef parts'
    )
    after = before.with_file('keep.py', 'import os\ndef keep(e, s): return 1\n')
    for candidate in (before.with_file('reward.py', text), after):
      made = setup_lib.prepare(config).synthetic
      reasons = admit.admit(before, candidate, config, surface.recipe(), made)
      self.assertIn('import ', ' '.join(reasons))

  def test_a_harness_that_reads_files_is_not_trained_with(self):
    config = tiny.evolving()
    bad = 'import os\ndef keep(e, s):\n  return e.valid, s\n'
    harness = opening.seed_harness(config).with_file('keep.py', bad)
    with tempfile.TemporaryDirectory() as folder:
      config.harness.path = str(spec.write(harness, folder))
      with self.assertRaisesRegex(ValueError, 'keep.py line 1: import os is'):
        setup_lib.prepare(config)
      with self.assertRaisesRegex(ValueError, 'keep.py line 1: import os is'):
        evojax.run(config, str(pathlib.Path(folder, 'run')))

  def test_a_machine_that_holds_nothing_says_so_at_once(self):
    with tempfile.TemporaryDirectory() as folder:
      with (
          absltest.mock.patch.object(
              probe, '_find', return_value=probe.Report('T2', {'T1': ('x',)})
          ),
          absltest.mock.patch.object(
              sharding, 'make_mesh', side_effect=AssertionError
          ),
      ):
        path = pathlib.Path(folder, 'run')
        with self.assertRaisesRegex(
            probe.WeakSandboxError, '--allow_weak_sandbox'
        ):
          evojax.run(tiny.evolving(), str(path))
        self.assertFalse(path.exists())


def _view(setup):
  """Return two groups of two completions."""
  from evojax.evidence import views  # Imported only here.

  rows = {
      'group': np.array([0, 0, 1, 1]),
      'sample': np.array([0, 1, 0, 1]),
      'graded': np.ones(4, bool),
      'outcome': np.array([True, False, False, True]),
      'problem_id': ['a' * 16] * 4,
  }
  return views.View(rows, setup.columns, prompts=2, group_size=2, max_tokens=8)


class SkillTest(absltest.TestCase):

  @pytest.mark.slow
  def test_a_library_is_cited_and_leads_there_at_once(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    config = tiny.evolving(evolve__rounds=1)
    parent = opening.seed_harness(config)
    after = parent.with_overlay({'reward.weights.length': -0.25})
    skill = skills.learned(
        delta.diff(parent, after, surface.recipe(), config_lib.flatten(config)),
        after,
        config_lib.flatten(config),
        surface.recipe(),
        trigger='format_failures',
        hypothesis='Shorter is better.',
        evidence=skills.Evidence(
            run='another',
            trial=3,
            domain='math',
            base=parent.sha256,
            effect=0.1,
            low=0.05,
            high=0.15,
        ),
    )
    skills.write(root / 'library', skill)
    evojax.run(
        tiny.evolving(
            evolve__rounds=1, evolve__skills=(str(root / 'library'),)
        ),
        str(root / 'second'),
    )
    rows = payloads(root / 'second')
    alerts = next(r['alerts'] for r in rows if r['step'] == 'diagnose')
    self.assertIn('format_failures', alerts)
    guess = next(r for r in rows if r['step'] == 'hypothesize')
    self.assertEqual(guess['skill'], skill.sha256)
    self.assertEqual(guess['harness'], after.sha256)
    self.assertIn('another, trial 3', guess['source'])


class BudgetTest(absltest.TestCase):

  @pytest.mark.slow
  def test_stops_cleanly_and_goes_on_with_more(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder, 'run')
    queue(path, a=UNPROVEN)
    config = tiny.evolving(evolve__rounds=1)
    with ONE_ROW, contextlib.redirect_stdout(io.StringIO()) as out:
      summary = evojax.run(config, str(path))
    self.assertEqual(summary['ended'], 'budget')
    self.assertEqual(summary['sealed'], 'not run')
    self.assertIn('no change was tried to the end', out.getvalue())
    self.assertIn('with a higher limit', out.getvalue())
    self.assertEqual(steps(path), ['open', 'stop'])
    with ONE_ROW:
      again = evojax.run(config, str(path))
    self.assertEqual(again['ended'], 'budget')
    self.assertEqual(steps(path), ['open', 'stop'])
    # With a larger budget it continues; finished work is not repeated.
    summary = evojax.run(config, str(path))
    self.assertEqual(summary['ended'], 'rounds')
    self.assertEqual(steps(path)[:3], ['open', 'stop', 'train'])
    verdict = next(p for p in payloads(path) if p['step'] == 'verify')
    self.assertEqual(verdict['status'], 'discard')
    self.assertStartsWith(verdict['reasons'][0], '0 past trials have')

  @pytest.mark.slow
  def test_what_an_arm_paid_for_is_saved(self):
    path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), 'run')
    config = tiny.evolving(evolve__rounds=1, evolve__first_updates=6)
    with absltest.mock.patch.object(
        budget.Budget,
        'remaining',
        lambda _, rows: 0.0 if (path / _LAST).exists() else 1e9,
    ):
      evojax.run(config, str(path))
    self.assertEqual(steps(path), ['open', 'stop'])
    self.assertTrue((path / 'arms/v0/checkpoints/step_000003').exists())
    self.assertFalse((path / 'arms/v0/arm.json').exists())


class RefusalTest(parameterized.TestCase):

  @parameterized.parameters(
      (dict(evolve__proposer='oracle'), 'evolve.proposer'),
      (dict(evolve__pairs=2), 'evolve.pairs=2: the spread'),
      (dict(model__lora_rank=2, evolve__policy='mean'), 'the mean of adapters'),
      (dict(evolve__dollars=3.0), 'evolve.dollars=3 limits nothing'),
      (dict(evolve__seed_harness='none'), 'has no directory'),
      (dict(harness__path='/nowhere'), '/nowhere is not a directory'),
  )
  def test_before_a_device_is_touched(self, overrides, message):
    with tempfile.TemporaryDirectory() as folder:
      with self.assertRaisesRegex(ValueError, message):
        evojax.run(tiny.evolving(**overrides), f'{folder}/run')
      self.assertFalse(pathlib.Path(folder, 'run').exists())

  def test_weights_of_parts_that_only_the_harness_has(self):
    config = tiny.evolving()
    harness = opening.seed_harness(config).with_file(
        'reward.py',
        'import numpy as np\n\n\ndef parts(e):\n'
        '  right = e.outcome.astype(np.float32)\n'
        "  return {'outcome': right, 'again': right * e.valid}\n",
    )
    weights = {'reward.weights.outcome': 1.0, 'reward.weights.again': 0.5}
    with tempfile.TemporaryDirectory() as folder:
      found = lambda harness: opening.check(
          tiny.evolving(
              harness__path=str(spec.write(harness, folder)),
              reward__weights={'outcome': 1.0, 'again': 0.5},
          ),
          opening.Options(),
      )
      setup, seed, *_ = found(harness.with_overlay(weights))
      self.assertEqual(seed.overlay, weights)
      self.assertEqual(setup.config.reward.weights.to_dict(), {'outcome': 1.0})
      # If the harness has no weights, those of the config count.
      empty = dict.fromkeys(harness.overlay)
      with self.assertRaisesRegex(ValueError, "names .'again'.; the reward"):
        found(harness.with_overlay(empty))

  def test_compare_without_a_policy(self):
    with tempfile.TemporaryDirectory() as folder:
      with self.assertRaisesRegex(ValueError, r'--compare=.*there is no'):
        loop.run(tiny.evolving(), f'{folder}/run', compare=[folder])


if __name__ == '__main__':
  absltest.main()
