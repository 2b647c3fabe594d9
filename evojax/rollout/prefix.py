"""A radix tree of the prompt chunks that the prefix cache holds.

The tree is on the host; the keys and values are in `slots.Slots`. A node stands
for one chunk of C tokens that follows all the chunks above it. Its keys and
values depend on those chunks and on the weights, so the tree is emptied when
the weights change.
"""

from collections.abc import Iterator, Sequence
import dataclasses

Chunk = tuple[int, ...]


@dataclasses.dataclass
class _Node:
  place: int  # Index of its keys and values in the pool.
  parent: '_Node | None'
  chunk: Chunk
  used: int  # Value of the tree's clock when it was last used.
  children: 'dict[Chunk, _Node]' = dataclasses.field(default_factory=dict)


class PrefixTree:
  """The chunks of the pool; the least recently used are evicted first."""

  def __init__(self, places: int, chunk: int):
    """Make an empty tree.

    Args:
      places: Number of chunks that the pool can hold.
      chunk: C, number of tokens of a chunk.
    """
    self.places = places
    self.chunk = chunk
    self.clear()

  def clear(self) -> None:
    """Remove all chunks."""
    self._root = _Node(-1, None, (), 0)
    self._free = list(range(self.places))[::-1]
    self._leaves: dict[int, _Node] = {}  # Nodes without children, by place.
    self._clock = 0

  def __len__(self) -> int:
    """Return the number of tokens in the tree."""
    return (self.places - len(self._free)) * self.chunk

  def match(self, tokens: Sequence[int]) -> list[int]:
    """Return the places of the longest cached prefix of whole chunks.

    The last token is never part of it: it must be computed, because the cache
    does not hold its logits.
    """
    self._clock += 1
    node, places = self._root, []
    for chunk in self._chunks(tokens):
      node = node.children.get(chunk)
      if node is None:
        break
      node.used = self._clock
      places.append(node.place)
    return places

  def insert(
      self, prompts: Sequence[Sequence[int]]
  ) -> list[tuple[int, int, int]]:
    """Insert the whole chunks of some prompts.

    Returns:
      (index of the prompt, index of the chunk in it, place) of each new chunk;
      the caller copies its keys and values to that place. The places are
      distinct, so all chunks can be copied at once.
    """
    # All prompts share one time, so that none evicts a chunk of another.
    self._clock += 1
    return [
        (number, *new)
        for number, tokens in enumerate(prompts)
        for new in self._insert(tokens)
    ]

  def _insert(self, tokens: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Insert the chunks of a prompt; yield (index, place) of the new ones."""
    node = self._root
    for index, chunk in enumerate(self._chunks(tokens)):
      child = node.children.get(chunk)
      if child is None:
        node.used = self._clock
        if not self._free and not self._evict(keep=self._clock):
          break
        child = _Node(self._free.pop(), node, chunk, self._clock)
        node.children[chunk] = child
        self._leaves.pop(node.place, None)
        self._leaves[child.place] = child
        yield index, child.place
      child.used = self._clock
      node = child

  def _chunks(self, tokens: Sequence[int]) -> list[Chunk]:
    whole = (len(tokens) - 1) // self.chunk
    size = self.chunk
    return [tuple(tokens[i * size : (i + 1) * size]) for i in range(whole)]

  def _evict(self, keep: int) -> bool:
    """Free the least recently used leaf that is older than `keep`."""
    oldest = min(self._leaves.values(), key=lambda n: n.used, default=None)
    if oldest is None or oldest.used >= keep:
      return False
    del self._leaves[oldest.place]
    del oldest.parent.children[oldest.chunk]
    self._free.append(oldest.place)
    parent = oldest.parent
    if parent is not self._root and not parent.children:
      self._leaves[parent.place] = parent
    return True
