"""Evolves in two pairs of processes, one of them without a shared directory.

    python rounds_worker.py ROOT

Like hosts_worker.py, with rounds and without kills: ROOT/whole is a run of a
pair in a shared directory, objects://bucket/run one whose processes have a disk
each.
"""

import pathlib
import sys

from scipy import stats  # noqa: F401

from evojax.eval import race
from evojax.evolve import loop  # noqa: F401
from evojax.evolve.steps import shadow
from evojax.evolve.steps import verify
from tests.faults import evolve_worker
from tests.faults import hosts_worker

FLAGS = (
    '--mode=evolve',
    '--config=tests/tiny.py:evolving',
    '--config.evolve.rounds=2',
    # Both processes compute the mean of arms together.
    '--config.evolve.policy=mean',
    '--config.mesh.data=1',
    '--config.mesh.fsdp=2',
)


def main(root):
  # Every candidate is kept and has a shadow, whatever two updates teach.
  race.passed = lambda standings, alphas: sorted(standings)
  verify._perturbed = lambda *_: None
  shadow._could_catch_up = lambda *_: True
  for workdir in (f'{root}/whole', hosts_worker.URL):
    evolve_worker.leave(workdir)
  hosts_worker.play(pathlib.Path(root), FLAGS, {}, ('whole', 'end'))


if __name__ == '__main__':
  main(*sys.argv[1:])
