"""Episodes of 1 to 4 turns through the update, against one row per episode."""

import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from evojax import records
from evojax.models import decoder
from evojax.runtime import sharding
from evojax.training import update as update_lib
from tests import forward

P, G, LP, LC, A = 4, 3, 6, 14, 4
CFG = decoder.DecoderConfig(
    family='qwen3',
    vocab_size=32,
    hidden_size=16,
    intermediate_size=32,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    qk_norm=True,
    tie_embeddings=True,
)
HYPER = dict(
    learning_rate=1.0,
    weight_decay=0.0,
    max_grad_norm=0.0,
    temperature=0.9,
    clip_low=0.2,
    clip_high=0.28,
    dual_clip=0.0,
    kl_coef=0.0,
    entropy_coef=0.0,
    tis_floor=0.0,
    veto=0.0,
)


def episode(rng, turns):
  """An episode of some turns; the last has no observation."""
  spans = [
      (int(rng.integers(1, 3)), int(rng.integers(0, 3))) for _ in range(turns)
  ]
  spans[-1] = (spans[-1][0], 0)
  tokens = rng.integers(0, CFG.vocab_size, sum(map(sum, spans)))
  return records.Episode(
      tokens.astype(np.int32),
      rng.normal(-2, 0.3, len(tokens)).astype(np.float32),
      'stop',
      0,
      '',
      turns=tuple(records.Turn(*span) for span in spans),
  )


@functools.cache
def data():
  """Prompts, episodes with 1 to 4 turns in every group, advantages."""
  rng = np.random.default_rng(3)
  prompts, episodes = [], []
  for group in range(P):
    prompt = rng.integers(0, CFG.vocab_size, rng.integers(2, LP + 1))
    prompts += [prompt.astype(np.int32)] * G
    episodes += [episode(rng, 1 + (group + g) % A) for g in range(G)]
  advantages = rng.normal(size=(P, G, A)).astype(np.float32)
  return prompts, episodes, advantages


@functools.cache
def params():
  return decoder.init(CFG, jax.random.key(1))


def make_batch(prompts, episodes, advantages, layout, included=None):
  if included is None:
    included = np.ones((P, G), bool)
  return update_lib.make_batch(
      prompts,
      episodes,
      advantages,
      included,
      max_prompt_tokens=LP,
      max_tokens=LC,
      micro_groups=2,
      layout=layout,
  )


@functools.cache
def algorithm(layout, aggregation, **changes):
  return update_lib.Algorithm(
      layout=layout, aggregation=aggregation, max_tokens=LC, eps=1.0, **changes
  )


def update(batch, live, layout, aggregation, bounds=None, **changes):
  """Metrics, and the accumulated gradient before Adam."""
  chosen = algorithm(layout, aggregation, **changes)
  state = update_lib.init_state(CFG, chosen, params())
  hyper = {k: jnp.float32(v) for k, v in (HYPER | (bounds or {})).items()}
  run = accumulate(layout, aggregation, **changes)
  (grads, loss, sums), _, _ = run(state, batch, jnp.int32(live), hyper)
  return grads, loss, sums


@functools.cache  # Compiling is what these tests would spend their time on.
def accumulate(layout, aggregation, **changes):
  chosen = algorithm(layout, aggregation, **changes)
  return jax.jit(functools.partial(update_lib._accumulate, CFG, chosen))


def scored(params, prompt, tokens):
  """Log-probs [n] of an episode's tokens: a full forward of one row."""
  row = np.concatenate([prompt, tokens])
  logits = forward.logits(CFG, params, row) / HYPER['temperature']
  table = jax.nn.log_softmax(logits)
  return table[np.arange(len(prompt) - 1, len(row) - 1), tokens]


def ratios(logprobs, e):
  """The product of an episode's trainer/sampler ratios, and their mean."""
  gap = (jax.lax.stop_gradient(logprobs) - e.logprobs)[e.loss_mask]
  return jnp.exp(gap.sum()), jnp.exp(gap.mean())


@functools.cache
def bounds():
  """Bounds of ratios that leave some episodes out, and weights of some at 0."""
  prompts, episodes, _ = data()
  pairs = zip(prompts, episodes)
  found = [ratios(scored(params(), p, e.tokens), e) for p, e in pairs]
  product, mean = np.array(found).T
  between = functools.partial(np.quantile, method='midpoint')
  low, high = between(mean, (0.21, 0.79))
  cap = between(product, 0.71)
  return dict(tis_cap=cap, reject_low=low, reject_high=high), product, mean


def plain_loss(params, prompts, episodes, advantages, aggregation, limits=None):
  """-sum of A log p over sampled tokens, turn by turn, in plain loops.

  On policy the ratio is 1 and its gradient that of log p.
  """
  total, tokens, sequences = 0.0, 0, 0
  for i, e in enumerate(episodes):
    logprobs = scored(params, prompts[i], e.tokens)
    start, weights = 0, np.zeros(len(e.tokens), np.float32)
    for turn, a in zip(e.turns, advantages.reshape(-1, A)[i]):
      weights[start : start + turn.sampled] = a
      start += turn.sampled + turn.observed
    share, count = -(weights @ logprobs), sum(t.sampled for t in e.turns)
    weight = enters = 1.0
    if limits:
      weight, mean = ratios(logprobs, e)
      weight *= weight <= limits['tis_cap']
      enters = (limits['reject_low'] <= mean) & (mean <= limits['reject_high'])
    share = share / count if aggregation == 'sequence' else share
    total += share * weight * enters
    tokens, sequences = tokens + count * enters, sequences + enters
  return total / (tokens if aggregation == 'token' else sequences)


@functools.cache
def plain_gradient(aggregation, corrected=False):
  """The gradient of `plain_loss` on all of `data`."""
  limits = bounds()[0] if corrected else None
  return jax.grad(plain_loss)(params(), *data(), aggregation, limits)


class TurnsTest(parameterized.TestCase):

  @parameterized.product(
      layout=('shared', 'packed'), aggregation=('token', 'sequence')
  )
  def test_gradient_is_that_of_one_row_per_episode(self, layout, aggregation):
    prompts, episodes, advantages = data()
    batch, live, _ = make_batch(prompts, episodes, advantages, layout)
    found, _, sums = update(batch, live, layout, aggregation)
    wanted = plain_gradient(aggregation)
    # Different orders of float32 sums over at most 14 tokens.
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted)):
      np.testing.assert_allclose(a, b, atol=2e-5)
    sampled = sum(e.loss_mask.sum() for e in episodes)
    self.assertEqual(int(sums['tokens']), sampled)
    self.assertLess(sampled, sum(len(e.tokens) for e in episodes))

  @parameterized.parameters('shared', 'packed')
  def test_an_episode_is_what_is_corrected(self, layout):
    """Its sampled tokens of all turns, not a turn, make its ratio."""
    prompts, episodes, advantages = data()
    limits, product, mean = bounds()
    masked = product > limits['tis_cap']
    rejected = (mean < limits['reject_low']) | (mean > limits['reject_high'])
    for kind in (masked, rejected, ~(masked | rejected)):
      self.assertGreater(kind.sum(), 1)
    batch, live, _ = make_batch(prompts, episodes, advantages, layout)
    correction = dict(tis_mode='sequence_mask', reject='geometric')
    found, _, sums = update(batch, live, layout, 'token', limits, **correction)
    wanted = plain_gradient('token', True)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted)):
      np.testing.assert_allclose(a, b, atol=2e-5 * float(jnp.abs(b).max()))
    self.assertEqual(sums['sampler']['bounded_sequences'], masked.sum())
    sizes = np.array([e.loss_mask.sum() for e in episodes])
    self.assertEqual(sums['sampler']['rejected'], sizes[rejected].sum())
    self.assertEqual(sums['tokens'], sizes[~rejected].sum())

  @parameterized.parameters('shared', 'packed')
  def test_log_probs_are_those_of_a_full_forward(self, layout):
    prompts, episodes, advantages = data()
    batch, _, order = make_batch(prompts, episodes, advantages, layout)
    found = update_lib.score_step(
        CFG, algorithm(layout, 'token'), params(), batch, jnp.float32(0.9)
    ).reshape(P, G, LC)
    for at, group in enumerate(order):
      for g in range(G):
        i = group * G + g
        e = episodes[i]
        wanted = scored(params(), prompts[i], e.tokens)
        # Observations are scored too: they are context like any token.
        np.testing.assert_allclose(
            found[at, g, : len(e.tokens)], wanted, atol=2e-5
        )

  def test_mask_and_weights_follow_the_turns(self):
    prompts, episodes, advantages = data()
    batch, _, order = make_batch(prompts, episodes, advantages, 'shared')
    mask = np.asarray(batch['mask']).reshape(P, G, LC)
    weight = np.asarray(batch['advantages']).reshape(P, G, LC)
    for at, group in enumerate(order):
      for g in range(G):
        e, start = episodes[group * G + g], 0
        for a, turn in enumerate(e.turns):
          end = start + turn.sampled
          self.assertTrue(mask[at, g, start:end].all())
          np.testing.assert_array_equal(
              weight[at, g, start:end], advantages[group, g, a]
          )
          start = end + turn.observed
          self.assertFalse(mask[at, g, end:start].any())
        self.assertFalse(mask[at, g, start:].any())

  @parameterized.parameters('shared', 'packed')
  def test_observations_have_no_gradient_of_their_own(self, layout):
    """Only as context: the sampled tokens alone make the loss."""
    prompts, episodes, advantages = data()
    batch, live, _ = make_batch(prompts, episodes, advantages, layout)
    want, _, _ = update(batch, live, layout, 'token')
    # No value at the tokens of an observation is in the loss.
    batch['sampler_logprobs'] = np.where(
        batch['mask'], batch['sampler_logprobs'], np.float32(np.nan)
    )
    batch['advantages'] = np.where(
        batch['mask'], batch['advantages'], np.float32(1e6)
    )
    found, _, sums = update(batch, live, layout, 'token')
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(want)):
      np.testing.assert_array_equal(a, b)
    self.assertTrue(np.isfinite(sums['sampler']['gap']))

  @parameterized.parameters('shared', 'packed')
  def test_permuted_groups_change_nothing(self, layout):
    prompts, episodes, advantages = data()
    included = np.ones((P, G), bool)
    included[1], included[2, 0] = False, False
    first = make_batch(prompts, episodes, advantages, layout, included)
    order = np.array([2, 0, 3, 1])
    index = (order[:, None] * G + np.arange(G)).reshape(-1)
    second = make_batch(
        [prompts[i] for i in index],
        [episodes[i] for i in index],
        advantages[order],
        layout,
        included[order],
    )
    want, loss, _ = update(*first[:2], layout, 'sequence')
    found, other, _ = update(*second[:2], layout, 'sequence')
    np.testing.assert_allclose(loss, other, atol=1e-6)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(want)):
      np.testing.assert_allclose(a, b, atol=1e-6)

  @parameterized.parameters('shared', 'packed')
  def test_a_turns_weight_scales_that_turn_alone(self, layout):
    """The gradient is linear in the weights, one turn at a time."""
    prompts, episodes, advantages = data()
    one = np.zeros_like(advantages)
    one[0, 2, 1] = advantages[0, 2, 1]  # The second turn of an episode of 3.
    self.assertLen(episodes[2].turns, 3)
    batch, live, _ = make_batch(prompts, episodes, one, layout)
    alone, _, _ = update(batch, live, layout, 'token')
    plain, _, _ = update(
        *make_batch(prompts, episodes, advantages, layout)[:2], layout, 'token'
    )
    tripled = advantages + 2 * one
    more, _, _ = update(
        *make_batch(prompts, episodes, tripled, layout)[:2], layout, 'token'
    )
    for a, b, c in zip(*map(jax.tree.leaves, (more, plain, alone))):
      np.testing.assert_allclose(a, b + 2 * c, atol=1e-5)
    wanted = jax.grad(plain_loss)(params(), prompts, episodes, one, 'token')
    for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(wanted)):
      np.testing.assert_allclose(a, b, atol=1e-5)

  def test_one_program_for_any_number_of_turns(self):
    prompts, episodes, advantages = data()
    mesh = sharding.make_mesh(
        data=1, fsdp=1, tensor=1, devices=jax.devices()[:1]
    )
    step = jax.jit(
        functools.partial(
            update_lib.update_step, CFG, algorithm('shared', 'token')
        )
    )
    hyper = {k: jnp.float32(v) for k, v in HYPER.items()}
    ones = [
        records.Episode(e.tokens, e.logprobs, 'stop', 0, '') for e in episodes
    ]
    with sharding.use(mesh):
      for given, credit in (
          (episodes, advantages),
          (ones, advantages[..., :1]),
      ):
        batch, live, _ = make_batch(prompts, given, credit, 'shared')
        state = update_lib.init_state(
            CFG, algorithm('shared', 'token'), params()
        )
        step(state, batch, jnp.int32(live), hyper)
    self.assertEqual(step._cache_size(), 1)


if __name__ == '__main__':
  absltest.main()
