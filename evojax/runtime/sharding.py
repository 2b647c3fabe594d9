"""The device mesh, and the rules that map logical axes of arrays to it.

Arrays name their axes by meaning ('batch', 'embed', 'mlp', ...); RULES says
which mesh axes split them. Mesh axes: `data` replicates parameters and splits
the batch, `fsdp` splits both, `tensor` splits heads and MLP width. `fsdp` and
`tensor` together split the vocabulary, both in embedding tables and in logits:
that way hidden states travel to the table, which is far larger than they are.
"""

from collections.abc import Sequence
import contextlib
import math
from typing import Any

import jax
from jax.experimental import multihost_utils
import numpy as np

P = jax.sharding.PartitionSpec
# An abstract mesh has no devices here; programs can be compiled for it.
AnyMesh = jax.sharding.Mesh | jax.sharding.AbstractMesh

MESH_AXES = ('data', 'fsdp', 'tensor')
RULES = {
    'batch': ('data', 'fsdp'),
    'replica': 'data',  # The batch where fsdp splits another axis.
    'vocab': ('fsdp', 'tensor'),
    'embed': 'fsdp',
    'kv_heads': 'tensor',
    'mlp': 'tensor',
    'layers': None,
    None: None,
}


def make_mesh(
    *, data: int, fsdp: int, tensor: int, devices: Sequence[Any] | None = None
) -> jax.sharding.Mesh:
  """Build the mesh over `devices`, by default all devices of all processes.

  Args:
    data: Size of the axis; -1, for one of the axes, takes the devices that are
      left.
    fsdp: As `data`.
    tensor: As `data`.
    devices: The devices of the mesh.

  Raises:
    ValueError: If the axes do not multiply to the number of devices.
  """
  devices = jax.devices() if devices is None else devices
  shape, count = [data, fsdp, tensor], len(devices)
  if -1 in shape:
    fixed = -math.prod(shape)  # The product of the other axes.
    shape[shape.index(-1)] = count // fixed if fixed > 0 else 0
  if min(shape) < 1 or math.prod(shape) != count:
    raise ValueError(
        f'config.mesh has {data=} {fsdp=} {tensor=}, which does not make'
        f' {count} devices; set --config.mesh.data=-1 to take what is left.'
    )
  return jax.make_mesh(
      tuple(shape),
      MESH_AXES,
      devices=devices,
      axis_types=(jax.sharding.AxisType.Auto,) * len(MESH_AXES),
  )


def spec(axes: Sequence[str | None]) -> jax.sharding.PartitionSpec:
  """Return the partition spec of an array whose axes are named."""
  return P(*(RULES[axis] for axis in axes))


def shardings(mesh: AnyMesh, axes: Any) -> Any:
  """Return named shardings for a tree whose leaves are tuples of axis names."""
  # The axes of one array, and not a tuple of arrays.
  named = lambda node: isinstance(node, tuple) and all(
      isinstance(axis, str | None) for axis in node
  )
  place = lambda leaf: jax.sharding.NamedSharding(mesh, spec(leaf))
  return jax.tree.map(place, axes, is_leaf=named)


def replicated(mesh: AnyMesh) -> jax.sharding.NamedSharding:
  """Return the sharding of an array that every device holds whole."""
  return jax.sharding.NamedSharding(mesh, P())


def batch_shards(mesh: AnyMesh) -> int:
  """Return over how many devices the mesh splits a batch."""
  return math.prod(mesh.shape[axis] for axis in RULES['batch'])


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
  """Pin the layout of an activation; a no-op outside a mesh context."""
  # One device needs no layout, and constraints would only slow its compiler.
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or math.prod(mesh.axis_sizes) == 1:
    return x
  return jax.lax.with_sharding_constraint(x, spec(axes))


def per_replica(rank: int) -> tuple[str | None, ...]:
  """Return axes of a batch [B, ...] that only `data` splits; () for rank 0."""
  return ('replica', *(None,) * (rank - 1))[:rank]


def use(mesh: jax.sharding.Mesh) -> contextlib.AbstractContextManager[Any]:
  """Return a context in which `constrain` knows the mesh."""
  return jax.set_mesh(mesh)


def placed(shapes: Any, shardings: Any) -> Any:
  """Return the shapes of arrays that say where each would lie."""
  return jax.tree.map(
      lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
      shapes,
      jax.tree.broadcast(shardings, shapes),
  )


def to_device(tree: Any, sharding: Any) -> Any:
  """Place host arrays that are equal in every process on the mesh.

  The transfer is explicit, so that `jax_transfer_guard = disallow` can stay on
  around a step.
  """

  def place(x, s):
    x = np.asarray(x)
    # The guard takes transfers by callback for implicit ones.
    with jax.transfer_guard('allow'):
      return jax.make_array_from_callback(x.shape, s, lambda index: x[index])

  if jax.process_count() == 1:
    return jax.device_put(tree, sharding)
  return jax.tree.map(place, tree, jax.tree.broadcast(sharding, tree))


def to_host(tree: Any) -> Any:
  """Copy arrays to the host, whole, in every process."""
  if jax.process_count() == 1:
    return jax.device_get(tree)
  with jax.transfer_guard('allow'):
    return multihost_utils.process_allgather(tree, tiled=True)


def all_gather(data: bytes) -> list[bytes]:
  """Return what every process gave, in their order; all must call it."""
  if jax.process_count() == 1:
    return [data]
  # Sizes travel first: all processes must pass arrays of one shape.
  sizes = _stack(np.array(len(data), np.int64))
  padded = np.zeros(int(sizes.max()), np.uint8)
  padded[: len(data)] = np.frombuffer(data, np.uint8)
  rows = _stack(padded)
  return [row[:n].tobytes() for row, n in zip(rows, sizes, strict=True)]


def _stack(x: np.ndarray) -> np.ndarray:
  """Return a host array of every process, stacked."""
  with jax.transfer_guard('allow'):
    return np.asarray(multihost_utils.process_allgather(x))


def in_any_process(flag: bool) -> bool:
  """Return whether a flag is set in one of the processes; all must ask."""
  return bool(np.any(to_host(np.array([flag]))))


def is_primary() -> bool:
  """Tell if this is process 0, which owns the run's directory.

  No device is touched where there is only one process.
  """
  return not jax.distributed.is_initialized() or jax.process_index() == 0


def broadcast(tree: Any) -> Any:
  """Return process 0's host arrays in every process."""
  if jax.process_count() == 1:
    return tree
  with jax.transfer_guard('allow'):
    return multihost_utils.broadcast_one_to_all(tree)
