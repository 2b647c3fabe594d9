"""Layout of an update's sequences as arrays of fixed shape, on the host.

Two layouts of the same P x G completions:

- shared: each prompt once per group, for a forward pass in which the G
  completions attend to it. It is exact and cheaper, but needs equal prompts.
- packed: prompt + completion sequences of any kind, several to a row.

In both cases the loss gets canonical [P, G, C] arrays (C completion tokens,
padded), never rows: with the packed layout, `flat[index]` gives them.

Sequences are listed in group-major order: (p, g) has index p * G + g.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import itertools

from jaxtyping import Bool, Int32
import numpy as np

Tokens = Int32[np.ndarray, '_']
Mask = Bool[np.ndarray, '_']


@dataclasses.dataclass(frozen=True)
class Sequences:
  """P * G sequences, and the sizes of the arrays to make of them.

  Raises:
    ValueError: If the lists are inconsistent, or a prompt is empty.
  """

  prompts: Sequence[Tokens]  # Each [n], n >= 1; may differ within a group.
  completions: Sequence[Tokens]  # Each [n], 0 <= n <= max_tokens.
  # Shaped as the completions; False at tokens that were not sampled (tool
  # output).
  loss_masks: Sequence[Mask]
  group_size: int  # G
  max_tokens: int  # C

  def __post_init__(self):
    lists = self.prompts, self.completions, self.loss_masks
    sizes = tuple(map(len, lists))
    if len(set(sizes)) > 1:
      raise ValueError(
          '{} prompts, {} completions and {} loss masks must be equally'
          ' many.'.format(*sizes)
      )
    if self.group_size < 1 or not sizes[0] or sizes[0] % self.group_size:
      raise ValueError(
          f'{sizes[0]} sequences are not whole groups of'
          f' group_size={self.group_size}.'
      )
    for i, (p, c, m) in enumerate(zip(*lists, strict=True)):
      if len(p) == 0:
        raise ValueError(
            f'prompt {i} is empty: nothing predicts the completion.'
        )
      if len(c) != len(m):
        raise ValueError(
            f'loss mask {i} has {len(m)} entries for {len(c)} tokens.'
        )

  @property
  def lengths(self) -> list[int]:
    """Tokens of each sequence, prompt and completion."""
    pairs = zip(self.prompts, self.completions, strict=True)
    return [len(prompt) + len(completion) for prompt, completion in pairs]

  def micro_batches(self, micro_groups: int) -> list['Sequences']:
    """Split the sequences into micro-batches of `micro_groups` groups each.

    Raises:
      ValueError: If micro_groups does not divide P.
    """
    groups = len(self.prompts) // self.group_size
    if micro_groups < 1 or groups % micro_groups:
      raise ValueError(
          f'{micro_groups=} must divide the {groups} groups of the update.'
      )
    size = micro_groups * self.group_size
    lists = self.prompts, self.completions, self.loss_masks
    return [
        Sequences(
            *(x[i : i + size] for x in lists), self.group_size, self.max_tokens
        )
        for i in range(0, len(self.prompts), size)
    ]

  def pad(
      self, values: Sequence[np.ndarray], dtype: type = np.float32
  ) -> np.ndarray:
    """Right-pad one value per completion token with 0, e.g. sampler_logprobs.

    Args:
      values: P * G arrays [n], n <= C.
      dtype: Dtype of the result.

    Returns:
      dtype [P, G, C].

    Raises:
      ValueError: If an array is too long.
    """
    padded = _pad(values, self.max_tokens, dtype, 'completion')
    return padded.reshape(-1, self.group_size, self.max_tokens)


@dataclasses.dataclass(frozen=True)
class Shared:
  """The shared layout: groups with one prompt each."""

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


def share(sequences: Sequences, max_prompt_tokens: int) -> Shared | None:
  """Build the shared layout.

  Args:
    sequences: The sequences of an update.
    max_prompt_tokens: Lp.

  Returns:
    The arrays, or None if the prompts of a group differ: then use `pack`.

  Raises:
    ValueError: If something is too long.
  """
  size, prompts = sequences.group_size, sequences.prompts
  firsts = prompts[::size]
  # This layout stores a single prompt per group.
  shared = (firsts[i // size] for i in range(len(prompts)))
  if not all(map(np.array_equal, prompts, shared)):
    return None
  return Shared(
      prompts=_pad(firsts, max_prompt_tokens, np.int32, 'prompt'),
      prompt_lengths=np.array([len(p) for p in firsts], np.int32),
      completions=sequences.pad(sequences.completions, np.int32),
      loss_mask=sequences.pad(sequences.loss_masks, np.bool_),
  )


def pack(sequences: Sequences, rows: int, length: int) -> Packed:
  """Pack prompt + completion sequences into rows, first-fit decreasing.

  The result is deterministic: equally long sequences are placed in list order,
  and those that share a row are in list order within it.

  Args:
    sequences: The sequences of an update or a micro-batch.
    rows: Rows of the result, as many as `first_fit_decreasing` needs, or more.
    length: L, tokens per row.

  Returns:
    Arrays without the axis M.

  Raises:
    ValueError: If rows are too few (names the number needed), or something is
      too long.
  """
  row_of = first_fit_decreasing(sequences.lengths, length)
  needed = max(row_of) + 1
  # Not grown instead, as the number of rows is a shape of the compiled program.
  if needed > rows:
    raise ValueError(
        f'{rows=} of {length=} tokens are too few for {len(row_of)} sequences:'
        f' {needed} rows are needed.'
    )

  tokens, positions, segment_ids = np.zeros((3, rows, length), np.int32)
  used, index = [0] * rows, []  # Tokens placed in each row so far.
  # In list order, so that the layout depends on the lengths alone: a step that
  # is repeated after a kill gets the same sums, bit for bit.
  for row, prompt, completion in zip(
      row_of, sequences.prompts, sequences.completions, strict=True
  ):
    start, middle = used[row], used[row] + len(prompt)
    used[row] = stop = middle + len(completion)
    tokens[row, start:stop] = [*prompt, *completion]
    positions[row, start:stop] = np.arange(stop - start)
    segment_ids[row, start:stop] = segment_ids[row].max() + 1
    index.append(row * length + np.arange(middle, stop))
  return Packed(
      tokens=tokens,
      positions=positions,
      segment_ids=segment_ids,
      index=sequences.pad(index, np.int32),
      loss_mask=sequences.pad(sequences.loss_masks, np.bool_),
  )


def pack_micro_batches(
    sequences: Sequences, micro_groups: int, length: int, multiple: int = 1
) -> Packed:
  """Pack every `micro_groups` groups on their own, into equally many rows.

  Args:
    sequences: The sequences of an update.
    micro_groups: Groups per micro-batch; divides P.
    length: L, tokens per row.
    multiple: See `rows_needed`, which says how many rows there are.

  Returns:
    Arrays with a leading axis M = P / micro_groups, [M, rows, L] and
    [M, micro_groups, G, C]. `index` points into its own micro-batch.

  Raises:
    ValueError: If micro_groups does not divide P, or for the reasons of `pack`.
  """
  parts = sequences.micro_batches(micro_groups)
  rows = rows_needed([part.lengths for part in parts], length, multiple)
  packed = [dataclasses.astuple(pack(part, rows, length)) for part in parts]
  return Packed(*map(np.stack, zip(*packed, strict=True)))


def rows_needed(
    lengths: Sequence[Sequence[int]], length: int, multiple: int = 1
) -> int:
  """Return the number of rows that all micro-batches get.

  It determines a shape of the compiled program, so only a few numbers are used:
  see `row_counts`. All micro-batches share one shape, and hence one program.

  Args:
    lengths: Tokens of the sequences of each micro-batch.
    length: L, tokens per row.
    multiple: The result is a multiple of this, the devices that share the rows.

  Returns:
    Rows, as many as the fullest micro-batch needs, or a little more.

  Raises:
    ValueError: If a sequence is longer than a row.
  """
  rows = max(1 + max(first_fit_decreasing(part, length)) for part in lengths)
  return next(n for n in row_counts(multiple) if n >= rows)


def row_counts(multiple: int = 1) -> Iterator[int]:
  """Yield the numbers of rows that are used: 1, 2, 4, ... 16, 20, 24, 28, 32...

  After 1 they are the even numbers up to 16, and then four numbers for every
  doubling, all times `multiple`. So the number is at most a third more than is
  needed (rounded up to whole multiples), and few programs are compiled;
  compiling one takes as long as some updates.

  Args:
    multiple: A factor of all numbers.
  """
  yield from (n * multiple for n in (1, 2, 4, 6, 8))
  for power in itertools.count(1):
    yield from (n * multiple << power for n in range(5, 9))


def shapes(rows: int, multiple: int = 1) -> int:
  """Return how many numbers of rows are used if `rows` is the largest one."""
  counts = row_counts(multiple)
  return 1 + next(i for i, count in enumerate(counts) if count >= rows)


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


def first_fit_decreasing(lengths: Sequence[int], row_length: int) -> list[int]:
  """Return the row of each sequence: longest first, first row that fits.

  Raises:
    ValueError: If a sequence is longer than a row.
  """
  row_of = [0] * len(lengths)
  room = []  # Tokens left in each row.
  # `sorted` is stable: equally long sequences keep their order.
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
