"""A run whose machine changes; started by resize_test.py with 8 CPU devices.

resize_worker.py DIRECTORY

Trains in DIRECTORY/whole on 8 devices, and in DIRECTORY/moved on 8, 4, 2 and 8
of them, one step each. Evolves in DIRECTORY/evolved: the first harness on 8
devices, a round on 2. Prints one line of JSON: for each start of the run that
moved, the fingerprints that it began with and that it left.
"""

import contextlib
import json
import pathlib
import sys
from unittest import mock

import jax

import evojax
from evojax.evolve import loop
from evojax.runtime import sharding
from evojax.training import loop as training_loop
from tests import tiny

# Devices, and how many of them share parameters.
_PLACES = ((8, 4, 2), (4, 2, 1), (2, 1, 2), (8, 2, 2))


class _MachineGoneError(Exception):
  pass


def on(devices, fsdp, tensor):
  """The values of config.mesh, in a context with so many devices."""
  make = sharding.make_mesh
  some = lambda **axes: make(**axes, devices=jax.devices()[:devices])
  context = mock.patch.object(sharding, 'make_mesh', some)
  return context, dict(mesh__data=-1, mesh__fsdp=fsdp, mesh__tensor=tensor)


def main(root):
  root, seen = pathlib.Path(root), []
  policy = tiny.make_policy(root / 'policy', kv_heads=2)
  common = dict(
      grpo__prompts=8,
      grpo__group_size=2,
      grpo__micro_groups=8,
      rollout__prefill_rows=8,
      eval__every=0,
      eval__sealed=False,
  )
  run = training_loop.loop

  def watched(trainer, **hooks):
    began = trainer.learner.fingerprint()
    run(trainer, **hooks)
    seen.append((began, trainer.learner.fingerprint()))

  runs = [('whole', _PLACES[0], len(_PLACES))]
  runs += [('moved', place, n) for n, place in enumerate(_PLACES, 1)]
  for name, place, steps in runs:
    context, mesh = on(*place)
    config = tiny.make_config(policy, steps=steps, **common, **mesh)
    with context, mock.patch.object(training_loop, 'loop', watched):
      evojax.run(config, str(root / name))
  # The second start goes on where the first one broke off.
  breaks = mock.patch.object(loop, '_round', side_effect=_MachineGoneError)
  for place, broken in (
      ((8, 4, 1), breaks),
      ((2, 2, 1), contextlib.nullcontext()),
  ):
    context, mesh = on(*place)
    with context, broken, contextlib.suppress(_MachineGoneError):
      loop.run(
          tiny.evolving(
              evolve__rounds=1,
              grpo__prompts=8,
              grpo__micro_groups=8,
              rollout__prefill_rows=8,
              **mesh,
          ),
          str(root / 'evolved'),
      )
  print('fingerprints ' + json.dumps(seen[1:]), flush=True)


if __name__ == '__main__':
  main(*sys.argv[1:])
