import dataclasses
import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from evojax.models import decoder
from evojax.models import lora

BASE = decoder.DecoderConfig(
    family='qwen3',
    vocab_size=13,
    hidden_size=8,
    intermediate_size=12,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    qk_norm=True,
)
CONFIG = dataclasses.replace(BASE, lora_rank=3, lora_alpha=6.0)
ADAPTERS = {
    f'{name}_lora_{x}'
    for name in ('qkv', 'out', 'gate_up', 'down')
    for x in 'ab'
}


@functools.partial(jax.jit, static_argnums=0)
def logits(cfg, params):
  tokens = jnp.arange(10, dtype=jnp.int32).reshape(2, 5)
  positions = jnp.broadcast_to(jnp.arange(5), (2, 5))
  segments = jnp.ones_like(tokens)
  hidden = decoder.forward(cfg, params, tokens, positions, segments)
  return decoder.logits(cfg, params, hidden)


def init(cfg):
  """Return random parameters from NumPy; compiling decoder.init is slow."""
  shapes = jax.eval_shape(lambda: decoder.init(cfg, jax.random.key(0)))
  rng = np.random.default_rng(0)
  return jax.tree.map(
      lambda s: jnp.asarray(rng.standard_normal(s.shape), s.dtype) * 0.3,
      shapes,
  )


def trained(params):
  """Return the tree with adapters as after training, without zeros."""
  trainable, frozen = lora.split(params)
  rng = np.random.default_rng(0)
  trainable = jax.tree.map(
      lambda x: jnp.asarray(rng.standard_normal(x.shape), x.dtype) * 0.3,
      trainable,
  )
  return lora.join(trainable, frozen)


class LoraTest(parameterized.TestCase):

  def make(self, scan):
    base_cfg = dataclasses.replace(BASE, scan_layers=scan)
    cfg = dataclasses.replace(CONFIG, scan_layers=scan)
    base = init(base_cfg)
    return base_cfg, base, cfg, lora.add_adapters(cfg, base, 1)

  @parameterized.parameters(False, True)
  def test_start_policy_is_the_base_policy(self, scan):
    base_cfg, base, cfg, params = self.make(scan)
    # Exact sums; only the compiler's fusions may differ.
    np.testing.assert_allclose(
        logits(cfg, params), logits(base_cfg, base), atol=1e-5
    )
    a = lora.split(params)[0]['layers']
    a = a if scan else a[0]
    # Otherwise nothing would learn.
    self.assertTrue(np.all(a['down_lora_a'] != 0))
    # 36 or 72 draws of standard deviation F^-1/2 = 0.289.
    self.assertBetween(np.std(a['down_lora_a']), 0.19, 0.39)
    self.assertFalse(np.any(a['down_lora_b']))

  def test_base_leaves_are_the_same_arrays(self):
    _, base, _, params = self.make(False)
    self.assertIs(params['layers'][1]['qkv'], base['layers'][1]['qkv'])

  @parameterized.parameters(False, True)
  def test_merged_equals_adapted(self, scan):
    base_cfg, base, cfg, params = self.make(scan)
    params = trained(params)
    merged_cfg, merged = lora.merge(cfg, params)
    self.assertEqual(merged_cfg.lora_rank, 0)
    self.assertEqual(jax.tree.structure(merged), jax.tree.structure(base))
    # Float32 sums of 3 (rank) to 24 terms in another order.
    np.testing.assert_allclose(
        logits(merged_cfg, merged), logits(cfg, params), atol=1e-4
    )
    gap = jnp.abs(logits(cfg, params) - logits(base_cfg, base)).max()
    self.assertGreater(gap, 0.1)

  def test_merged_weight_by_hand(self):
    _, _, cfg, params = self.make(False)
    params = trained(params)
    layer = params['layers'][0]
    _, merged = lora.merge(cfg, params)
    # W + (6 / 3) A B, one element: gate_up[d=1, up, f=5].
    expected = layer['gate_up'][1, 1, 5] + 2.0 * sum(
        layer['gate_up_lora_a'][1, i] * layer['gate_up_lora_b'][i, 1, 5]
        for i in range(3)
    )
    self.assertAlmostEqual(
        float(merged['layers'][0]['gate_up'][1, 1, 5]), float(expected), 5
    )

  def test_merge_keeps_the_dtype(self):
    _, base, cfg, _ = self.make(False)
    base = jax.tree.map(lambda x: x.astype(jnp.bfloat16), base)
    params = lora.add_adapters(cfg, base, 1)
    _, merged = lora.merge(cfg, trained(params))
    dtypes = {x.dtype.name for x in jax.tree.leaves(merged)}
    self.assertEqual(dtypes, {'bfloat16'})

  @parameterized.parameters(False, True)
  def test_split_takes_the_adapters_and_join_undoes_it(self, scan):
    _, _, _, params = self.make(scan)
    trainable, frozen = lora.split(params)
    layers = [trainable['layers']] if scan else trainable['layers']
    self.assertEqual([set(layer) for layer in layers], [ADAPTERS] * len(layers))
    self.assertEqual(set(trainable), {'layers'})
    for path, _ in jax.tree_util.tree_leaves_with_path(frozen):
      self.assertNotIn('lora', jax.tree_util.keystr(path))
    joined = lora.join(trainable, frozen)
    self.assertEqual(jax.tree.structure(joined), jax.tree.structure(params))
    jax.tree.map(self.assertIs, joined, params)

  def test_only_adapters_learn(self):
    _, _, cfg, params = self.make(False)
    trainable, frozen = lora.split(params)

    @jax.jit
    def step(trainable):
      loss = lambda t: jnp.mean(logits(cfg, lora.join(t, frozen))[..., 3])
      value, grads = jax.value_and_grad(loss)(trainable)
      update = jax.tree.map(lambda p, g: p - 0.5 * g, trainable, grads)
      return value, grads, update

    first, grads, trainable = step(trainable)
    for layer in grads['layers']:
      self.assertEqual(set(layer), ADAPTERS)
      for name, grad in layer.items():
        # While B is 0, only B has a gradient; A gets one from the second step
        # on.
        self.assertEqual(bool(np.any(grad)), name.endswith('_b'), name)
    second, grads, _ = step(trainable)
    self.assertLess(second, first)
    self.assertTrue(np.any(grads['layers'][0]['qkv_lora_a']))

  def test_rank_of_zero_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'lora_rank=0'):
      lora.add_adapters(BASE, init(BASE), 1)


if __name__ == '__main__':
  absltest.main()
