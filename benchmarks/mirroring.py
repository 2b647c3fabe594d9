"""Times the uploads of a run with many arms to an in-memory object store.

    python -m benchmarks.mirroring [--arms=400]

Each arm leaves 12 files and a row of the ledger, and changes a file of metrics.
The run publishes twice, as after an arm and after its row, and then declares
that the arm will not change, as after a round. For each quarter of the arms it
prints, per arm, the bytes of lists of files, the requests, and the CPU time
(without that of listing objects, which the test's store spends).
"""

import os
import pathlib
import tempfile
import time

from absl import app
from absl import flags

from evojax.runtime import mirror
from evojax.runtime import storage
from tests import objects

_ARMS = flags.DEFINE_integer('arms', 400, 'Arms of the run.', lower_bound=4)
_FILES = 12
_ROW = b'{"payload": "' + b'x' * 2000 + b'"}\n'
# A quarter may send this many times the bytes of the first: bases of the list
# are written at doubling sizes.
_MOST_GROWTH = 3


def main(_):
  with tempfile.TemporaryDirectory() as folder:
    os.environ |= objects.make(pathlib.Path(folder))
    sent, write = [], storage.Store._write
    listing, list_objects = [], storage.Store.list

    def counted(store, function, path, data, **kwargs):
      if '.files' in path:
        sent.append(len(data))
      return write(store, function, path, data, **kwargs)

    def timed(store, *args):
      began = time.process_time()
      found = list_objects(store, *args)
      listing.append(time.process_time() - began)
      return found

    storage.Store._write, storage.Store.list = counted, timed
    with mirror.opened('objects://bucket/run') as path:
      root, found = pathlib.Path(path), mirror.of(path)
      found.begin()
      root.mkdir(exist_ok=True)
      found.keep()
      seconds, size = [], []
      for quarter in range(4):
        sent.clear()
        listing.clear()
        calls, began = objects.ObjectStore.calls, time.process_time()
        for number in range(_ARMS.value // 4):
          arm = root / f'arms/round-{quarter}-{number:05d}'
          arm.mkdir(parents=True)
          for i in range(_FILES):
            (arm / f'file_{i:02d}.json').write_bytes(b'x')
          with (root / 'metrics.jsonl').open('ab') as file:
            file.write(b'x\n')
          found.publish()
          with (root / 'ledger.jsonl').open('ab') as file:
            file.write(_ROW)
          found.publish()
          found.settle(arm)
        count = _ARMS.value // 4
        used = time.process_time() - began - sum(listing)
        seconds.append(used / count)
        size.append(sum(sent) / count)
        calls = (objects.ObjectStore.calls - calls) / count
        print(
            f'quarter {quarter + 1}: {size[-1]:,.0f} bytes of lists,'
            f' {calls:.1f} requests, {1e3 * seconds[-1]:.1f} ms CPU per arm',
            flush=True,
        )
  return int(max(size) > _MOST_GROWTH * size[0])


if __name__ == '__main__':
  app.run(main)
