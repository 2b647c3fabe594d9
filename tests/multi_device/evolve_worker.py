"""One of two processes of a run that evolves; started by evolve_test.py.

evolve_worker.py WORKDIR PROCESS PORT
"""

import sys

import jax

from evojax.evolve import loop
from tests import tiny


def main(workdir, process, port):
  jax.distributed.initialize(
      f'localhost:{port}', num_processes=2, process_id=int(process)
  )
  # The mean of arms is computed by both processes together.
  options = dict(evolve__rounds=1, evolve__policy='mean', mesh__data=2)
  summary = loop.run(tiny.evolving(**options), workdir)
  print(f'head {summary["ledger_head"]}', flush=True)


if __name__ == '__main__':
  main(*sys.argv[1:])
