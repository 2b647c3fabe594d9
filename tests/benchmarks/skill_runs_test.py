"""Rounds until a fault is repaired, under libraries of skills."""

import dataclasses
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import pytest

from benchmarks import skill_runs
from benchmarks.faults import settings
from evojax import config as config_lib
from evojax.evolve import skills as skills_lib
from evojax.ledger import records
from tests.ledger import samples

FAULT = settings.read(settings.FOLDER / 'math_kl_strong')
RATE = 'optim.learning_rate'
PATHS = {RATE: (5e-5, 1e-3)}


def skill(domains=('math',), **fields):
  evidence = tuple(
      skills_lib.Evidence('run', i, d, 'base', 0.05, 0.02, 0.08)
      for i, d in enumerate(domains)
  )
  overlay = {RATE: ('scale', 3.0)}
  made = skills_lib.Skill('slow_learning', 'Slow.', overlay, '', '', evidence)
  return dataclasses.replace(made, **fields)


class LibrariesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.folder = pathlib.Path(folder)

  def stored(self, name, *found):
    for one in found:
      skills_lib.write(self.folder / name, one)
    return str(self.folder / name)

  def libraries(self, *given):
    return skill_runs.libraries(given, FAULT, self.folder / 'out')

  def test_a_wrong_one_is_made_from_the_own_one(self):
    own = self.stored('own', skill())
    found = self.libraries(f'own={own}')
    self.assertEqual(list(found), ['empty', 'own', 'wrong'])
    self.assertEqual(found['empty'], ())
    (file,) = pathlib.Path(*found['wrong']).iterdir()
    wrong = skills_lib._read(file)
    self.assertEqual(wrong.overlay, {RATE: ('scale', 0.333333)})
    # It fires on the same alert, with the same evidence.
    self.assertEqual(wrong.trigger, skill().trigger)
    self.assertEqual(wrong.evidence, skill().evidence)

  def test_an_older_wrong_one_is_forgotten(self):
    self.libraries(f'own={self.stored("first", skill())}')
    second = skill(overlay={RATE: ('scale', 5.0)})
    found = self.libraries(f'own={self.stored("second", second)}')
    (file,) = pathlib.Path(*found['wrong']).iterdir()
    wrong = skills_lib._read(file)
    self.assertEqual(wrong.overlay, {RATE: ('scale', 0.2)})

  @parameterized.parameters(
      ({RATE: ('scale', 0.5)}, {RATE: ('scale', 2.0)}),
      (
          {'reward.weights.format': ('set', 0.3)},
          {'reward.weights.format': ('set', -0.3)},
      ),
      ({'grpo.keep': ('set', 'reward_variance')}, None),
      ({'rollout.token_limit': ('set', 48)}, None),
  )
  def test_opposites(self, overlay, wanted):
    found = skill_runs.invert(skill(overlay=overlay))
    self.assertEqual(found and found.overlay, wanted)

  def test_one_other_domain_is_not_enough(self):
    once = self.stored('once', skill(('coding',)))
    with self.assertRaisesRegex(ValueError, "held in \\['coding'\\]"):
      self.libraries(f'elsewhere={once}')
    twice = self.stored('twice', skill(('swe',)))
    found = self.libraries(f'elsewhere={once},{twice}')
    self.assertEqual(found['elsewhere'], (once, twice))

  @parameterized.parameters('own', 'own=', 'a b=x', 'empty=x', 'own=nowhere')
  def test_bad_arguments(self, text):
    with self.assertRaises(ValueError):
      self.libraries(text)

  def test_nothing_to_invert(self):
    overlay = {'grpo.keep': ('set', 'reward_variance')}
    own = self.stored('own', skill(overlay=overlay))
    with self.assertRaisesRegex(ValueError, 'has an opposite'):
      self.libraries(f'own={own}')


class FinishTest(absltest.TestCase):

  def test_a_run_is_not_taken_for_another(self):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    run = lambda skills, **changes: skill_runs.finish(
        FAULT, 0, 3, skills, changes, folder
    )

    def start(mode, config, path, workdir, env):
      del mode, env
      path.write_text(config_lib.to_json(config))
      workdir.mkdir(exist_ok=True)

    self.enterContext(
        mock.patch.object(skill_runs.runner, 'start', side_effect=start)
    )
    self.enterContext(
        mock.patch.object(skill_runs.history_lib, 'read', lambda path: path)
    )
    self.assertEqual(run(['one']), folder / 'run')
    self.assertEqual(run(['one']), folder / 'run')
    with self.assertRaisesRegex(ValueError, 'another evolve.skills'):
      run(['two'])
    with self.assertRaisesRegex(ValueError, 'another evolve.pairs'):
      run(['one'], **{'evolve.pairs': 3})


class RepairTest(parameterized.TestCase):

  @parameterized.parameters(
      # Harness after each round, rounds, repaired.
      (['good', 'good', 'good'], 1, True),
      (['bad', 'good', 'good'], 2, True),
      (['bad', None, 'good'], 3, True),
      (['bad', 'good', None], 2, True),  # A round without a new version.
      (['good', 'bad', 'good'], 3, True),  # It was taken back meanwhile.
      (['good', 'good', 'bad'], 4, False),
      (['bad', 'bad', 'bad'], 4, False),
      ([None, None], 3, False),
  )
  def test_rounds(self, harnesses, rounds, repaired):
    found = [samples.record(records.Train, version='v0', harness='bad')]
    for number, harness in enumerate(harnesses):
      found.append(samples.record(records.Race, round=number))
      if harness:
        found.append(
            samples.record(records.Promote, round=number, harness=harness)
        )
    # A diagnostic that is kept belongs to no round and repairs nothing.
    found.append(samples.record(records.Promote, round=None, harness='good'))
    found.append(
        samples.record(
            records.Hypothesize, trial=0, proposer='rules', skill='5' * 64
        )
    )
    values = {'good': {RATE: 1e-4}, 'bad': {RATE: 1e-6}}
    wanted = skill_runs.Repair(rounds, repaired, 1)
    repaired_at = skill_runs.repair(samples.run(*found), values, PATHS)
    self.assertEqual(repaired_at, wanted)

  def test_table(self):
    repair = lambda *rounds: [skill_runs.Repair(r, r < 7, 2) for r in rounds]
    lines = skill_runs.table({'empty': repair(4, 5, 7), 'own': repair(1, 3, 2)})
    # 16 / 3 with a standard deviation of sqrt(7 / 3); t of 2 is 4.3027, so
    # the margin is 4.3027 sqrt(7 / 9) = 3.79.
    self.assertIn('4, 5, >6', lines[1])
    self.assertIn('5.3 [1.5, 9.1]', lines[1])
    # Differences -3, -2, -5: mean -10 / 3, margin 4.3027 sqrt(7 / 9).
    self.assertIn('-3.3 [-7.1, 0.5]', lines[2])
    self.assertEqual(lines[1].split()[-2:], ['2/3', '6'])
    self.assertEqual(lines[2].split()[-2:], ['3/3', '6'])
    self.assertStartsWith(lines[3], '> not repaired')


@pytest.mark.slow
@pytest.mark.long
class RunTest(absltest.TestCase):

  def test_a_run_uses_its_library_and_is_not_repeated(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    # No finding is critical after one update, and the skill answers whatever
    # is measured first.
    changes = {
        'steps': 2,
        'eval.problems': 4,
        'eval.samples': 2,
        'grpo.prompts': 4,
        'grpo.group_size': 4,
        'evolve.candidates': 1,
        'evolve.pairs': 3,
        'evolve.updates': 2,
        'evolve.first_updates': 2,
        'evolve.problems': 8,
        'evolve.replay_updates': 1,
        'evolve.replay_problems': 4,
    }
    known = skill(('coding', 'swe'))
    for name, library in (('empty', ()), ('own', (str(root / 'own'),))):
      for path in library:
        skills_lib.write(path, known)
      run = lambda name=name, library=library: skill_runs.finish(
          FAULT, 0, 1, library, changes, root / name
      )
      history = run()
      opened = history.find(records.Open)
      self.assertSequenceEqual(opened.config['evolve']['skills'], library)
      values = skill_runs.values_of(root / name, FAULT)
      self.assertEqual(values[history.base.harness]['grpo.kl_coef'], 10.0)
      found = skill_runs.repair(history, values, FAULT.paths)
      self.assertIn(found.rounds, (1, 2))
      ledger = root / name / 'run' / 'ledger.jsonl'
      before = ledger.stat().st_mtime_ns
      self.assertEqual(run().rows, history.rows)
      self.assertEqual(ledger.stat().st_mtime_ns, before)


if __name__ == '__main__':
  absltest.main()
