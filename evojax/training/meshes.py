"""The mesh of a run: that of its config, or the nearest one for the devices.

A run may continue on a machine with more or fewer devices than its config names
(`config.mesh`), by the same command. The mesh is then chosen in this order: the
parameters are split into as many parts as the config asks for, or else as many
as possible, so that the share of a device stays small; `tensor`, `fsdp` and
`slice` change as little as possible; `data` takes the rest. The same config on
the same devices always gets the same mesh.

If the config sets a size above 1, a new run takes no other mesh: an error names
the nearest one. A run that is continued takes the nearest one by itself. No
other mesh than the config's is taken if a device may then lack memory.
"""

from collections.abc import Iterator, Mapping, Sequence
import math
from typing import Any

import jax
import ml_collections

from evojax.models import policy as policy_lib
from evojax.runtime import config_checks
from evojax.runtime import decisions
from evojax.runtime import devices as devices_lib
from evojax.runtime import output
from evojax.runtime import peers
from evojax.runtime import sharding
from evojax.training import agreement
from evojax.training import memory
from evojax.training import setup as setup_lib


def open_run(
    setup: setup_lib.Setup, *, begins: bool = False, trains: bool = True
) -> jax.sharding.Mesh:
  """Open the devices of a run; return their mesh once the run may use it.

  All processes call it. From here on, the run ends if it makes no progress for
  long, see `peers`.

  Args:
    setup: Setup of the run.
    begins: As for `accept`.
    trains: As for `accept`.

  Raises:
    ValueError: If the processes have different inputs, see `agreement`, or the
      mesh is refused, see `open_mesh` and `accept`.
  """
  mesh = open_mesh(setup.config, setup.policy)
  agreement.check(setup)
  accept(setup.config, setup.policy, mesh, begins=begins, trains=trains)
  peers.watch_alone(mesh.size)
  return mesh


def open_mesh(
    config: ml_collections.ConfigDict,
    policy: policy_lib.Policy,
    devices: Sequence[Any] | None = None,
) -> jax.sharding.Mesh:
  """Build the mesh of a run over all devices; touches them.

  Args:
    config: A valid config, in which a size of the mesh may be -1 (the rest).
    policy: The policy of the config.
    devices: The devices of the mesh; default: those of all processes.

  Raises:
    ValueError: If the run can be split over no mesh of so many devices.
  """
  devices = devices_lib.open_all() if devices is None else devices
  sizes = fitting(config, policy, len(devices), slices_of(devices))
  return sharding.make_mesh(**sizes, devices=devices)


def accept(
    config: ml_collections.ConfigDict,
    policy: policy_lib.Policy,
    mesh: jax.sharding.Mesh,
    *,
    begins: bool = False,
    trains: bool = True,
) -> None:
  """Refuse or announce another mesh than the config's; all processes call it.

  Args:
    config: As for `open_mesh`.
    policy: As for `open_mesh`.
    mesh: The result of `open_mesh`.
    begins: Whether this is the first start of a run; the value of process 0
      counts. A first start does not replace a mesh of which the config sets a
      size above 1.
    trains: Whether the run updates parameters, or only samples.

  Raises:
    ValueError: If the mesh is not that of the config, and either a device may
      have too little memory for the run, or `begins` forbids it. The message
      gives the estimate of `--mode=plan`, the memory, and the remedies.
  """
  asked, sizes = config.mesh.to_dict(), dict(mesh.shape)
  if all(asked[axis] in (-1, size) for axis, size in sizes.items()):
    return
  run = memory.Run(config, policy, mesh)
  # Only a process's own devices report their memory. Process 0 decides, so that
  # no other process waits for one that has refused.
  reason = decisions.decide(
      lambda: refusal(
          run,
          devices_lib.memory_bytes(mesh.local_devices),
          begins=begins,
          trains=trains,
      )
  )
  if reason:
    raise ValueError(reason)
  if sharding.is_primary():
    output.say(
        f'mesh: {_text(sizes)}, since config.mesh asks for {_text(asked)}'
        f' and there are {mesh.size} devices'
    )


def refusal(
    run: memory.Run, limit: int | None, *, begins: bool, trains: bool
) -> str:
  """Return why a run may not take another mesh than its config's; else ''.

  Args:
    run: The run on that mesh.
    limit: Bytes that programs may use on each device; None if unknown.
    begins: As for `accept`.
    trains: As for `accept`.
  """
  asked, sizes = run.config.mesh.to_dict(), run.mesh.shape
  need = memory.peak(run, trains=trains)
  large = limit is not None and need > limit
  if not large and not (begins and max(asked.values()) > 1):
    return ''
  flags = ' '.join(
      f'--config.mesh.{axis}={size}'
      for axis, size in sizes.items()
      if asked[axis] not in (-1, size)
  )
  others = math.prod(asked.values())
  elsewhere = f'start on {others} devices, or ' if others > 0 else ''
  reason = (
      f'config.mesh asks for {_text(asked)}, and there are {run.mesh.size}'
      f' devices; the nearest mesh for them is {_text(sizes)}, on which a'
      f' device needs up to {need / 2**30:.2f} GiB by the estimate of'
      ' --mode=plan'
  )
  if large:
    return (
        f'{reason} and has {limit / 2**30:.2f} GiB: {elsewhere}change values'
        f' that --mode=plan {flags} names. To start in spite of the estimate,'
        f' add {flags}'
    )
  return (
      f'{reason}. Only a run that has begun takes another mesh by itself:'
      f' {elsewhere}add {flags}'
  )


def slices_of(devices: Sequence[Any]) -> int:
  """Return the number of TPU slices in which devices lie; 1 for others."""
  return len({getattr(d, 'slice_index', 0) or 0 for d in devices})


def fitting(
    config: ml_collections.ConfigDict,
    policy: policy_lib.Policy,
    count: int,
    slices: int = 1,
) -> dict[str, int]:
  """Return the sizes of the mesh of a run on `count` devices, by axis.

  Args:
    config: As for `open_mesh`.
    policy: As for `open_mesh`.
    count: The number of devices.
    slices: The number of TPU slices in which they lie.

  Raises:
    ValueError: If the run can be split over no mesh of `count` devices. The
      message says why the nearest one does not fit, and what would.
  """
  asked = _asked(config, count)
  for sizes in _nearest(asked, count, slices):
    if not _reason(config, policy, sizes):
      return sizes
  nearest = next(_nearest(asked, count, slices), None)
  if nearest is None:
    raise ValueError(
        f'config.mesh: {count} devices cannot be divided among {slices} slices'
        ' of TPUs; use slices of one size'
    )
  fewer = (
      n
      for n in range(count - 1, 0, -1)
      if any(not _reason(config, policy, s) for s in _nearest(asked, n, 1))
  )
  others = {next(fewer, 0)} | {math.prod(config.mesh.values())}
  counts = ' or '.join(str(n) for n in sorted(others) if n > 0)
  raise ValueError(
      f'config.mesh asks for {_text(config.mesh.to_dict())}, and there are'
      f' {count} devices, over which no mesh splits this run: start it on'
      f' {counts} devices, or change the config. With {_text(nearest)},'
      f' {_reason(config, policy, nearest)}'
  )


def all_sizes(count: int) -> list[tuple[int, int, int]]:
  """Return all meshes (data, fsdp, tensor) of a number of devices."""
  divisors = [n for n in range(1, count + 1) if count % n == 0]
  return [
      (count // (f * t), f, t)
      for f in divisors
      for t in divisors
      if count % (f * t) == 0
  ]


def _text(sizes: Mapping[str, int]) -> str:
  """Return 'data=1 fsdp=4 tensor=2', without the size of a single slice."""
  return ' '.join(
      f'{axis}={sizes[axis]}'
      for axis in sharding.MESH_AXES
      if (axis, sizes[axis]) != ('slice', 1)
  )


def _asked(config: ml_collections.ConfigDict, count: int) -> dict[str, int]:
  """Return the sizes that a config asks for, with its -1 resolved."""
  sizes = config.mesh.to_dict()
  rest = max(1, count // abs(math.prod(sizes.values())))
  return {axis: rest if n == -1 else n for axis, n in sizes.items()}


def _nearest(
    asked: Mapping[str, int], count: int, slices: int
) -> Iterator[dict[str, int]]:
  """Yield the sizes of all meshes of `count` devices, the nearest first."""
  # On one slice of TPUs, and on other devices, `slice` divides a machine's
  # devices only as far as the config asks for it.
  allowed = (slices,) if slices > 1 else range(1, asked['slice'] + 1)
  found = [
      dict(slice=parts, data=data, fsdp=fsdp, tensor=tensor)
      for parts in allowed
      if count % parts == 0
      for data, fsdp, tensor in all_sizes(count // parts)
  ]
  wanted = asked['fsdp'] * asked['tensor']

  def distance(sizes: Mapping[str, int]) -> tuple[Any, ...]:
    larger = max(1.0, wanted / (sizes['fsdp'] * sizes['tensor']))
    moved = [
        (abs(math.log(sizes[axis] / asked[axis])), sizes[axis])
        for axis in ('tensor', 'fsdp', 'slice')
    ]
    return larger, *moved

  yield from sorted(found, key=distance)


def _reason(
    config: ml_collections.ConfigDict,
    policy: policy_lib.Policy,
    sizes: Mapping[str, int],
) -> str:
  """Return why a run cannot be split over a mesh; '' if it can."""
  try:
    config_checks.check_mesh(config, sizes)
    policy_lib.check_shards(
        policy.path, policy.cfg, sizes['fsdp'], sizes['tensor']
    )
  except ValueError as error:
    return str(error)
  return ''
