"""Tests for the meaning of metrics by the words of their names."""

import json
import pathlib

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pandas as pd

from evojax.diagnosis import form
from evojax.diagnosis import meanings
from evojax.diagnosis import names

_NAMES = pathlib.Path(__file__).parent / 'data' / 'metric_names.json'


class MeaningsTest(parameterized.TestCase):

  @parameterized.parameters(
      ('train/AvgReward', 'reward'),
      ('rollout/mean_entropy', 'entropy'),
      ('actor.grad_norm', 'grad_norm'),
      ('policyGradNorm', 'grad_norm'),
      ('ref_kl', 'kl'),
      ('policy/approx_kl', 'kl_update'),
      ('ppo_kl', 'kl_update'),
      ('optim/lr', 'learning_rate'),
      ('response_len_mean', 'length'),
      ('is_truncated/mean', 'truncated'),
      ('val/accuracy', 'eval_outcome'),
      ('eval/pass@1', 'eval_outcome'),
      ('eval_gsm8k_pass1', 'eval_outcome'),
      ('rollout/success_rate', 'outcome'),
      ('rollout_train_logp_diff', 'gap'),
      ('ppo_actor/task_reward/avg', 'reward'),
      ('async/staleness_mean', 'staleness'),
      ('ppo_actor/update/version_stats/sample_staleness_avg', 'staleness'),
  )
  def test_a_name_that_says_it(self, name, meaning):
    self.assertEqual(meanings.of(name), meaning)

  @parameterized.parameters(
      'reward_std', 'response_length/max', 'critic/grad_norm', 'critic/vf_loss',
      'value/clip_frac', 'entropy_coef', 'kl_coef', 'timing/reward',
      'rewards/format/mean', 'prompt_length/mean', 'tokens_per_second',
      'val/reward', 'grad_norm_clip_threshold', '_step', '', '\u5956\u52b1',
      # In percent, or counts.
      'truncated_pct', 'train/zero_std_percentage', 'rollout/num_truncated',
      'truncated_count', 'eval/pass@8', 'eval_gsm8k_pass8', 'val/pass_at_16',
  )  # fmt: skip
  def test_a_name_that_says_something_else(self, name):
    self.assertEqual(meanings.of(name), '')

  @parameterized.parameters(
      ('eval/accuracy', True),
      ('val/gsm8k/score', True),
      ('test_accuracy', True),
      ('train/test_pass_rate', False),
      ('rewards/unit_test_reward/mean', False),
      ('rewards/valid_json_reward/mean', False),
      ('eval/pass@8', False),
      ('eval_gsm8k_pass8', False),
      ('eval_gsm8k_pass1', True),
      ('eval_gsm8k_pass10', False),
  )
  def test_names_of_evaluations(self, name, wanted):
    self.assertEqual(meanings.is_evaluation(name), wanted)

  def test_shares_in_percent_and_counts_are_left_out(self):
    log = pd.DataFrame(
        {
            'step': range(4),
            'is_truncated': [0.5, 1.5, 2.0, 0.0],
            'clip_fraction': [0.0, 0.1, 1.0, 1.001],
        }
    )
    notes = []
    found = names.common(log, notes)
    self.assertNotIn('truncated', found)
    self.assertIn('clip', found)
    self.assertIn("'is_truncated' is not a share", notes[-1])

  def test_an_evaluation_before_training_has_a_step(self):
    log = pd.DataFrame(
        {
            '_step': [0, 1, 2],
            'training/global_step': [np.nan, 1, 2],
            'val/accuracy': [0.6, np.nan, 0.4],
        }
    )
    self.assertEqual(list(names.common(log)['step']), [0, 1, 2])
    # Where the counters differ, one tells nothing about the other.
    log['_step'] = [0, 5, 10]
    self.assertEqual(names.common(log)['step'].isna().sum(), 1)

  def test_names_of_thirty_other_trainers(self):
    """The names in data/metric_names.json; BUILD_NOTES.md has the shares."""
    told = right = 0
    for trainer in json.loads(_NAMES.read_text()).values():
      for meaning, keys in trainer['metrics'].items():
        found = [meanings.of(key) for key in keys]
        told += sum(map(bool, found))
        right += found.count(meaning)
      # A share of completions that are cut, under the name of a clip fraction.
      taken = {key for key in trainer['others'] if meanings.of(key)}
      self.assertEmpty(taken - {'actor/training/actor/clipped_ratio'})
    self.assertGreater(right, 240)
    self.assertLess(told - right, 3)

  def test_the_fewest_words_count(self):
    columns = ['rollout/total_reward/mean', 'reward', 'raw_reward', 'x']
    self.assertEqual(meanings.best(columns), {'reward': 'reward'})

  def test_only_what_no_list_has_is_recognised_and_told(self):
    log = pd.DataFrame(
        {
            '_step': [1, 2],
            'critic/rewards/mean': [0.1, 0.2],
            'rollout/raw_reward_mean': [9.0, 9.0],
            'my/policy_entropy': [0.5, 0.4],
            'actor/mean_entropy': [0.7, 0.6],
        }
    )
    notes = []
    found = names.common(log, notes)
    self.assertEqual(found['reward'].tolist(), [0.1, 0.2])
    self.assertEqual(found['entropy'].tolist(), [0.7, 0.6])
    (note,) = notes
    self.assertStartsWith(note, "the metric 'actor/mean_entropy' is read as")
    # A trainer whose names are known is not guessed at.
    self.assertNotIn('entropy', names.common(log))

  @parameterized.parameters(
      ('train/kl_penalty', 'kl'),
      ('rl/advantage', 'advantage_mean'),
      ('rl/min_advantage', 'advantage_low'),
      ('rl/max_advantage', 'advantage_high'),
  )
  def test_names_of_single_trainers(self, column, name):
    log = pd.DataFrame({'step': [1, 2], column: [0.5, 0.6]})
    self.assertEqual(names.common(log)[name].tolist(), [0.5, 0.6])

  @parameterized.parameters(
      ('eval_reward', [0.2, 0.4], ['eval_outcome'], False),
      ('eval_reward', [0.2, 1.4], ['eval_reward'], True),
      ('rewards/accuracy_reward/mean', [0.2, 0.4], ['outcome'], False),
      ('rewards/accuracy_reward/mean', [0.2, 1.4], [], True),
  )
  def test_what_is_no_share_is_said(self, column, values, taken, said):
    # The last name is not in the lists, which have all names of the trainer.
    log = pd.DataFrame({'step': [1, 2], column: values, 'token_entropy': 0.5})
    notes = []
    found = names.common(log, notes, trainer_known=True)
    others = ('step', 'part_accuracy_reward', f'{form.EVALUATION}{column}')
    metrics = [n for n in found if n not in others]
    self.assertEqual(metrics, taken)
    note = f'{column!r} is not a share: it has values outside [0, 1]'
    wanted = [note] if said else []
    self.assertEqual(notes, wanted)

  @parameterized.parameters(
      ({'val-core/math/acc/mean@1': [0.2, 0.3]}, 'eval_outcome', [0.2, 0.3]),
      # The solved share counts before the reward.
      (
          {
              'val-core/math/reward/mean@1': [-0.6, -0.4],
              'val-core/math/acc/mean@1': [0.2, 0.3],
          },
          'eval_outcome',
          [0.2, 0.3],
      ),
      ({'val-core/a/reward/mean@1': [-1.0, 0.5]}, 'eval_reward', [-1.0, 0.5]),
      ({'val-core/a/reward/mean@1': [0.0, 5.0]}, 'eval_reward', [0.0, 5.0]),
      (
          {
              'val-core/a/x/reward/mean@4': [0.2, np.nan],
              'val-core/b/reward/mean@4': [0.4, np.nan],
          },
          'eval_outcome',
          [0.3, np.nan],
      ),
      ({'val-core/a/reward/best@4/mean': [0.2, 0.3]}, None, None),
  )
  def test_scores_of_evaluations(self, columns, name, values):
    found = names.common(pd.DataFrame({'step': [1, 2], **columns}))
    known = [n for n in found if n.startswith('eval_')]
    self.assertEqual(known, [name] if name else [])
    if name:
      np.testing.assert_allclose(found[name], values)


if __name__ == '__main__':
  absltest.main()
