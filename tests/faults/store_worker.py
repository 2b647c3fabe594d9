"""Trains the tiny run in an object store, and ends it by SIGKILL meanwhile.

    python store_worker.py CONFIG POLICY ROOT POINT ...

As `kill_worker`, but the killed run is at objects://bucket/killed. The policy
of both is at objects://bucket/policy, and five calls of a hundred fail.
"""

import os
import pathlib
import sys

from evojax.runtime import listing
from evojax.runtime import mirrored
from evojax.runtime import storage
from tests import objects  # noqa: F401, which registers the scheme.
from tests.faults import kill_worker

URL, POLICY = 'objects://bucket/killed', 'objects://bucket/policy'


# In the order in which one run meets them.
POINTS = dict(
    naming=lambda: kill_worker.intercept(
        listing.Listing,
        'write',
        lambda self, added, removed: any('checkpoints/' in n for n in added),
    ),
    sent=lambda: kill_worker.intercept(
        mirrored.Mirror,
        '_settle',
        lambda self: any('checkpoints' in name for name in self._known),
    ),
    downloading=lambda: kill_worker.intercept(
        mirrored.Mirror,
        'fetch',
        lambda self, path, _: path.name == 'step_000002',
    ),
    exporting=kill_worker.POINTS['exporting'],
)


def main(config, policy, root, *points):
  store = storage.Store(POLICY)
  for file in pathlib.Path(policy).iterdir():
    store.upload(file, file.name)
  os.environ['OBJECTS_FAILING'] = '0.05'
  kill_worker.POINTS = POINTS
  kill_worker.main(config, POLICY, root, *points, killed=URL)


if __name__ == '__main__':
  main(*sys.argv[1:])
