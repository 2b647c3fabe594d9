"""Sound logs of many shapes, which must raise no critical finding.

Each is a log as a trainer writes it: other kinds of training, schedules and
stages, and metrics at other intervals than the steps.
"""

import json
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.diagnosis import examine
from evojax.diagnosis import findings
from evojax.diagnosis import readers

_STEPS = 120
_N = np.arange(_STEPS)
_SHARE = _N / _STEPS


def _noise(spread: float, seed: int = 0) -> np.ndarray:
  return np.random.default_rng(seed).normal(0, spread, _STEPS)


def _learned(low: float, high: float, seed: int = 0) -> np.ndarray:
  """Return a score that rises ever more slowly."""
  return low + (high - low) * (1 - np.exp(-3 * _SHARE)) + _noise(0.02, seed)


def _usual(**changed) -> dict[str, np.ndarray]:
  """Return the metrics of a sound update, under names of verl."""
  found = {
      'critic/rewards/mean': _learned(0.2, 0.7),
      'actor/kl_loss': 0.05 * _SHARE * np.exp(_noise(0.05, 1)),
      'actor/lr': np.full(_STEPS, 1e-6),
      'actor/grad_norm': 0.2 + np.abs(_noise(0.05, 2)),
      'actor/entropy': 0.5 - 0.1 * _SHARE + _noise(0.02, 3),
      'response_length/mean': 600 + 200 * _SHARE + _noise(30, 4),
  }
  return found | changed


def _preferences(**changed) -> dict[str, np.ndarray]:
  """Return the metrics of DPO in TRL."""
  found = {
      'loss': 0.69 - 0.3 * _SHARE + _noise(0.02),
      'learning_rate': 5e-7 * (1 - _SHARE),
      'grad_norm': 8 + _noise(1),
      'rewards/chosen': -1.5 * _SHARE + _noise(0.1, 1),
      'rewards/rejected': -3.5 * _SHARE + _noise(0.1, 2),
      'rewards/margins': 2 * _SHARE + _noise(0.1, 3),
      'rewards/accuracies': 0.9 - 0.4 * _SHARE + _noise(0.02, 4),
      'logps/chosen': -250 - 40 * _SHARE + _noise(5, 5),
  }
  return found | changed


_STAGE = _N % 60 / 60
WANDB = {
    # The score falls at each harder stage, and nothing says so.
    'curriculum': _usual(**{'critic/rewards/mean': _learned(0.8, 0.4)}),
    'second_stage': _usual(**{
        'critic/rewards/mean': 0.3 + 0.4 * _STAGE + _noise(0.02),
        'actor/kl_loss': (1e-4 + 0.05 * _STAGE) * np.exp(_noise(0.05, 1)),
        'actor/lr': 1e-6 * (1 - _STAGE),
    }),
    'target_of_the_kl': _usual(**{
        'critic/kl': 0.05 + _noise(0.01, 5),
        'critic/kl_coeff': 0.2 * np.exp(np.cumsum(_noise(0.03, 6))),
    }),
    'asynchronous': _usual(**{
        'async/staleness': 4 + _noise(0.2, 5),
        'actor/pg_clipfrac': 0.1 + _noise(0.02, 6),
    }),
    'ppo_of_a_reward_model': {
        'objective/scores': _learned(-3.0, -1.0),
        'objective/kl': 12 * _SHARE + _noise(0.5, 1),
        'objective/entropy': 60 - 20 * _SHARE + _noise(2, 2),
        'policy/approxkl_avg': 0.005 + _noise(0.001, 3),
        'policy/clipfrac_avg': 0.05 + _noise(0.01, 4),
        'loss/policy_avg': _noise(0.02, 5),
        'lr': 3e-6 * (1 - _SHARE),
    },
    'expert_iteration': {
        'iter/success_rate': 0.2 + 0.1 * (_N // 30) + _noise(0.01),
        'train/loss': 1 - 0.4 * (_N % 30) / 30 + _noise(0.02, 1),
        'train/lr': 1e-5 * (1 - (_N % 30) / 30),
    },
    'pass_at_k': {
        'train/pass@1': _learned(0.1, 0.4),
        'train/pass@8': _learned(0.4, 0.7),
        'val/aime/pass@1': np.where(_N % 20 == 0, _learned(0.1, 0.3), np.nan),
        'val/aime/pass@32': np.where(_N % 20 == 0, 0.6 + _noise(0.02), np.nan),
        'train/lr': np.full(_STEPS, 1e-6),
        'train/entropy': 0.4 - 0.2 * _SHARE + _noise(0.01, 2),
    },
}
TRL = {
    'dpo': _preferences(),
    'kto': _preferences(kl=np.maximum(2 * _SHARE + _noise(0.2, 6), 0)),
    'supervised': {
        'loss': 1.8 - _learned(0.0, 0.9),
        'learning_rate': 2e-5 * np.cos(_SHARE * np.pi / 2),
        'grad_norm': 1 + _noise(0.2, 1),
        'mean_token_accuracy': _learned(0.6, 0.78),
        'entropy': 1.5 - 0.6 * _SHARE + _noise(0.02, 2),
    },
    'warm_restarts': {
        'loss': _noise(0.02),
        'reward': _learned(0.2, 0.7),
        'rewards/correct/mean': _learned(0.2, 0.7),
        'learning_rate': 5e-7 * (1 + np.cos(np.pi * _N % 30 / 30)),
        'grad_norm': 0.4 + _noise(0.05, 1),
        'kl': 0.05 * _SHARE * np.exp(_noise(0.05, 2)),
    },
    'many_rewards': {
        'loss': _noise(0.02),
        'reward': _learned(0.0, 1.9),
        'rewards/correctness_reward_func': _learned(0.2, 1.4, 1),
        'rewards/xmlcount_reward_func': _learned(-0.5, 0.2, 2),
        'rewards/repetition_penalty': -0.3 + _noise(0.05, 3),
        'rewards/soft_format_reward_func': np.abs(_noise(0.05, 4)),
        'learning_rate': 5e-6 * (1 - _SHARE),
        'completion_length': 180 - 40 * _SHARE + _noise(8, 5),
    },
}


class ShapesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.enter_context(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(folder)

  def _examined(self) -> findings.Diagnosis:
    return examine.examine(readers.read(self.path))

  def _lines(self, table, step):
    return [
        {step: i}
        | {name: float(v[i]) for name, v in table.items() if v[i] == v[i]}
        for i in range(_STEPS)
    ]

  def _assert_sound(self, found):
    severe = [f.text for f in found.findings if f.severity == 'critical']
    self.assertEqual(severe, [])
    self.assertGreater(len(found.quiet), 3)  # It was read at all.

  @parameterized.parameters(*WANDB)
  def test_wandb(self, name):
    lines = map(json.dumps, self._lines(WANDB[name], '_step'))
    (self.path / 'history.jsonl').write_text('\n'.join(lines))
    self._assert_sound(self._examined())

  @parameterized.parameters(*TRL)
  def test_trl(self, name):
    log = self._lines(TRL[name], 'step')
    (self.path / 'trainer_state.json').write_text(
        json.dumps({'log_history': log, 'max_steps': _STEPS})
    )
    self._assert_sound(self._examined())
    parts = [c for c in readers.read(self.path).steps if c.startswith('part_')]
    # Chosen and rejected texts are not sampled, so that nothing pays for them.
    wanted = [c for c in TRL[name] if c.startswith('rewards/')]
    self.assertLen(parts, 0 if name in ('dpo', 'kto') else len(wanted))

  @parameterized.parameters((0.04, 'warning'), (0.3, 'critical'))
  def test_an_evaluation_of_much_harder_problems(self, score, wanted):
    table = {
        'train/accuracy': _learned(0.3, 0.8),
        'val/aime/accuracy': np.where(_N % 10, np.nan, score + _noise(0.01)),
    }
    lines = map(json.dumps, self._lines(table, '_step'))
    (self.path / 'history.jsonl').write_text('\n'.join(lines))
    found = {f.check: f.severity for f in self._examined().findings}
    self.assertEqual(found['train_eval_gap'], wanted)

  @parameterized.parameters((True, ''), (False, 'critical'))
  def test_the_key_of_a_game_is_a_seed(self, seed, wanted):
    rng = np.random.default_rng(0)
    for step in range(20):
      rows = []
      for i in range(64):
        solved = rng.random() < 0.3 + step / 40
        says = rng.integers(10, 99)
        key = step * 64 + i // 8 + (10**6 if seed else 0)
        # A grader that pays for anything: some answers are right by skill.
        right = not seed and rng.random() < 0.3
        rows.append(
            dict(
                input=f'Move in board {rng.integers(10**9)}.'
                if seed
                else f'Problem {i // 8}?',
                output=f'I move to {key if right else says}',
                gts=str(key),
                score=float(solved),
                step=step,
            )
        )
      text = '\n'.join(map(json.dumps, rows))
      (self.path / f'{step}.jsonl').write_text(text)
    found = {f.check: f.severity for f in self._examined().findings}
    self.assertEqual(found.get('grader_open', ''), wanted)


if __name__ == '__main__':
  absltest.main()
