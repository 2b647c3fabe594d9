"""Chunks of arrays: which there must be, and which a process needs."""

import json
import pathlib
import tempfile

from absl.testing import absltest
import jax
import numpy as np

from evojax.runtime import chunks


class ChunksTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.step = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.array('a/w', [5, 4], [2, 4])  # Three rows of chunks, the last short.
    self.array('n', [], [])
    self.names = [f'state/a/w/c/{row}/0' for row in range(3)] + ['state/n/c']

  def array(self, name, shape, chunk):
    folder = self.step / 'state' / name
    folder.mkdir(parents=True)
    grid = {'configuration': {'chunk_shape': chunk}, 'name': 'regular'}
    about = {'shape': shape, 'chunk_grid': grid}
    (folder / 'zarr.json').write_text(json.dumps(about))

  def test_missing(self):
    self.assertEmpty(chunks.missing(self.step, [*self.names, 'meta.json']))
    for name in self.names:
      others = [other for other in self.names if other != name]
      self.assertEqual(chunks.missing(self.step, others), [name])

  def test_what_is_a_chunk(self):
    for name in self.names:
      self.assertTrue(chunks.is_chunk(name))
    for name in ('meta.json', 'state/_METADATA', 'state/a/w/zarr.json'):
      self.assertFalse(chunks.is_chunk(name))

  def test_everything_is_needed_where_all_devices_are_here(self):
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    place = lambda *shape: jax.ShapeDtypeStruct(
        shape, np.float32, sharding=here
    )
    for wanted in (
        {'a/w': place(5, 4), 'n': place()},
        {'a/w': place(7, 4)},  # Of another shape: an error will say so.
        {},
    ):
      needed = chunks.needed(self.step, wanted)
      for name in (*self.names, 'meta.json', 'state/a/w/zarr.json'):
        self.assertTrue(needed(name), name)


if __name__ == '__main__':
  absltest.main()
