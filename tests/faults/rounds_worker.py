"""Evolves in pairs of processes, with and without a shared directory.

    python rounds_worker.py ROOT

Like hosts_worker.py, with rounds: ROOT/whole is an undisturbed run of a pair in
a shared directory, objects://bucket/run one whose processes have a disk each.
It dies at DEATHS, each time in a pair of its own, and goes on in the next pair.
"""

import functools
import pathlib
import sys

from scipy import stats  # noqa: F401

from evojax.eval import race
from evojax.evolve import learning
from evojax.evolve import loop  # noqa: F401
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
# Pair -> the process that dies, and how it is told to: process 1 in an arm,
# while process 0 lives on, and process 0 before the row of a race.
DEATHS = dict(
    left=(1, functools.partial(evolve_worker.prepare_death, 'arm')),
    raced=(0, functools.partial(evolve_worker.prepare_death, 'race')),
)


def main(root):
  # Every candidate is kept and has a shadow, whatever two updates teach.
  race.is_hopeful = lambda *_: True  # None is given up after half its pairs.
  race.passed = lambda standings, thresholds: sorted(standings)
  verify._perturbed = lambda *_: None
  learning.could_catch_up = lambda *_: True
  for workdir in (f'{root}/whole', hosts_worker.URL):
    evolve_worker.leave(workdir)
  names = 'whole', *DEATHS, 'end'
  hosts_worker.play(pathlib.Path(root), FLAGS, DEATHS, names)


if __name__ == '__main__':
  main(*sys.argv[1:])
