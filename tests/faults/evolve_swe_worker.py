"""Evolves a tiny run of agents in the box twice, and kills one of the runs.

    python evolve_swe_worker.py ROOT POLICY

As evolve_worker.py: ROOT/reference is undisturbed, ROOT/killed dies at POINTS.
"""

import sys

from evojax import domains
from tests.domains.swe import scripted
from tests.faults import evolve_worker

POINTS = 'backtest', 'arm', 'race', 'final'


def main(root, policy):
  config = scripted.make_config(
      policy,
      harness__path=str(domains.folder('swe') / 'seed_harness'),
      steps=2,
      eval__problems=2,
      evolve__rounds=1,
      evolve__horizon=0,
      evolve__candidates=1,
      evolve__pairs=3,
      evolve__updates=2,
      evolve__first_updates=2,
      evolve__problems=4,
      evolve__samples=2,
      evolve__replay_updates=1,
      evolve__replay_problems=2,
      evolve__salt='pepper',
  )
  deaths = {f'{root}/reference': (), f'{root}/killed': POINTS}
  evolve_worker.play(deaths, config)


if __name__ == '__main__':
  main(*sys.argv[1:])
