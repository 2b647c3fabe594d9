"""The loss and advantages compared with TRL's, on the same numbers."""

import importlib.util
import json

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import numpy as jnp
import numpy as np

from evojax.rl import advantages
from evojax.rl import importance
from evojax.rl import losses
from tests.parity import make_trl_goldens
from tests.rl import objectives

_GOLDEN = json.loads(make_trl_goldens.PATH.read_text())
# TRL ran in float64, evojax in float32 with sums of ~30 terms of size ~1.
_TOL = dict(rtol=2e-5, atol=2e-6)
_AGGREGATION = {
    'grpo': 'sequence',
    'bnpo': 'token',
    'dr_grpo': 'constant',
    'dapo': 'token',
}
_HAS_TRL = all(importlib.util.find_spec(name) for name in ('torch', 'trl'))


def _ours(case, inputs):
  """Return loss, gradient, metrics of a case of make_trl_goldens."""
  x = {k: jnp.asarray(v, jnp.float32) for k, v in inputs.items()}
  mask = x['mask'].astype(bool)
  aggregation = _AGGREGATION[case['loss_type']]
  denominator = losses.denominator(
      mask, aggregation, make_trl_goldens.MAX_TOKENS
  )
  weights = None
  if case['vllm_cap'] is not None:
    weights, _, _ = importance.importance_weights(
        x['old_logprobs'],
        x['sampler_logprobs'],
        mask,
        mode=case['vllm_mode'],
        cap=case['vllm_cap'],
        floor=case['vllm_floor'] or 0.0,
    )
  size = len(mask) // case['micro_batches']

  def loss_fn(logprobs):
    total, metrics = 0.0, None
    for i in range(case['micro_batches']):
      part = slice(i * size, (i + 1) * size)
      loss, metrics = objectives.policy_loss(
          logprobs[part],
          x['old_logprobs'][part],
          x['advantages'][part],
          mask[part],
          clip_low=case['epsilon_low'],
          clip_high=case['epsilon_high'],
          dual_clip=case['delta'] or 0.0,
          weights=None if weights is None else weights[part],
          ref_logprobs=x['ref_logprobs'][part] if case['beta'] else None,
          kl_coef=case['beta'],
          ratio=case['level'],
          aggregation=aggregation,
          denominator=denominator,
      )
      total += loss
    return total, metrics

  grad_fn = jax.jit(jax.value_and_grad(loss_fn, has_aux=True))
  (loss, metrics), grad = grad_fn(x['logprobs'])
  return loss, grad, metrics


class TrlLossTest(parameterized.TestCase):

  def _check(self, case, inputs, expected):
    loss, grad, metrics = _ours(case, inputs)
    np.testing.assert_allclose(loss, expected['loss'], **_TOL)
    np.testing.assert_allclose(grad, expected['grad'], **_TOL)
    # TRL's clip fractions in sequence mode are per sequence, ours per token.
    if case['level'] == 'token':
      names = {
          'clip_low': 'clip_ratio/low_mean',
          'ref_kl': 'kl',
          'clip_high': 'clip_ratio/high_mean',
      }
      for ours, theirs in names.items():
        if theirs in expected['metrics']:
          np.testing.assert_allclose(
              metrics[ours] / metrics['tokens'],
              expected['metrics'][theirs],
              err_msg=ours,
              **_TOL,
          )

  @parameterized.parameters(*_GOLDEN['cases'])
  def test_golden(self, name):
    golden = _GOLDEN['cases'][name]
    self._check(golden['settings'], _GOLDEN['inputs'], golden)

  def test_goldens_exercise_clipping(self):
    # Parity on ratios within the bounds would not test clipping.
    metrics = _GOLDEN['cases']['grpo_token']['metrics']
    self.assertGreater(metrics['clip_ratio/low_mean'], 0)
    self.assertGreater(metrics['clip_ratio/high_mean'], 0)
    cases = _GOLDEN['cases']
    self.assertNotEqual(cases['delta']['loss'], cases['grpo_token']['loss'])

  def test_goldens_exercise_the_bounds_of_weights(self):
    self.assertEqual(make_trl_goldens.VLLM_MODES, importance.MODES)
    cases = _GOLDEN['cases']
    for mode in importance.MODES:
      self.assertNotEqual(
          cases[f'vllm_{mode}']['loss'], cases['grpo_token']['loss']
      )
    found = [cases[f'vllm_{mode}']['loss'] for mode in importance.MODES]
    self.assertLen(set(found), 4)
    unbounded = cases['dapo_token']['loss']
    found = [cases[f'vllm_{mode}_floor']['loss'] for mode in importance.MODES]
    self.assertLen({*found, unbounded}, 5)

  def test_bnpo_depends_on_micro_batches_and_ours_does_not(self):
    # The reason to omit bnpo: one update, split 1 or 3 ways, has two TRL
    # losses.
    case = _GOLDEN['cases']['bnpo_token']['settings']
    whole = _ours(case, _GOLDEN['inputs'])[0]
    cut = _ours({**case, 'micro_batches': 3}, _GOLDEN['inputs'])[0]
    np.testing.assert_allclose(cut, whole, **_TOL)

  def test_advantages(self):
    rewards = np.asarray(_GOLDEN['inputs']['rewards'], np.float32)
    valid = np.asarray(_GOLDEN['inputs']['valid'])
    np.testing.assert_allclose(
        advantages.group_norm(rewards, valid, eps=1e-4),
        _GOLDEN['advantages'],
        **_TOL,
    )

  def test_golden_file_belongs_to_its_script(self):
    self.assertEqual(_GOLDEN['inputs'], make_trl_goldens.draw_inputs())
    self.assertEqual(
        {k: v['settings'] for k, v in _GOLDEN['cases'].items()},
        make_trl_goldens.cases(),
    )

  @absltest.skipUnless(_HAS_TRL, 'torch and trl are not installed')
  def test_live(self):
    inputs = make_trl_goldens.draw_inputs()
    for name, case in make_trl_goldens.cases().items():
      with self.subTest(name):
        self._check(case, inputs, make_trl_goldens.run_case(case, inputs))


if __name__ == '__main__':
  absltest.main()
