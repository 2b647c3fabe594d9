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
  summary = loop.run(tiny.evolving(evolve__rounds=1, mesh__data=2), workdir)
  print(f'head {summary["ledger_head"]}', flush=True)


if __name__ == '__main__':
  main(*sys.argv[1:])
