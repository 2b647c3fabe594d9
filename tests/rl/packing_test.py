import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import numpy as jnp
import numpy as np

from evojax.rl import logprobs
from evojax.rl import packing
from tests.rl import objectives


def _tokens(*values):
  return np.asarray(values, np.int32)


def _all_sampled(completions):
  return [np.ones(len(c), bool) for c in completions]


def _random_sequences(seed, groups=4, group_size=3, same_prompts=False):
  rng = np.random.default_rng(seed)
  draw = lambda n: rng.integers(1, 50, n).astype(np.int32)
  count = groups * group_size
  prompts = [draw(rng.integers(1, 9)) for _ in range(count)]
  if same_prompts:
    prompts = [prompts[i // group_size * group_size] for i in range(count)]
  completions = [draw(rng.integers(0, 8)) for _ in range(count)]
  loss_masks = [rng.random(len(c)) < 0.8 for c in completions]
  return prompts, completions, loss_masks


class PackTest(parameterized.TestCase):

  def test_by_hand(self):
    # Lengths 3, 5, 4, 2 into rows of 7: 5 -> row 0, 4 -> row 1, 3 -> row 1
    # (row 0 has 2 left, row 1 has 3), 2 -> row 0. Inside a row: list order.
    sequences = packing.Sequences(
        [_tokens(1), _tokens(2, 3, 4), _tokens(5, 6), _tokens(7)],
        [_tokens(11, 12), _tokens(13, 14), _tokens(15, 16), _tokens(17)],
        [
            np.asarray([True, True]),
            np.asarray([True, False]),
            np.asarray([True, True]),
            np.asarray([True]),
        ],
        group_size=2,
        max_tokens=3,
    )
    packed = packing.pack(sequences, rows=3, length=7)
    np.testing.assert_array_equal(
        packed.tokens,
        [[2, 3, 4, 13, 14, 7, 17], [1, 11, 12, 5, 6, 15, 16], [0] * 7],
    )
    np.testing.assert_array_equal(
        packed.positions,
        [[0, 1, 2, 3, 4, 0, 1], [0, 1, 2, 0, 1, 2, 3], [0] * 7],
    )
    np.testing.assert_array_equal(
        packed.segment_ids,
        [[1, 1, 1, 1, 1, 2, 2], [1, 1, 1, 2, 2, 2, 2], [0] * 7],
    )
    np.testing.assert_array_equal(
        packed.index,
        [[[8, 9, 0], [3, 4, 0]], [[12, 13, 0], [6, 0, 0]]],
    )
    np.testing.assert_array_equal(
        packed.loss_mask,
        [
            [[True, True, False], [True, False, False]],
            [[True, True, False], [True, False, False]],
        ],
    )

  @parameterized.parameters(*range(6))
  def test_roundtrip(self, seed):
    prompts, completions, loss_masks = _random_sequences(seed)
    lengths = [
        len(p) + len(c) for p, c in zip(prompts, completions, strict=True)
    ]
    rows = 1 + max(packing.first_fit_decreasing(lengths, 17))
    sequences = packing.Sequences(prompts, completions, loss_masks, 3, 8)
    packed = packing.pack(sequences, rows, 17)
    for field in dataclasses.fields(packed):
      if field.name != 'loss_mask':
        self.assertEqual(getattr(packed, field.name).dtype, np.int32)

    # Every completion is found through the index, preceded by its prompt.
    flat = packed.tokens.reshape(-1)
    segments = packed.segment_ids.reshape(-1)
    positions = packed.positions.reshape(-1)
    for i, (prompt, completion) in enumerate(
        zip(prompts, completions, strict=True)
    ):
      p, g = divmod(i, 3)
      index = packed.index[p, g]
      np.testing.assert_array_equal(index[len(completion) :], 0)
      np.testing.assert_array_equal(
          packed.loss_mask[p, g, : len(completion)], loss_masks[i]
      )
      self.assertFalse(packed.loss_mask[p, g, len(completion) :].any())
      if len(completion) == 0:
        continue
      where = np.arange(index[0] - len(prompt), index[0] + len(completion))
      np.testing.assert_array_equal(
          flat[where], np.concatenate([prompt, completion])
      )
      np.testing.assert_array_equal(
          index[: len(completion)], where[len(prompt) :]
      )
      np.testing.assert_array_equal(positions[where], np.arange(len(where)))
      self.assertLen(set(segments[where]), 1)
      self.assertLen(set(where // 17), 1)
      # The segment contains nothing else.
      row = segments.reshape(-1, 17)[where[0] // 17]
      self.assertEqual((row == segments[where[0]]).sum(), len(where))
    self.assertEqual((segments > 0).sum(), sum(lengths))

    with self.assertRaisesRegex(ValueError, f'rows={rows - 1}.* {rows} rows'):
      packing.pack(sequences, rows - 1, 17)

  def test_is_deterministic(self):
    first, second = (
        packing.pack(
            packing.Sequences(*_random_sequences(0), 3, 8), rows=12, length=17
        )
        for _ in range(2)
    )
    for field in dataclasses.fields(first):
      np.testing.assert_array_equal(
          getattr(first, field.name), getattr(second, field.name)
      )

  def test_micro_batches_are_packed_on_their_own(self):
    lists = _random_sequences(0)
    sequences = packing.Sequences(*lists, 3, 8)
    packed = packing.pack_micro_batches(sequences, 2, length=17, multiple=5)
    self.assertEqual(packed.tokens.shape, (2, 5, 17))
    self.assertEqual(packed.index.shape, (2, 2, 3, 8))
    for m, part in enumerate((slice(0, 6), slice(6, 12))):
      some = packing.Sequences(*(x[part] for x in lists), 3, 8)
      alone = packing.pack(some, rows=5, length=17)
      for field in dataclasses.fields(packed):
        np.testing.assert_array_equal(
            getattr(packed, field.name)[m], getattr(alone, field.name)
        )

  def test_rows_needed(self):
    need = lambda *lengths, multiple=1: packing.rows_needed(
        lengths, 10, multiple
    )
    self.assertEqual(need([6, 4]), 1)
    self.assertEqual(need([6, 5]), 2)
    # The fuller of two micro-batches counts; a single one would take 3.
    self.assertEqual(need([6, 4], [6, 6]), 2)
    self.assertEqual(need([6, 4, 6, 6]), 4)  # 3 rows, and an empty one.
    self.assertEqual(need([6, 4, 6, 6], multiple=4), 4)
    self.assertEqual(need([0, 0]), 1)
    # Few numbers of rows are used, so that few programs are compiled.
    counts = [need([6] * rows) for rows in range(1, 18)]
    even = [4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14, 16, 16]
    self.assertEqual(counts, [1, 2, *even, 20])
    self.assertEqual(need([6] * 33, multiple=4), 40)
    self.assertEqual(packing.shapes(16), 9)  # 1, 2, 4, ..., 16.
    self.assertEqual(packing.shapes(40, multiple=4), 6)  # 4, 8, 16, ..., 40.

  @parameterized.named_parameters(
      ('row', dict(length=6), 'sequence 1 has 7 tokens.*row length 6'),
      ('completion', dict(max_tokens=2), 'completion 1 has 3.*max_tokens=2'),
      ('groups', dict(group_size=3), '2 sequences are not whole.*_size=3'),
  )
  def test_rejects(self, changes, message):
    arguments = dict(group_size=2, length=8, max_tokens=3) | changes
    length = arguments.pop('length')
    completions = [_tokens(5), _tokens(5, 6, 7)]
    with self.assertRaisesRegex(ValueError, message):
      sequences = packing.Sequences(
          [_tokens(1), _tokens(1, 2, 3, 4)],
          completions,
          _all_sampled(completions),
          **arguments,
      )
      packing.pack(sequences, 2, length)

  def test_rejects_lists_that_do_not_fit(self):
    arguments = dict(group_size=1, max_tokens=3)
    one = [_tokens(1)]
    mask = _all_sampled(one)
    with self.assertRaisesRegex(ValueError, 'prompt 0 is empty'):
      packing.Sequences([_tokens()], one, mask, **arguments)
    with self.assertRaisesRegex(ValueError, 'mask 0 has 2 entries for 1'):
      packing.Sequences(one, one, [np.ones(2, bool)], **arguments)
    with self.assertRaisesRegex(ValueError, '1 prompts, 2 completions'):
      packing.Sequences(one, one * 2, mask, **arguments)
    three = packing.Sequences(one * 3, one * 3, mask * 3, **arguments)
    with self.assertRaisesRegex(ValueError, 'micro_groups=2 must divide the 3'):
      packing.pack_micro_batches(three, 2, length=8)


class ShareTest(absltest.TestCase):

  def test_by_hand(self):
    prompts = [_tokens(1, 2), _tokens(1, 2), _tokens(3), _tokens(3)]
    completions = [_tokens(4), _tokens(), _tokens(5, 6), _tokens(7)]
    masks = [np.ones(len(c), bool) for c in completions]
    masks[2] = np.asarray([False, True])
    shared = packing.share(
        packing.Sequences(prompts, completions, masks, 2, 2), 3
    )
    np.testing.assert_array_equal(shared.prompts, [[1, 2, 0], [3, 0, 0]])
    np.testing.assert_array_equal(shared.prompt_lengths, [2, 1])
    np.testing.assert_array_equal(
        shared.completions, [[[4, 0], [0, 0]], [[5, 6], [7, 0]]]
    )
    np.testing.assert_array_equal(
        shared.loss_mask,
        [[[True, False], [False, False]], [[False, True], [True, False]]],
    )

  def test_prompts_that_differ_within_a_group(self):
    completions = [_tokens(4)] * 2
    masks = _all_sampled(completions)
    for other in (_tokens(1, 3), _tokens(1)):
      prompts = [_tokens(1, 2), other]
      self.assertIsNone(
          packing.share(packing.Sequences(prompts, completions, masks, 2, 2), 3)
      )

  def test_too_long(self):
    with self.assertRaisesRegex(ValueError, 'prompt 0 has 2.*prompt_tokens=1'):
      completions = [_tokens(3)] * 2
      masks = _all_sampled(completions)
      packing.share(
          packing.Sequences([_tokens(1, 2)] * 2, completions, masks, 2, 2), 1
      )

  def test_pad(self):
    completions = [_tokens(3), _tokens()]
    sequences = packing.Sequences(
        [_tokens(1)] * 2, completions, _all_sampled(completions), 2, 2
    )
    out = sequences.pad([np.asarray([-1.5]), np.asarray([])])
    self.assertEqual(out.dtype, np.float32)
    np.testing.assert_array_equal(out, [[[-1.5, 0], [0, 0]]])


class PackedLossTest(absltest.TestCase):

  def test_packed_equals_unpacked(self):
    # A toy decoder that depends only on token and position, so that only the
    # layout is tested: packed rows against one row per sequence.
    prompts, completions, loss_masks = _random_sequences(3)
    rng = np.random.default_rng(0)
    params = {
        'token': jnp.asarray(rng.normal(size=(50, 8)), jnp.float32),
        'position': jnp.asarray(rng.normal(size=(17, 8)), jnp.float32),
    }
    advantages = jnp.asarray(rng.normal(size=(4, 3)), jnp.float32)

    def loss(params, packed):
      hidden = params['token'][packed.tokens]
      hidden += params['position'][packed.positions]
      rows, _ = logprobs.sequence_logprobs(
          hidden,
          params['token'],
          jnp.asarray(packed.tokens),
          jnp.asarray(packed.segment_ids),
          0.9,
      )
      canonical = rows.reshape(-1)[packed.index]  # [P, G, C]
      value, _ = objectives.policy_loss(
          canonical,
          jax.lax.stop_gradient(canonical) - 0.1,
          advantages,
          jnp.asarray(packed.loss_mask),
          clip_low=0.2,
          clip_high=0.2,
          denominator=12.0,
      )
      return value

    sequences = packing.Sequences(prompts, completions, loss_masks, 3, 8)
    packed = packing.pack(sequences, rows=9, length=17)
    self.assertGreater(packed.segment_ids.max(), 1)
    alone = _one_per_row(prompts, completions, packed)
    got, expected = (
        jax.jit(jax.value_and_grad(lambda x, y=layout: loss(x, y)))(params)
        for layout in (packed, alone)
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        got,
        expected,
    )
    self.assertNotEqual(got[0], 0)


def _one_per_row(prompts, completions, packed):
  """Return the unpacked layout, written independently of packing.py."""
  count, length = len(prompts), 17
  tokens = np.zeros((count, length), np.int32)
  segment_ids = np.zeros((count, length), np.int32)
  index = np.zeros((count, 8), np.int32)
  for i, (p, c) in enumerate(zip(prompts, completions, strict=True)):
    tokens[i, : len(p)] = p
    tokens[i, len(p) : len(p) + len(c)] = c
    segment_ids[i, : len(p) + len(c)] = 1
    for t in range(len(c)):
      index[i, t] = i * length + len(p) + t
  return packing.Packed(
      tokens=tokens,
      positions=np.tile(np.arange(length, dtype=np.int32), (count, 1)),
      segment_ids=segment_ids,
      index=index.reshape(4, 3, 8),
      loss_mask=packed.loss_mask,
  )


if __name__ == '__main__':
  absltest.main()
