"""The parts of a state that the processes of a run save, in bytes.

An array that several processes hold is saved by the process of its replica 0.
"""

import collections
from collections.abc import Mapping
from typing import Any

import jax


def local(arrays: Mapping[str, Any]) -> int:
  """Return the bytes that this process saves of jax arrays, about."""
  return sum(
      shard.data.nbytes
      for leaf in arrays.values()
      if isinstance(leaf, jax.Array)
      for shard in leaf.addressable_shards
      if shard.replica_id == 0
  )


def largest(arrays: Mapping[str, Any]) -> int:
  """Return the most bytes that one process saves, about; equal in all.

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
  """Return by process how many shards of an array it saves."""
  first = {}  # Part of the array -> process of the first device that has it.
  # `global_shards` does not work for typed keys.
  for device, index in sharding.devices_indices_map(shape).items():
    first.setdefault(repr(index), device.process_index)
  return collections.Counter(first.values())
