"""Where servers find new weights."""

import pathlib
import tempfile

from absl.testing import absltest
import ml_collections

from evojax.rollout import client
from evojax.runtime import mirror
from evojax.runtime import sharding
from evojax.runtime import stored_names
from evojax.runtime import workdir
from evojax.training import engines
from evojax.training import settings
from tests import objects  # noqa: F401, which registers the scheme.
from tests import tiny
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


class SamplerTest(absltest.TestCase):

  def test_servers_need_room_for_an_episode_and_not_for_a_turn_more(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    config = tiny.make_config(
        tiny.make_policy(root / 'policy'),
        rollout__kind='sglang',
        rollout__urls=('http://localhost:1',),
        rollout__turn_tokens=8,
        rollout__max_tokens=24,
    )
    policy = settings.open_policy(config)
    mesh = sharding.make_mesh(**config.mesh.to_dict())
    with absltest.mock.patch.object(client, 'SGLangEngine') as made:
      with engines.open_sampler(config, policy, mesh, root):
        (_, model), _ = made.call_args
    self.assertEqual(model.max_tokens, 8)
    self.assertEqual(
        model.context_tokens, config.data.max_prompt_tokens + 24
    )


if __name__ == '__main__':
  absltest.main()
