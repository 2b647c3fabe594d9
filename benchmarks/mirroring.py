"""Times the uploads of a run with many arms to an object store, in memory.

    python -m benchmarks.mirroring [--arms=1000]

Each arm leaves 12 files and a row of the ledger, and changes a file of metrics;
the run publishes twice, as after an arm and after its row. It prints per arm,
for each quarter of the arms: the bytes sent besides the files, the requests,
and the CPU time.
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

_ARMS = flags.DEFINE_integer('arms', 1000, 'Arms of the run.', lower_bound=4)
_FILES = 12
_ROW = b'{"payload": "' + b'x' * 2000 + b'"}\n'
# The last quarter may cost this much more than the second, because bases of the
# list are written at doubling sizes.
_MOST_GROWTH = 1.5


def main(_):
  with tempfile.TemporaryDirectory() as folder:
    os.environ |= objects.make(pathlib.Path(folder))
    sent, write = [], storage.Store._write

    def counted(store, function, path, data, **kwargs):
      if '.files' in path:
        sent.append(len(data))
      return write(store, function, path, data, **kwargs)

    storage.Store._write = counted
    with mirror.opened('objects://bucket/run') as path:
      root, found = pathlib.Path(path), mirror.of(path)
      found.begin()
      root.mkdir(exist_ok=True)
      found.keep()
      seconds, size = [], []
      for quarter in range(4):
        sent.clear()
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
        count = _ARMS.value // 4
        seconds.append((time.process_time() - began) / count)
        size.append(sum(sent) / count)
        calls = (objects.ObjectStore.calls - calls) / count
        print(
            f'quarter {quarter + 1}: {size[-1]:,.0f} bytes of lists,'
            f' {calls:.1f} requests, {1e3 * seconds[-1]:.1f} ms CPU per arm',
            flush=True,
        )
  return int(max(size) > _MOST_GROWTH * 4 * min(size))


if __name__ == '__main__':
  app.run(main)
