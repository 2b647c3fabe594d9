"""Where servers find new weights."""

import pathlib

from absl.testing import absltest
import ml_collections

from evojax.runtime import mirror
from evojax.runtime import stored_names
from evojax.runtime import workdir
from evojax.training import engines
from tests import objects  # noqa: F401, which registers the scheme.
from tests.runtime import storage_test

URL = 'objects://bucket/run'


class WeightsFolderTest(storage_test.StorageTestCase):

  def test_a_directory(self):
    run = pathlib.Path('/runs/a')
    self.assertEqual(engines.weights_folder(run, ''), run / 'weights')
    folder = engines.weights_folder(run, '/mnt')
    self.assertEqual(folder.parent, pathlib.Path('/mnt/weights'))
    self.assertNotEqual(
        folder, engines.weights_folder(pathlib.Path('/runs/b'), '/mnt')
    )

  def test_processes_with_a_copy_each(self):
    config = ml_collections.ConfigDict({'name': 'run'})
    with (
        mirror.opened(URL) as first,
        mirror.opened(URL, stored_names.is_for_all) as second,
        workdir.open_workdir(first, config, mode='train'),
    ):
      paths = pathlib.Path(first), pathlib.Path(second)
      self.assertEqual(
          engines.weights_folder(paths[0], ''), paths[0] / 'weights'
      )
      mirror.of(second).follow(mirror.of(first).lead())
      for path in paths:
        with self.assertRaisesRegex(ValueError, 'weights_dir is empty: .*NFS'):
          engines.weights_folder(path, '')
      folders = {engines.weights_folder(path, '/mnt') for path in paths}
      self.assertLen(folders, 1)


if __name__ == '__main__':
  absltest.main()
