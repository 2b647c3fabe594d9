"""Lays the sequences of an update out as arrays of fixed shape, on the host.

Two layouts of the same P x G completions:

- shared: each prompt once per group, for a forward pass that lets the G
  completions attend to it. Exact and cheaper; needs equal prompts in a group.
- packed: prompt + completion sequences of any kind, several to a row.

Either way the loss sees canonical [P, G, C] arrays (C completion tokens,
padded), never rows: with the packed layout `flat[index]` gives them.

Sequences are listed in group-major order: that of (p, g) is p * G + g.
"""

from collections.abc import Sequence
import dataclasses

from jaxtyping import Bool, Int32
import numpy as np

Tokens = Int32[np.ndarray, '_']
Mask = Bool[np.ndarray, '_']


@dataclasses.dataclass(frozen=True)
class Shared:
  """Groups with one prompt each."""

  prompts: Int32[np.ndarray, 'P Lp']  # Right-padded with 0.
  prompt_lengths: Int32[np.ndarray, 'P']
  completions: Int32[np.ndarray, 'P G C']  # Right-padded with 0.
  loss_mask: Bool[np.ndarray, 'P G C']  # True at sampled tokens.


@dataclasses.dataclass(frozen=True)
class Packed:
  """Sequences packed into rows; micro-batches add a leading axis M."""

  tokens: Int32[np.ndarray, '*M rows L']  # 0 at padding.
  positions: Int32[np.ndarray, '*M rows L']  # From 0 in each segment.
  segment_ids: Int32[np.ndarray, '*M rows L']  # 1, 2, ... per row; 0: padding.
  # Position of completion token (p, g, t) in [rows * L]; 0 at padding.
  index: Int32[np.ndarray, '*M P G C']
  loss_mask: Bool[np.ndarray, '*M P G C']  # True at sampled tokens.


def share(
    prompts: Sequence[Tokens],
    completions: Sequence[Tokens],
    loss_masks: Sequence[Mask],
    *,
    group_size: int,
    max_prompt_tokens: int,
    max_tokens: int,
) -> Shared | None:
  """Build the shared layout.

  Args:
    prompts: P * G int32 arrays [n], n >= 1.
    completions: P * G int32 arrays [n], 0 <= n <= max_tokens.
    loss_masks: P * G bool arrays shaped as the completions, False at tokens
      that were not sampled (tool output).
    group_size: G.
    max_prompt_tokens: Lp.
    max_tokens: C.

  Returns:
    The arrays, or None if the prompts of a group differ: then use `pack`.

  Raises:
    ValueError: If the lists do not fit together or something is too long.
  """
  _check(prompts, completions, loss_masks, group_size)
  firsts = prompts[::group_size]
  # One prompt per group is all that this layout stores.
  for i, prompt in enumerate(prompts):
    if not np.array_equal(prompt, firsts[i // group_size]):
      return None
  shape = dict(group_size=group_size, max_tokens=max_tokens)
  return Shared(
      prompts=_pad(firsts, max_prompt_tokens, np.int32, 'prompt'),
      prompt_lengths=np.array([len(p) for p in firsts], np.int32),
      completions=pad_completions(completions, dtype=np.int32, **shape),
      loss_mask=pad_completions(loss_masks, dtype=np.bool_, **shape),
  )


def pack(
    prompts: Sequence[Tokens],
    completions: Sequence[Tokens],
    loss_masks: Sequence[Mask],
    *,
    group_size: int,
    rows: int,
    length: int,
    max_tokens: int,
) -> Packed:
  """Pack prompt + completion sequences into rows, first-fit decreasing.

  Deterministic: of equally long sequences the first is placed first, and those
  that share a row lie in it in list order.

  Args:
    prompts: P * G int32 arrays [n], n >= 1; may differ within a group.
    completions: P * G int32 arrays [n], 0 <= n <= max_tokens.
    loss_masks: P * G bool arrays shaped as the completions, False at tokens
      that were not sampled (tool output).
    group_size: G.
    rows: Rows of the result, at least `rows_needed(...)`.
    length: L, tokens per row.
    max_tokens: C.

  Returns:
    Arrays without the axis M.

  Raises:
    ValueError: If rows are too few (names how many it takes), or as `share`.
  """
  _check(prompts, completions, loss_masks, group_size)
  lengths = [len(p) + len(c) for p, c in zip(prompts, completions, strict=True)]
  row_of = _first_fit_decreasing(lengths, length)
  needed = max(row_of, default=-1) + 1
  # Refused, not grown: the number of rows is a shape of the compiled program.
  if needed > rows:
    raise ValueError(
        f'{rows=} of {length=} tokens are too few for {len(lengths)} sequences:'
        f' {needed} rows are needed.'
    )

  tokens, positions, segment_ids = np.zeros((3, rows, length), np.int32)
  index = np.zeros((len(prompts), max_tokens), np.int32)
  used = np.zeros(rows, np.int64)  # Tokens placed in each row so far.
  segments = np.zeros(rows, np.int64)
  # In list order, so that the layout depends on the lengths alone: a step that
  # is repeated after a kill gets the same sums, bit for bit.
  for i, row in enumerate(row_of):
    start, stop = used[row], used[row] + lengths[i]
    segments[row] += 1
    used[row] = stop
    tokens[row, start:stop] = [*prompts[i], *completions[i]]
    positions[row, start:stop] = np.arange(lengths[i])
    segment_ids[row, start:stop] = segments[row]
    first = row * length + start + len(prompts[i])
    count = min(len(completions[i]), max_tokens)  # Longer is refused.
    index[i, :count] = first + np.arange(count)
  shape = dict(group_size=group_size, max_tokens=max_tokens)
  return Packed(
      tokens=tokens,
      positions=positions,
      segment_ids=segment_ids,
      index=index.reshape(-1, group_size, max_tokens),
      loss_mask=pad_completions(loss_masks, dtype=np.bool_, **shape),
  )


def pack_micro_batches(
    prompts: Sequence[Tokens],
    completions: Sequence[Tokens],
    loss_masks: Sequence[Mask],
    *,
    group_size: int,
    micro_groups: int,
    **shape: int,
) -> Packed:
  """Pack every `micro_groups` groups on their own, into equally many rows.

  Args:
    prompts: P * G int32 arrays; see `pack`.
    completions: P * G int32 arrays.
    loss_masks: P * G bool arrays.
    group_size: G.
    micro_groups: Groups per micro-batch; divides P.
    **shape: rows of every micro-batch, e.g. the largest `rows_needed` of any,
      length and max_tokens; see `pack`.

  Returns:
    Arrays with a leading axis M = P / micro_groups, [M, rows, L] and
    [M, micro_groups, G, C]. `index` points into its own micro-batch.

  Raises:
    ValueError: If micro_groups does not divide P, or as `pack`.
  """
  _check(prompts, completions, loss_masks, group_size)
  lists = prompts, completions, loss_masks
  packed = [
      pack(*(x[part] for x in lists), group_size=group_size, **shape)
      for part in _micro_slices(len(prompts), group_size, micro_groups)
  ]
  fields = zip(*map(dataclasses.astuple, packed), strict=True)
  return Packed(*map(np.stack, fields))


def rows_needed(
    lengths: Sequence[int],
    *,
    group_size: int,
    micro_groups: int,
    length: int,
    bucket: int = 1,
) -> int:
  """Count the rows that the fullest micro-batch takes.

  Args:
    lengths: P * G lengths, prompt + completion, in tokens.
    group_size: G.
    micro_groups: Groups per micro-batch; divides P.
    length: L, tokens per row.
    bucket: The count is rounded up to a multiple of this. The shape, hence the
      compiled program, depends on the count: at most
      ceil(micro_groups * G / bucket) programs arise in a run.

  Returns:
    Rows, >= 1, a multiple of bucket.

  Raises:
    ValueError: If a sequence is longer than a row, bucket < 1 or micro_groups
      does not divide P.
  """
  if bucket < 1:
    raise ValueError(f'{bucket=} must be >= 1.')
  # The fullest micro-batch decides: all share one shape, hence one program.
  rows = max(
      1 + max(_first_fit_decreasing(lengths[part], length))
      for part in _micro_slices(len(lengths), group_size, micro_groups)
  )
  return -(-rows // bucket) * bucket


def pad_completions(
    values: Sequence[np.ndarray],
    *,
    group_size: int,
    max_tokens: int,
    dtype: np.dtype | type = np.float32,
) -> np.ndarray:
  """Right-pad one value per completion token with 0, e.g. sampler_logprobs.

  Args:
    values: P * G arrays [n], n <= max_tokens.
    group_size: G.
    max_tokens: C.
    dtype: Of the result.

  Returns:
    dtype [P, G, C].

  Raises:
    ValueError: If G does not divide len(values) or an array is too long.
  """
  _check_groups(len(values), group_size)
  padded = _pad(values, max_tokens, dtype, 'completion')
  return padded.reshape(-1, group_size, max_tokens)


def _pad(arrays, width, dtype, what):
  """Right-pad 1-D arrays with 0 to [len(arrays), width]."""
  out = np.zeros((len(arrays), width), dtype)
  for i, array in enumerate(arrays):
    if len(array) > width:
      limit = 'max_prompt_tokens' if what == 'prompt' else 'max_tokens'
      raise ValueError(
          f'{what} {i} has {len(array)} tokens, over {limit}={width}.'
      )
    out[i, : len(array)] = array
  return out


def _first_fit_decreasing(lengths, row_length):
  """Return the row of each sequence: longest first, in the first that fits."""
  row_of = [0] * len(lengths)
  room = []  # Tokens left in each row.
  # `sorted` is stable: of equally long sequences the first comes first.
  for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
    if lengths[i] > row_length:
      raise ValueError(
          f'sequence {i} has {lengths[i]} tokens (prompt + completion), over'
          f' the row length {row_length}.'
      )
    row = next((r for r, n in enumerate(room) if n >= lengths[i]), len(room))
    if row == len(room):
      room.append(row_length)
    room[row] -= lengths[i]
    row_of[i] = row
  return row_of


def _micro_slices(sequences, group_size, micro_groups):
  """Return slices of the sequence list, one per micro-batch."""
  _check_groups(sequences, group_size)
  groups = sequences // group_size
  if micro_groups < 1 or groups % micro_groups:
    raise ValueError(
        f'{micro_groups=} must divide the {groups} groups of the update.'
    )
  size = micro_groups * group_size
  return [slice(i, i + size) for i in range(0, sequences, size)]


def _check_groups(sequences, group_size):
  if group_size < 1 or sequences == 0 or sequences % group_size:
    raise ValueError(
        f'{sequences} sequences are not whole groups of {group_size=}.'
    )


def _check(prompts, completions, loss_masks, group_size):
  """Check that the lists fit together."""
  if not len(prompts) == len(completions) == len(loss_masks):
    raise ValueError(
        f'{len(prompts)} prompts, {len(completions)} completions and'
        f' {len(loss_masks)} loss masks must be equally many.'
    )
  _check_groups(len(prompts), group_size)
  for i, (p, c, m) in enumerate(
      zip(prompts, completions, loss_masks, strict=True)
  ):
    if len(p) == 0:
      raise ValueError(f'prompt {i} is empty: nothing predicts the completion.')
    if len(c) != len(m):
      raise ValueError(
          f'loss mask {i} has {len(m)} entries for {len(c)} tokens.'
      )
