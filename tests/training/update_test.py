"""One update equals its definition, however it is laid out."""

import dataclasses
import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np
import optax

from evojax import records
from evojax.models import decoder
from evojax.models import lora
from evojax.runtime import sharding
from evojax.training import update as update_lib

CFG = decoder.DecoderConfig(
    family='qwen3',
    vocab_size=31,
    hidden_size=16,
    intermediate_size=24,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    qk_norm=True,
)
P, G, LP, LC = 4, 3, 6, 5
# Adam divides by the root of the second moment: float32 noise in a gradient of
# 1e-8 moves a parameter by a visible part of the learning rate, so parameters
# are compared with eps = 1e-3.
ALGORITHM = update_lib.Algorithm(max_tokens=LC, eps=1e-3)
ATOL = 3e-5
HYPER = dict(
    learning_rate=0.1,
    weight_decay=0.0,
    max_grad_norm=0.0,
    temperature=1.0,
    clip_low=0.2,
    clip_high=0.2,
    dual_clip=0.0,
    kl_coef=0.0,
    entropy_coef=0.0,
    tis_cap=0.0,
    tis_floor=0.0,
    reject_low=0.0,
    reject_high=1e9,
    veto=0.0,
)


def rollouts(seed=0):
  """Prompts, completions, sampler log-probs [P * G] and advantages [P, G]."""
  rng = np.random.default_rng(seed)
  draw = lambda n: rng.integers(0, CFG.vocab_size, n).astype(np.int32)
  prompts = [draw(rng.integers(1, LP + 1)) for _ in range(P)]
  prompts = [p for p in prompts for _ in range(G)]
  completions = [draw(rng.integers(1, LC + 1)) for _ in range(P * G)]
  sampler = [
      np.log(rng.uniform(0.01, 0.2, len(c))).astype(np.float32)
      for c in completions
  ]
  return prompts, completions, sampler, rng.normal(size=(P, G))


def episodes(completions, sampler):
  """Episodes of one turn."""
  return [
      records.Episode(tokens, logprobs, 'stop', 0, '')
      for tokens, logprobs in zip(completions, sampler, strict=True)
  ]


def make_batch(data, included, micro_groups, layout, shards=1):
  prompts, completions, sampler, advantages = data
  return update_lib.make_batch(
      prompts,
      episodes(completions, sampler),
      advantages[..., None],
      included,
      max_prompt_tokens=LP,
      max_tokens=LC,
      micro_groups=micro_groups,
      layout=layout,
      shards=shards,
  )


@functools.cache  # Compiling is what these tests would spend their time on.
def make_update(cfg=CFG, **algorithm):
  return Update(cfg, **algorithm)


class Update:
  """A compiled update and the state it starts from."""

  def __init__(self, cfg=CFG, **algorithm):
    self.cfg = cfg
    self.algorithm = dataclasses.replace(ALGORITHM, **algorithm)
    self.mesh = sharding.make_mesh(
        data=1, fsdp=1, tensor=1, devices=jax.devices()[:1]
    )
    self.step = update_lib.compiled(
        update_lib.update_step, cfg, self.algorithm, self.mesh
    )

  def __call__(
      self,
      data,
      included=None,
      micro_groups=2,
      extra=None,
      params=None,
      shards=1,
      **hyper,
  ):
    if included is None:
      included = np.ones((P, G), bool)
    batch, live, order = make_batch(
        data, included, micro_groups, self.algorithm.layout, shards
    )
    if params is None:
      params = decoder.init(self.cfg, jax.random.key(0))
    state = update_lib.init_state(self.cfg, self.algorithm, params)
    for name, make in (extra or {}).items():
      batch[name] = make(batch)
    hyper = {k: jnp.float32(v) for k, v in (HYPER | hyper).items()}
    state, metrics, rows = self.step(state, batch, jnp.int32(live), hyper)
    self.rejected, rows = (
        np.asarray(rows[name]).reshape(-1, G)[np.argsort(order)]
        for name in ('rejected', 'gap')
    )
    return state['params'], jax.device_get(metrics), rows


@jax.jit
def row_scores(params, tokens, temperature):
  """log softmax of every position of padded rows [B, L], [B, L, V]."""
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  hidden = decoder.forward(
      CFG, params, tokens, positions, jnp.ones_like(tokens)
  )
  return jax.nn.log_softmax(hidden @ params['embed'].T / temperature)


def naive_scores(params, prompts, completions, temperature=1.0):
  """Scores [n, V] before the n tokens of each completion, a row for each."""
  tokens = np.zeros((len(prompts), LP + LC), np.int32)
  for i, (p, c) in enumerate(zip(prompts, completions)):
    tokens[i, : len(p) + len(c)] = np.concatenate([p, c])
  scores = row_scores(params, tokens, temperature)
  return [
      scores[i, np.arange(len(p) - 1, len(p) + len(c) - 1)]
      for i, (p, c) in enumerate(zip(prompts, completions))
  ]


def naive_logprobs(params, prompts, completions, temperature=1.0):
  """Log-probs of each completion, from rows of one sequence each."""
  scores = naive_scores(params, prompts, completions, temperature)
  return [s[np.arange(len(c)), c] for s, c in zip(scores, completions)]


class LearnerTest(parameterized.TestCase):

  def assert_params(self, a, b, atol=ATOL):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=atol), a, b)

  @parameterized.product(
      layout=('shared', 'packed'),
      aggregation=('token', 'sequence', 'constant'),
  )
  def test_on_policy_step_is_the_policy_gradient(self, layout, aggregation):
    # On policy the ratio is 1: the gradient is that of -sum A log p, summed
    # over tokens and divided as the aggregation says; then one Adam step.
    data = rollouts()
    prompts, completions, _, advantages = data
    flat = advantages.reshape(-1)
    lengths = [len(c) for c in completions]

    def loss(params):
      total = 0.0
      for i, logprobs in enumerate(
          naive_logprobs(params, prompts, completions)
      ):
        sums = -flat[i] * logprobs.sum()
        total += {
            'token': sums / sum(lengths),
            'sequence': sums / lengths[i] / (P * G),
            'constant': sums / (P * G * LC),
        }[aggregation]
      return total

    params = decoder.init(CFG, jax.random.key(0))
    optimizer = optax.adam(0.1, 0.9, 0.95, 1e-3)
    grads = jax.grad(loss)(params)
    updates, _ = optimizer.update(grads, optimizer.init(params))
    want = optax.apply_updates(params, updates)
    got, metrics, _ = make_update(layout=layout, aggregation=aggregation)(data)
    self.assert_params(got, want)
    np.testing.assert_allclose(
        metrics['grad_norm'], optax.tree.norm(grads), rtol=1e-4
    )
    # To first order, the loss falls by the gradient times the update.
    fall = -optax.tree.vdot(grads, updates)
    np.testing.assert_allclose(metrics['descent'], fall, rtol=1e-3)

  @parameterized.product(
      layout=('shared', 'packed'),
      aggregation=('token', 'sequence'),
      coefficient=(0.5, -0.5),
  )
  def test_entropy_has_its_exact_gradient(
      self, layout, aggregation, coefficient
  ):
    prompts, completions, sampler, advantages = rollouts()
    counted = sum(map(len, completions)) if aggregation == 'token' else P * G

    def loss(params):
      total = 0.0
      for scores in naive_scores(params, prompts, completions, 0.8):
        entropy = -(jnp.exp(scores) * scores).sum(-1)
        one = entropy.sum() if aggregation == 'token' else entropy.mean()
        total -= coefficient * one / counted
      return total

    params = decoder.init(CFG, jax.random.key(0))
    optimizer = optax.adam(0.1, 0.9, 0.95, 1e-3)
    updates, _ = optimizer.update(
        jax.grad(loss)(params), optimizer.init(params)
    )
    update = make_update(layout=layout, aggregation=aggregation, entropy=True)
    got, metrics, _ = update(
        (prompts, completions, sampler, 0 * advantages),
        temperature=0.8,
        entropy_coef=coefficient,
    )
    self.assert_params(got, optax.apply_updates(params, updates))
    np.testing.assert_allclose(metrics['loss'], loss(params), rtol=1e-4)

  @parameterized.parameters(1, 4)
  def test_micro_batches_change_nothing(self, micro_groups):
    data, update = rollouts(), make_update(aggregation='token')
    self.assert_params(
        update(data)[0], update(data, micro_groups=micro_groups)[0]
    )

  @parameterized.parameters('shared', 'packed')
  def test_parts_of_groups_change_nothing(self, layout):
    data, update = rollouts(), make_update(layout=layout)
    included = np.ones((P, G), bool)
    included[0] = included[2, 1] = False  # The order changes, too.
    whole = update(data, included)
    split = update(data, included, micro_groups=1, shards=G)
    self.assert_params(whole[0], split[0])
    np.testing.assert_allclose(whole[2], split[2], atol=1e-5)
    batch, *_ = make_batch(data, included, 1, layout, shards=G)
    self.assertEqual(batch['mask'].shape, (P, G, 1, LC))

  def test_dropped_groups_leave_no_trace(self):
    data = rollouts()
    included = np.ones((P, G), bool)
    included[1] = included[2, 0] = False
    junk = [list(x) for x in data[:3]] + [data[3].copy()]
    for g in range(G):
      junk[1][G + g] = np.zeros(LC, np.int32)
      junk[2][G + g] = np.full(LC, -99.0, np.float32)
    junk[3][1], junk[3][2, 0] = 1e9, -1e9
    update = make_update(aggregation='sequence')
    a, metrics, _ = update(data, included)
    b, also, _ = update(junk, included)
    self.assert_params(a, b, atol=0)
    self.assertEqual(metrics['loss'], also['loss'])
    everything, _, _ = update(data)
    self.assertGreater(
        float(jnp.abs(a['embed'] - everything['embed']).max()), 1e-3
    )

  def test_nothing_kept_is_a_step_of_zero(self):
    update = make_update()
    params, metrics, _ = update(rollouts(), np.zeros((P, G), bool))
    self.assert_params(params, decoder.init(CFG, jax.random.key(0)), atol=0)
    self.assertTrue(metrics['finite'])
    # A mean over no tokens is not 0: an entropy of 0 would be a collapse.
    for name in 'entropy ratio clip_high gap gap_max sampler_kl'.split():
      self.assertTrue(np.isnan(metrics[name]), name)
    for name in ('tokens', 'loss', 'grad_norm', 'descent'):
      self.assertEqual(metrics[name], 0, name)

  def test_order_of_groups_changes_nothing(self):
    data = rollouts()
    order = np.array([2, 0, 3, 1])
    rows = (order[:, None] * G + np.arange(G)).reshape(-1)
    shuffled = [[x[i] for i in rows] for x in data[:3]] + [data[3][order]]
    update = make_update()
    a, _, gaps = update(data)
    b, _, shuffled_gaps = update(shuffled)
    self.assert_params(a, b)
    np.testing.assert_allclose(gaps[order], shuffled_gaps, atol=1e-6)

  def test_gap_by_hand(self):
    data = rollouts()
    _, metrics, gaps = make_update()(data, temperature=1.7)
    params = decoder.init(CFG, jax.random.key(0))
    differences = [
        np.abs(logprobs - sampler)
        for logprobs, sampler in zip(
            naive_logprobs(params, *data[:2], 1.7), data[2]
        )
    ]
    want = np.array([d.mean() for d in differences]).reshape(P, G)
    np.testing.assert_allclose(gaps, want, atol=1e-5)
    every = np.concatenate(differences)
    np.testing.assert_allclose(metrics['gap'], every.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics['gap_max'], every.max(), rtol=1e-5)

  @parameterized.parameters(
      ('shared', 'token', True),
      ('packed', 'sequence', True),
      ('shared', 'constant', False),
  )
  def test_rejected_is_as_if_never_there(self, layout, aggregation, on_policy):
    # A sampler that agrees with the trainer but for four episodes: two of
    # group 0, and all of group 2 that are in the update at all.
    data = rollouts()
    params = decoder.init(CFG, jax.random.key(0))
    data[2][:] = [np.asarray(x) for x in naive_logprobs(params, *data[:2])]
    included = np.ones((P, G), bool)
    included[2, 2] = included[3] = False
    wrong = np.zeros((P, G), bool)
    wrong[0, :2] = wrong[2, :2] = True
    options = dict(layout=layout, aggregation=aggregation, on_policy=on_policy)
    bounds = dict(reject_low=0.9, reject_high=1.1)

    def trainer(included):
      """Log-probs at the start of the step, laid out as the batch."""
      if on_policy:
        return {}
      batch = make_batch(data, included, 2, layout)[0]
      return dict(old_logprobs=lambda _: batch['sampler_logprobs'])

    update = make_update(**options, reject='geometric')
    whole, metrics, _ = update(
        data, included, extra=trainer(included), **bounds
    )
    self.assertEqual(metrics['rejected_tokens'], 0)
    without = make_update(**options)(data, included, extra=trainer(included))
    self.assert_params(whole, without[0])
    far = [list(x) for x in data[:3]] + [data[3]]
    for i in np.flatnonzero(wrong):
      far[2][i] = data[2][i] + 0.2 * (-1) ** i
    got, metrics, _ = update(far, included, extra=trainer(included), **bounds)
    np.testing.assert_array_equal(update.rejected, wrong)
    left = included & ~wrong
    want, expected, _ = update(data, left, extra=trainer(left), **bounds)
    self.assert_params(got, want)
    for name in ('loss', 'tokens', 'entropy', 'grad_norm'):
      np.testing.assert_allclose(metrics[name], expected[name], rtol=1e-4)
    sizes = np.array([len(c) for c in data[1]]).reshape(P, G)
    share = sizes[wrong].sum() / sizes[included].sum()
    np.testing.assert_allclose(metrics['rejected_tokens'], share, rtol=1e-6)
    # The gap is over all: what was rejected is why it is large.
    np.testing.assert_allclose(metrics['gap'], 0.2 * share, rtol=1e-3)

  def test_all_rejected_is_a_step_of_zero(self):
    update = make_update(aggregation='token', reject='sequence')
    params, metrics, _ = update(rollouts(), reject_low=1.0, reject_high=1.0)
    self.assert_params(params, decoder.init(CFG, jax.random.key(0)), atol=0)
    self.assertTrue(update.rejected.all())
    self.assertEqual(metrics['rejected_tokens'], 1)

  def test_metrics_of_weights_by_hand(self):
    data, params = rollouts(), decoder.init(CFG, jax.random.key(0))
    ratios = [
        np.exp(np.asarray(logprobs) - sampler)
        for logprobs, sampler in zip(naive_logprobs(params, *data[:2]), data[2])
    ]
    every = np.concatenate(ratios)
    cap = float(np.sort(every)[-4:-2].mean())  # Three are above it.
    update = make_update(tis_mode='token_truncate')
    _, metrics, _ = update(data, tis_cap=cap)
    weights = np.minimum(every, cap)
    sequences = np.mean([(r > cap).any() for r in ratios])
    for name, want in dict(
        tis_weight=weights.mean(),
        tis_truncated=3 / len(every),
        tis_truncated_sequences=sequences,
        tis_sample_size=weights.sum() ** 2 / (weights**2).sum() / len(every),
        tis_ratio_max=every.max(),
        sampler_kl=(every - 1 - np.log(every)).mean(),
    ).items():
      np.testing.assert_allclose(metrics[name], want, rtol=1e-4, err_msg=name)

  @parameterized.parameters('token_truncate', 'sequence_mask')
  def test_correction_in_bfloat16(self, mode):
    # Activations are rounded, log-probs and ratios are not: a sampler in
    # float32 has gaps of the size of bfloat16, and weights near 1.
    cfg = dataclasses.replace(CFG, compute_dtype='bfloat16')
    data, params = rollouts(), decoder.init(CFG, jax.random.key(0))
    data[2][:] = [np.asarray(x) for x in naive_logprobs(params, *data[:2])]
    update = make_update(cfg, tis_mode=mode, reject='geometric', veto=True)
    bounds = dict(tis_cap=3.0, reject_low=0.9, reject_high=1.1, veto=1e-4)
    _, metrics, _ = update(data, params=params, **bounds)
    self.assertBetween(metrics['gap_max'], 1e-5, 0.05)
    self.assertBetween(metrics['tis_ratio_max'], 1, 1.2)
    self.assertBetween(metrics['tis_weight'], 0.95, 1.05)
    self.assertGreater(metrics['tis_sample_size'], 0.99)
    self.assertEqual(metrics['rejected_tokens'], 0)
    self.assertTrue(metrics['finite'])

  @parameterized.parameters('float32', 'bfloat16')
  def test_a_state_keeps_its_dtypes(self, dtype):
    # Otherwise no checkpoint would fit the state that a new process makes.
    params = decoder.init(CFG, jax.random.key(0))
    params = jax.tree.map(lambda p: p.astype(dtype), params)
    state = update_lib.init_state(CFG, ALGORITHM, params)
    everyone = np.ones((P, G), bool)
    batch, live, _ = make_batch(rollouts(), everyone, 2, ALGORITHM.layout)
    hyper = {k: jnp.float32(v) for k, v in HYPER.items()}
    step = functools.partial(update_lib.update_step, CFG, ALGORITHM)
    after, *_ = jax.eval_shape(step, state, batch, jnp.int32(live), hyper)
    dtypes = lambda tree: jax.tree.map(lambda x: str(x.dtype), tree)
    self.assertEqual(dtypes(after), dtypes(state))
    self.assertEqual(str(after['moments'].nu['embed'].dtype), 'float32')

  def test_scalars_are_traced_and_each_has_an_effect(self):
    data = rollouts()
    update = make_update(
        on_policy=False,
        reference=True,
        entropy=True,
        tis_mode='token_truncate',
        reject='token',
        veto=True,
        eps=1e-8,
    )
    near = lambda shift: lambda batch: (
        batch['sampler_logprobs'] + shift
    ).astype(np.float32)
    # Current log-probs lie near -log 31; ratios fall on both sides of 1.
    around = lambda batch: np.where(np.arange(LC) % 2, -3.0, -4.0).astype(
        np.float32
    ) * np.ones(batch['sampler_logprobs'].shape, np.float32)
    extra = dict(old_logprobs=around, ref_logprobs=near(0.3))
    base = HYPER | dict(
        max_grad_norm=1e3, kl_coef=0.1, tis_cap=2.0, dual_clip=3.0
    )
    run = lambda **change: update(data, extra=extra, **(base | change))
    before = run()[0]
    changes = dict(
        learning_rate=0.2,
        weight_decay=0.1,
        max_grad_norm=1e-9,
        temperature=1.3,
        clip_low=0.9,
        clip_high=5.0,
        dual_clip=1.3,
        kl_coef=0.5,
        entropy_coef=0.5,
        tis_cap=0.1,
        tis_floor=1.0,
        reject_low=0.5,
        reject_high=0.5,
        veto=0.2,
    )
    self.assertEqual(set(changes), set(update_lib.HYPERPARAMETERS))
    for name, value in changes.items():
      after = run(**{name: value})[0]
      moved = max(
          float(jnp.abs(x - y).max())
          for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after))
      )
      self.assertGreater(moved, 1e-5, name)
    self.assertEqual(update.step._cache_size(), 1)

  def test_a_number_that_is_not_finite_stops_the_update(self):
    data = rollouts()
    data[3][0, 0] = np.nan
    params, metrics, _ = make_update()(data)
    self.assert_params(params, decoder.init(CFG, jax.random.key(0)), atol=0)
    with self.assertRaisesRegex(
        update_lib.NonFiniteError, 'step 7.*learning_rate'
    ):
      update_lib.check_finite(metrics, 7)

  def test_gradient_is_clipped_to_its_norm(self):
    # With SGD-like Adam (b1 = b2 = 0, huge eps) the step is grad / eps.
    update = make_update(b1=0.0, b2=0.0, eps=1e6)
    start = decoder.init(CFG, jax.random.key(0))
    length = lambda params: optax.tree.norm(
        jax.tree.map(jnp.subtract, params, start)
    )
    free, metrics, _ = update(rollouts(), learning_rate=1e6)
    bound = 0.25 * float(metrics['grad_norm'])
    clipped, _, _ = update(rollouts(), learning_rate=1e6, max_grad_norm=bound)
    np.testing.assert_allclose(length(free), metrics['grad_norm'], rtol=1e-2)
    np.testing.assert_allclose(length(clipped), bound, rtol=1e-2)

  @parameterized.parameters(False, True)
  def test_weight_decay_is_of_matrices(self, scan_layers):
    # Stacked norms have two axes, and biases of heads three.
    cfg = dataclasses.replace(
        CFG, qkv_bias=True, out_bias=True, scan_layers=scan_layers
    )
    start = jax.tree.map(
        lambda x: np.full(x.shape, 2.0, np.float32), decoder.shapes(cfg)
    )
    # Nothing is kept, so that there is no gradient.
    params, _, _ = make_update(cfg)(
        rollouts(),
        np.zeros((P, G), bool),
        params=jax.tree.map(jnp.asarray, start),
        weight_decay=0.5,
    )
    layers = params.pop('layers')
    layers = layers if scan_layers else layers[0]
    decayed = {n for n, x in (params | layers).items() if np.any(x != 2.0)}
    self.assertEqual(decayed, {'embed', 'qkv', 'out', 'gate_up', 'down'})
    np.testing.assert_allclose(layers['qkv'], 2.0 * 0.95, rtol=1e-6)

  def test_descent_is_of_the_whole_gradient(self):
    # The direction is of length 1 however much the gradient was clipped.
    update = make_update(b1=0.0, b2=0.0, eps=1e-30)
    _, free, _ = update(rollouts(), learning_rate=1e-3)
    _, clipped, _ = update(rollouts(), learning_rate=1e-3, max_grad_norm=1e-3)
    self.assertGreater(free['descent'], 0)
    np.testing.assert_allclose(clipped['descent'], free['descent'], rtol=1e-3)
    _, slow, _ = update(rollouts(), learning_rate=1e-5)
    np.testing.assert_allclose(
        slow['descent'], free['descent'] / 100, rtol=1e-3
    )

  def test_lora_trains_adapters_alone(self):
    cfg = dataclasses.replace(CFG, lora_rank=2)
    params = decoder.init(cfg, jax.random.key(0))
    start, _ = jax.tree.map(jnp.copy, lora.split(params))  # Before donation.
    trained, _, _ = make_update(cfg)(rollouts(), params=params)
    self.assertTrue(
        all(
            '_lora_' in path[-1].key
            for path, _ in jax.tree_util.tree_leaves_with_path(trained)
        )
    )
    moved = jax.tree.map(
        lambda a, b: float(jnp.abs(a - b).max()), trained, start
    )
    self.assertGreater(max(jax.tree.leaves(moved)), 1e-4)

  def test_prompts_that_differ_in_a_group_fall_back_to_packing(self):
    data = rollouts()
    data[0][1] = np.array([5, 6], np.int32)
    batch, _, _ = make_batch(data, np.ones((P, G), bool), 2, 'shared')
    self.assertIn('index', batch)
    make_update()(data)

  def test_micro_groups_must_divide(self):
    with self.assertRaisesRegex(ValueError, 'grpo.micro_groups=3'):
      make_update()(rollouts(), micro_groups=3)
    with self.assertRaisesRegex(ValueError, f'do not split over {G + 1} dev'):
      make_update()(rollouts(), micro_groups=1, shards=G + 1)

  def test_score_step_equals_the_forward_pass(self):
    data = rollouts()
    for layout in ('shared', 'packed'):
      batch, _, _ = make_batch(data, np.ones((P, G), bool), 2, layout)
      params = decoder.init(CFG, jax.random.key(0))
      scored = update_lib.score_step(
          CFG, ALGORITHM, params, batch, jnp.float32(0.8)
      ).reshape(P * G, LC)
      wanted = naive_logprobs(params, *data[:2], 0.8)
      for i, want in enumerate(wanted):
        np.testing.assert_allclose(scored[i, : len(want)], want, atol=1e-5)


if __name__ == '__main__':
  absltest.main()
