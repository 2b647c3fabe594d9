"""The device mesh, and the rules that map logical axes of arrays to it.

The axes of arrays have logical names ('batch', 'embed', 'mlp', ...); RULES maps
them to the mesh axes that split them. Mesh axes: `slice` and `data` replicate
parameters and split the batch, `fsdp` splits both, `tensor` splits heads and
MLP width. The network between slices of TPUs is far slower than the links
within a slice; therefore an update sends only gradients and scalars across
`slice`, see `per_slice`. `fsdp` and `tensor` together split the vocabulary, in
embedding tables and in logits: hidden states are sent to the devices that hold
the table, since the table is far larger.
"""

from collections.abc import Callable, Sequence
import contextlib
import math
from typing import Any

import jax
from jax.experimental import multihost_utils
import numpy as np

from evojax.runtime import devices as devices_lib
from evojax.runtime import waits

P = jax.sharding.PartitionSpec
# An abstract mesh has no devices on this machine, but programs can be compiled
# for it.
AnyMesh = jax.sharding.Mesh | jax.sharding.AbstractMesh

MESH_AXES = ('slice', 'data', 'fsdp', 'tensor')
RULES = {
    'batch': ('slice', 'data', 'fsdp'),
    # The batch of an array in which fsdp splits another axis.
    'replica': ('slice', 'data'),
    'row': ('data', 'fsdp'),  # A batch that every slice holds completely.
    'vocab': ('fsdp', 'tensor'),
    'embed': 'fsdp',
    'kv_heads': 'tensor',
    'mlp': 'tensor',
    'layers': None,
    None: None,
}


def make_mesh(
    *,
    data: int,
    fsdp: int,
    tensor: int,
    slice: int = 1,
    devices: Sequence[Any] | None = None,
) -> jax.sharding.Mesh:
  """Build the mesh over `devices`, by default all devices of all processes.

  Args:
    data: Size of the axis; -1, for one of the axes, uses all remaining devices.
    fsdp: As `data`.
    tensor: As `data`.
    slice: As `data`; the number of TPU slices. Devices other than TPUs are
      divided, in order, into this many parts; a part is one or more machines.
    devices: The devices of the mesh.

  Raises:
    ValueError: If the product of the axes is not the number of devices, or if
      the devices belong to another number of slices.
  """
  devices = devices_lib.open_all() if devices is None else devices
  shape, count = [slice, data, fsdp, tensor], len(devices)
  if -1 in shape:
    fixed = -math.prod(shape)  # The product of the other axes.
    shape[shape.index(-1)] = count // fixed if fixed > 0 else 0
  if min(shape) < 1 or math.prod(shape) != count:
    raise ValueError(
        f'config.mesh has {data=} {fsdp=} {tensor=} {slice=}, which does not'
        f' make {count} devices; set --config.mesh.data=-1 to take what is'
        ' left.'
    )
  types = (jax.sharding.AxisType.Auto,) * len(MESH_AXES)
  slices = _slices(devices, shape[0])
  if len(slices) == 1:
    return jax.make_mesh(
        tuple(shape), MESH_AXES, devices=devices, axis_types=types
    )
  # Order the devices of each slice by that slice's own topology.
  within = [
      jax.make_mesh(
          (1, *shape[1:]), MESH_AXES, devices=each, axis_types=types
      ).devices
      for each in slices
  ]
  return jax.sharding.Mesh(np.concatenate(within), MESH_AXES, axis_types=types)


def _slices(devices: Sequence[Any], count: int) -> list[list[Any]]:
  """Return the devices of each slice, in the order of the slices.

  Raises:
    ValueError: If TPUs belong to another number of slices, or if the slices
      differ in size.
  """
  found: dict[int, list[Any]] = {}
  for device in devices:
    found.setdefault(getattr(device, 'slice_index', 0) or 0, []).append(device)
  if len(found) > 1 and len(found) != count:
    raise ValueError(
        f'config.mesh has slice={count}, but the devices lie in'
        f' {len(found)} slices: set --config.mesh.slice={len(found)}'
    )
  if len(found) == 1:
    return [list(part) for part in np.split(np.asarray(devices), count)]
  sizes = sorted({len(each) for each in found.values()})
  if len(sizes) > 1:
    raise ValueError(f'the slices have {sizes} devices; use slices of one size')
  return [found[index] for index in sorted(found)]


def spec(axes: Sequence[str | None]) -> jax.sharding.PartitionSpec:
  """Return the partition spec of an array with these logical axes."""
  return P(*(RULES[axis] for axis in axes))


def shardings(mesh: AnyMesh, axes: Any) -> Any:
  """Return named shardings for a tree whose leaves are tuples of axis names."""
  # True for the axis names of one array, False for a tuple of arrays.
  named = lambda node: isinstance(node, tuple) and all(
      isinstance(axis, str | None) for axis in node
  )
  place = lambda leaf: jax.sharding.NamedSharding(mesh, spec(leaf))
  return jax.tree.map(place, axes, is_leaf=named)


def replicated(mesh: AnyMesh) -> jax.sharding.NamedSharding:
  """Return the sharding of an array that every device holds completely."""
  return jax.sharding.NamedSharding(mesh, P())


def batch_shards(mesh: AnyMesh) -> int:
  """Return the number of parts into which the mesh splits a batch."""
  return math.prod(mesh.shape[axis] for axis in RULES['batch'])


def replicas(mesh: AnyMesh) -> int:
  """Return the number of copies of the parameters on the mesh."""
  return math.prod(mesh.shape[axis] for axis in RULES['replica'])


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
  """Constrain an activation's layout; a no-op outside a mesh context."""
  # On one device, constraints would only slow the compiler.
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or math.prod(mesh.axis_sizes) == 1:
    return x
  layout = spec(axes)
  if manual := mesh.manual_axes:  # Inside `per_slice`, x is one slice's part.
    within = lambda part: tuple(a for a in part if a not in manual)
    layout = P(*(within(p) if isinstance(p, tuple) else p for p in layout))
  return jax.lax.with_sharding_constraint(x, layout)


def per_slice(
    function: Callable[..., Any],
    mesh: AnyMesh,
    arguments: tuple[Any, ...],
    results: Any,
) -> Callable[..., Any]:
  """Return a function that runs in every slice on that slice's arrays.

  Data crosses slices only in sums of the function over the axis `slice`. Within
  a slice, the compiler partitions arrays as elsewhere.

  Args:
    function: Function of arrays; it is returned unchanged if the mesh has one
      slice.
    mesh: The mesh; call the result within `use(mesh)`.
    arguments: For each argument a tree of partition specs, or one spec for all
      its leaves. A spec names 'slice' or no axis.
    results: Partition specs of the results, in the same form.
  """
  if mesh.shape['slice'] == 1:
    return function
  return jax.shard_map(
      function,
      mesh=mesh,
      in_specs=arguments,
      out_specs=results,
      axis_names={'slice'},
      check_vma=False,
  )


def per_device(
    function: Callable[..., Any],
    arguments: Sequence[tuple[str | None, ...]],
    result: tuple[str | None, ...],
) -> Callable[..., Any]:
  """Return a function that runs on every device on that device's parts.

  Args:
    function: Function of arrays; it is returned unchanged outside a mesh
      context, or if the mesh is one device.
    arguments: Logical axes of each argument.
    result: Logical axes of the result.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or math.prod(mesh.axis_sizes) == 1:
    return function
  return jax.shard_map(
      function,
      mesh=mesh,
      in_specs=tuple(map(spec, arguments)),
      out_specs=spec(result),
      check_vma=False,
  )


def per_replica(rank: int) -> tuple[str | None, ...]:
  """Return the axes of a batch [B, ...] split by 'replica'; () for rank 0."""
  return ('replica', *(None,) * (rank - 1))[:rank]


def use(mesh: jax.sharding.Mesh) -> contextlib.AbstractContextManager[Any]:
  """Return a context in which `constrain` applies to this mesh."""
  return jax.set_mesh(mesh)


def placed(shapes: Any, shardings: Any) -> Any:
  """Return a tree of ShapeDtypeStructs with their shardings."""
  return jax.tree.map(
      lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
      shapes,
      jax.tree.broadcast(shardings, shapes),
  )


def to_device(tree: Any, sharding: Any) -> Any:
  """Copy host arrays, which are equal in every process, to the mesh.

  The transfer is explicit, so that `jax_transfer_guard = disallow` can stay on
  around a step.
  """

  def place(x, s):
    x = np.asarray(x)
    # The guard would treat transfers by callback as implicit ones.
    with jax.transfer_guard('allow'):
      return jax.make_array_from_callback(x.shape, s, lambda index: x[index])

  if jax.process_count() == 1:
    return jax.device_put(tree, sharding)
  return jax.tree.map(place, tree, jax.tree.broadcast(sharding, tree))


def to_host(tree: Any) -> Any:
  """Copy complete arrays to the host in every process; all must call it."""
  if jax.process_count() == 1:
    return jax.device_get(tree)
  with jax.transfer_guard('allow'), waits.at('all-gather'):
    return multihost_utils.process_allgather(tree, tiled=True)


def all_gather(data: bytes) -> list[bytes]:
  """Return the data of all processes, by process; all must call it."""
  if jax.process_count() == 1:
    return [data]
  # Sizes are sent first: all processes must pass arrays of equal shape.
  sizes = _stack(np.array(len(data), np.int64))
  # Each length compiles a program, so it is rounded up to a power of two.
  length = 1 << (int(sizes.max()) - 1).bit_length() if sizes.max() else 0
  padded = np.zeros(length, np.uint8)
  padded[: len(data)] = np.frombuffer(data, np.uint8)
  rows = _stack(padded)
  return [row[:n].tobytes() for row, n in zip(rows, sizes, strict=True)]


def _stack(x: np.ndarray) -> np.ndarray:
  """Return the stacked host arrays of all processes."""
  with jax.transfer_guard('allow'), waits.at('all-gather'):
    return np.asarray(multihost_utils.process_allgather(x))


def in_any_process(flag: bool) -> bool:
  """Return True if the flag is set in any process; all must call it."""
  return bool(np.any(to_host(np.array([flag]))))


def largest(value: float, mesh: jax.sharding.Mesh) -> float:
  """Return the largest value of the mesh's processes; all must call it.

  If the mesh is on this process's devices alone, no other process takes part.
  """
  if not mesh.is_multi_process:
    return value
  return float(to_host(np.array([value])).max())


def is_primary() -> bool:
  """Return True in process 0, which owns the run's directory.

  If there is only one process, this touches no device.
  """
  return not jax.distributed.is_initialized() or jax.process_index() == 0


def broadcast(tree: Any) -> Any:
  """Return process 0's host arrays in every process; all must call it."""
  if jax.process_count() == 1:
    return tree
  with jax.transfer_guard('allow'), waits.at('broadcast'):
    return multihost_utils.broadcast_one_to_all(tree)
