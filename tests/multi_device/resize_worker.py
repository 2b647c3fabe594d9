"""A run whose machine changes; started by resize_test.py with 8 CPU devices.

resize_worker.py DIRECTORY

Trains in DIRECTORY/whole on 8 devices, and in DIRECTORY/moved on 8, 4, 2 and 8
of them, one step each. Evolves in DIRECTORY/evolved: the first harness on 8
devices, a round on 2. The config of a run, and with it the mesh that it asks
for, stays the same. Prints one line of JSON: for each start of the run that
moved, the fingerprints that it began with and that it left.
"""

import contextlib
import functools
import json
import pathlib
import sys
from unittest import mock

import jax

import evojax
from evojax.evolve import loop
from evojax.training import loop as training_loop
from evojax.training import meshes
from tests import tiny

_DEVICES = 8, 4, 2, 8


class _MachineGoneError(Exception):
  pass


def on(count):
  """A context in which there are so many devices."""
  some = functools.partial(meshes.open_mesh, devices=jax.devices()[:count])
  return mock.patch.object(meshes, 'open_mesh', some)


def main(root):
  root, seen = pathlib.Path(root), []
  policy = tiny.make_policy(root / 'policy', kv_heads=2)
  common = dict(
      grpo__prompts=8,
      grpo__group_size=2,
      grpo__micro_groups=8,
      rollout__prefill_rows=8,
      mesh__fsdp=4,
      mesh__tensor=2,
      eval__every=0,
      eval__sealed=False,
  )
  run = training_loop.loop

  def watched(trainer, **hooks):
    began = trainer.learner.fingerprint()
    run(trainer, **hooks)
    seen.append((began, trainer.learner.fingerprint()))

  runs = [('whole', _DEVICES[0], len(_DEVICES))]
  runs += [('moved', count, n) for n, count in enumerate(_DEVICES, 1)]
  for name, count, steps in runs:
    config = tiny.make_config(policy, steps=steps, **common)
    with on(count), mock.patch.object(training_loop, 'loop', watched):
      evojax.run(config, str(root / name))
  try:  # A first start keeps to the mesh that the config writes.
    with on(_DEVICES[1]):
      evojax.run(tiny.make_config(policy, **common), str(root / 'refused'))
  except ValueError as error:
    print(f'refused: {error}')
  # The second start goes on where the first one broke off.
  breaks = mock.patch.object(loop, '_round', side_effect=_MachineGoneError)
  for count, broken in ((8, breaks), (2, contextlib.nullcontext())):
    with on(count), broken, contextlib.suppress(_MachineGoneError):
      loop.run(
          tiny.evolving(
              evolve__rounds=1,
              grpo__prompts=8,
              grpo__micro_groups=8,
              rollout__prefill_rows=8,
              mesh__data=2,
              mesh__fsdp=4,
          ),
          str(root / 'evolved'),
      )
  print('fingerprints ' + json.dumps(seen[1:]), flush=True)


if __name__ == '__main__':
  main(*sys.argv[1:])
