"""Tests for the skill stored after a success, and for its use."""

import dataclasses
import json
import os
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from evojax.evolve import skills
from evojax.harness import delta as delta_lib
from evojax.harness import library
from evojax.harness import spec
from evojax.harness import surface
from evojax.ledger import records
from tests.ledger import samples

REWARD = """
def parts(e):
  return {'outcome': e.outcome * 1.0, 'format': e.format_ok * 1.0}
"""
SEED = spec.Harness({'reward.weights.outcome': 1.0}, {'reward.py': REWARD})
CONFIG = {
    'optim.learning_rate': 1e-4,
    'grpo.keep': 'all',
    'grpo.refill_rounds': 0,
    'rollout.temperature': 1.0,
    'reward.weights.outcome': 1.0,
}
SURFACE = surface.recipe()
EVIDENCE = skills.Evidence('run', 0, 'math', SEED.sha256, 0.05, 0.02, 0.08)


def learn(after, trigger='slow_learning', evidence=EVIDENCE, parent=SEED):
  return skills.learned(
      delta_lib.diff(parent, after, SURFACE, CONFIG),
      after,
      CONFIG,
      SURFACE,
      trigger=trigger,
      hypothesis='It is too slow.',
      evidence=evidence,
  )


def rate(value):
  return SEED.with_overlay({'optim.learning_rate': value})


def alert(name):
  return records.Measure(name, 'score', '', 0.1, ('<', 0.5), None, 'warn')


class LearnedTest(parameterized.TestCase):

  def test_a_rate_is_relative(self):
    skill = learn(rate(3e-4))
    self.assertEqual(
        dict(skill.overlay), {'optim.learning_rate': ('scale', 3.0)}
    )
    # Elsewhere: three times the value there, exactly as if written by hand.
    other = skill.apply(SEED, CONFIG | {'optim.learning_rate': 2e-5}, SURFACE)
    self.assertEqual(other.overlay['optim.learning_rate'], 6e-5)
    # On its own parent it gives the same harness, byte for byte.
    self.assertEqual(
        skill.apply(SEED, CONFIG, SURFACE).sha256, rate(3e-4).sha256
    )

  def test_choices_and_linear_values_are_absolute(self):
    filtered = SEED.with_overlay(
        {'grpo.keep': 'reward_variance', 'grpo.refill_rounds': 1}
    )
    self.assertEqual(learn(filtered).apply(SEED, CONFIG, SURFACE), filtered)
    hot = SEED.with_overlay({'rollout.temperature': 1.2})
    self.assertEqual(
        dict(learn(hot).overlay), {'rollout.temperature': ('set', 1.2)}
    )

  def test_a_file_comes_along(self):
    text = library.source('keep/outcome_variance.py')
    after = SEED.with_file('keep.py', text)
    self.assertEqual(learn(after).apply(SEED, CONFIG, SURFACE), after)

  def test_a_shipped_part_comes_along(self):
    after = skills.with_part(SEED, 'rare_success').with_overlay(
        {'reward.weights.rare_success': 0.5}
    )
    skill = learn(after)
    self.assertEqual(skill.apply(SEED, CONFIG, SURFACE).sha256, after.sha256)
    bare = spec.Harness({'reward.weights.outcome': 1.0}, {})
    with self.assertRaisesRegex(skills.SkillError, 'rare_success'):
      skill.apply(bare, CONFIG, SURFACE)

  @parameterized.parameters(
      'A = 1.0; B = 2.0\n',
      'def _rare_success(e):\n  return A * e.outcome\n\nA = B = 1.0\n',
      'A = B = 1.0\n' + '#' * 65_200 + '\n',
  )
  def test_a_part_that_has_no_place(self, before):
    """Its proposer continues with another skill."""
    text = before + REWARD.replace(
        "{'outcome'", "{'mine': A * B * e.outcome, 'outcome'"
    )
    if '_rare_success' in before:
      text = text.replace('A * B *', '_rare_success(e) * A * B *')
    parent = SEED.with_file('reward.py', text)
    self.assertIs(skills.with_part(parent, 'rare_success'), None)
    self.assertEqual(skills.with_part(parent, 'mine'), parent)
    after = skills.with_part(SEED, 'rare_success').with_overlay(
        {'reward.weights.rare_success': 0.5}
    )
    with self.assertRaisesRegex(skills.SkillError, "'rare_success' fits here"):
      learn(after).apply(parent, CONFIG, SURFACE)

  def test_a_file_that_has_no_place(self):
    text = library.source('keep/outcome_variance.py')
    full = SEED
    for i in range(spec.MAX_FILES - 1):
      full = full.with_file(f'backtests/b{i}.py', '')
    with self.assertRaisesRegex(skills.SkillError, '65 files; a harness has'):
      learn(SEED.with_file('keep.py', text)).apply(full, CONFIG, SURFACE)

  def test_a_part_of_unknown_code_teaches_nothing(self):
    text = REWARD.replace('e.format_ok * 1.0', 'e.format_ok * 2.0')
    with self.assertRaisesRegex(skills.SkillError, 'not the shipped'):
      learn(SEED.with_file('reward.py', text))

  def test_taking_out_teaches_nothing(self):
    text = library.source('keep/outcome_variance.py')
    parent = SEED.with_file('keep.py', text)
    with self.assertRaisesRegex(skills.SkillError, 'was removed'):
      learn(SEED, parent=parent)

  def test_nothing_to_scale(self):
    with self.assertRaisesRegex(skills.SkillError, 'not a number'):
      learn(rate(3e-4)).apply(SEED, {}, SURFACE)

  @parameterized.parameters(
      ('optim.learning_rate', 10**400),
      ('rollout.token_limit', 1e308),
  )
  def test_a_scale_beyond_all_numbers(self, path, factor):
    skill = dataclasses.replace(
        learn(rate(3e-4)), overlay={path: ('scale', factor)}
    )
    with self.assertRaises(skills.SkillError):
      skill.apply(SEED, CONFIG | {'rollout.token_limit': 64}, SURFACE)

  @parameterized.parameters(
      dict(effect=0.5, low=0.6, high=0.7),
      dict(effect=float('nan'), low=0.0, high=0.1),
      dict(effect=5.0, low=2.0, high=8.0),  # Points instead of fractions.
  )
  def test_impossible_evidence(self, **numbers):
    with self.assertRaises(skills.SkillError):
      dataclasses.replace(EVIDENCE, **numbers)


class FilesTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

  def test_round_trip(self):
    wanted = (
        learn(rate(3e-4)),
        learn(SEED.with_overlay({'data.families': ('gcd:0',)})),
        learn(
            SEED.with_file(
                'keep.py', library.source('keep/outcome_variance.py')
            )
        ),
    )
    for skill in wanted:
      self.assertEqual(
          skills.write(self.root, skill).name, f'{skill.sha256}.json'
      )
    found = skills.read_all([self.root, self.root / 'not_there'], SURFACE)
    self.assertCountEqual(found, wanted)
    self.assertEqual(
        [s.sha256 for s in found], sorted(s.sha256 for s in wanted)
    )

  def test_the_same_skill_again_adds_evidence_once(self):
    skill = learn(rate(3e-4))
    path = skills.write(self.root, skill)
    text = path.read_text()
    skills.write(self.root, skill)
    self.assertEqual(path.read_text(), text)
    second = dataclasses.replace(
        EVIDENCE, domain='coding', effect=0.1, low=-0.01, high=0.2
    )
    # Found at another value, but again three times the rate: the same skill.
    skills.write(self.root, learn(rate(3e-4), evidence=second))
    (found,) = skills.read_all([self.root], SURFACE)
    self.assertEqual(found.evidence, (EVIDENCE, second))
    self.assertEqual(found.domains, ('coding', 'math'))
    self.assertEqual(found.expected, (-0.01, 0.2))
    self.assertEqual(found.sha256, skill.sha256)

  def test_evidence_of_a_change_that_is_taken_back_goes(self):
    second = dataclasses.replace(EVIDENCE, trial=1)
    skill = learn(rate(3e-4))
    path = skills.write(self.root, skill)
    skills.write(self.root, learn(rate(3e-4), evidence=second))
    for _ in range(2):  # A run may be killed between this and its row.
      skills.withdraw(self.root, skill.sha256, 'run', 0)
      (found,) = skills.read_all([self.root], SURFACE)
      self.assertEqual(found.evidence, (second,))
    # The trials of other runs have the same numbers.
    skills.withdraw(self.root, skill.sha256, 'other', 1)
    self.assertTrue(path.exists())
    for _ in range(2):
      skills.withdraw(self.root, skill.sha256, 'run', 1)
      self.assertFalse(path.exists())

  def test_two_libraries_are_one(self):
    one, two = self.root / 'one', self.root / 'two'
    other = dataclasses.replace(EVIDENCE, domain='swe')
    skills.write(one, learn(rate(3e-4)))
    skills.write(two, learn(rate(3e-4), evidence=other))
    (found,) = skills.read_all([one, two], SURFACE)
    self.assertEqual(found.domains, ('math', 'swe'))

  def test_bad_files_are_left_out_with_a_warning(self):
    good = skills.write(self.root, learn(rate(3e-4)))
    fields = json.loads(good.read_text())
    bad = {
        'torn.json': good.read_text()[:100],
        'list.json': '[]',
        'binary.json': b'\xff\xfe',
        'altered.json': json.dumps(
            fields | {'overlay': {'optim.learning_rate': ['scale', 9.0]}}
        ),
        'off_surface.json': json.dumps(
            fields | {'overlay': {'eval.split': ['set', 'sealed']}}
        ),
        'negative.json': json.dumps(
            fields | {'overlay': {'optim.learning_rate': ['scale', -1]}}
        ),
        'no_evidence.json': json.dumps(fields | {'evidence': []}),
        'deep.json': '[' * 5000 + ']' * 5000,
        'large.json': good.read_text().replace(
            '"effect": 0.05', f'"effect": 1{"0" * 400}'
        ),
        'shape.json': json.dumps(fields | {'overlay': {'grpo.keep': 'all'}}),
        'huge.json': good.read_text() + ' ' * skills.MAX_BYTES,
    }
    for name, text in bad.items():
      data = text if isinstance(text, bytes) else text.encode()
      (self.root / name).write_bytes(data)
    bad['pipe.json'] = ''
    os.mkfifo(self.root / 'pipe.json')
    with self.assertLogs('absl', 'WARNING') as logs:
      found = skills.read_all([self.root], SURFACE)
    self.assertLen(found, 1)
    for name in bad:
      self.assertTrue(any(name in line for line in logs.output), name)
    self.assertLen(logs.output, len(bad))


class MatchingTest(absltest.TestCase):

  def test_trigger_and_domain(self):
    skill = learn(rate(3e-4))
    fires, silent = [alert('slow_learning')], [alert('truncated')]
    self.assertEqual(skills.matching([skill], 'math', fires), [skill])
    self.assertEqual(skills.matching([skill], 'math', silent), [])
    self.assertEqual(skills.matching([skill], 'coding', fires), [])

  def test_a_finding_is_a_trigger_too(self):
    skill = learn(rate(3e-4))
    skill = dataclasses.replace(skill, trigger='hardly_moves')
    raised = [samples.record(records.Finding, check='hardly_moves')]
    self.assertEqual(skills.matching([skill], 'math', [], raised), [skill])
    self.assertEqual(skills.matching([skill], 'math', []), [])

  def test_other_domains_after_two(self):
    swe = dataclasses.replace(EVIDENCE, domain='swe')
    both = dataclasses.replace(learn(rate(3e-4)), evidence=(EVIDENCE, swe))
    fires = [alert('slow_learning')]
    self.assertEqual(skills.matching([both], 'coding', fires), [both])
    # Two successes in one domain still count as one domain.
    again = dataclasses.replace(EVIDENCE, trial=7)
    twice = dataclasses.replace(both, evidence=(EVIDENCE, again))
    self.assertEqual(skills.matching([twice], 'coding', fires), [])

  def test_surest_first(self):
    sure = dataclasses.replace(EVIDENCE, low=0.04)
    weak, strong = learn(rate(2e-4)), learn(rate(3e-4), evidence=sure)
    found = skills.matching([weak, strong], 'math', [alert('slow_learning')])
    self.assertEqual(found, [strong, weak])


if __name__ == '__main__':
  absltest.main()
