"""How many bytes of a state each process of a run saves.

If several processes hold a shard, the one with replica 0 saves it.
"""

import collections
from collections.abc import Mapping
from typing import Any

import jax


def local(arrays: Mapping[str, Any]) -> int:
  """Return about how many bytes of jax arrays this process saves."""
  return sum(
      shard.data.nbytes
      for leaf in arrays.values()
      if isinstance(leaf, jax.Array)
      for shard in leaf.addressable_shards
      if shard.replica_id == 0
  )


def largest(arrays: Mapping[str, Any]) -> int:
  """Return about the most bytes that any process saves; equal in all processes.

  Args:
    arrays: jax arrays, and NumPy arrays, which process 0 saves.
  """
  parts = collections.Counter()
  # Parameters and moments have equal shapes and shardings.
  counts: dict[Any, collections.Counter[int]] = {}
  for leaf in arrays.values():
    if not isinstance(leaf, jax.Array):
      parts[0] += leaf.nbytes
      continue
    if (key := (leaf.sharding, leaf.shape)) not in counts:
      counts[key] = _writers(*key)
    for process, count in counts[key].items():
      parts[process] += leaf.nbytes * count // counts[key].total()
  return max(parts.values(), default=0)


def _writers(
    sharding: jax.sharding.Sharding, shape: tuple[int, ...]
) -> collections.Counter[int]:
  """Return the number of shards of an array that each process saves."""
  first = {}  # Part of the array -> process of the first device that has it.
  # `global_shards` does not work for typed keys.
  for device, index in sharding.devices_indices_map(shape).items():
    first.setdefault(repr(index), device.process_index)
  return collections.Counter(first.values())
