"""Where servers find new weights, and what an engine samples."""

import contextlib
import pathlib
import tempfile

from absl.testing import absltest
import ml_collections

from evojax import records
from evojax.models import policy as policy_lib
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


class EngineTest(absltest.TestCase):

  def test_special_token_is_a_stop_string(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    config = tiny.make_config(tiny.make_policy(root / 'policy'))
    policy = settings.open_policy(config)
    mesh = sharding.make_mesh(**config.mesh.to_dict())
    weights = policy_lib.load_params(policy, mesh, param_dtype='float32')
    special = policy.tokenizer.pad_id
    stop = policy.tokenizer.decode([special], skip_special_tokens=False)
    # Its logit is the largest but for the noise.
    weights['embed'] = weights['embed'].at[special].mul(3.0)

    def sample(**params):
      params = records.SamplingParams(max_tokens=8, **params)
      asked = [records.Request((5, 6), 0, 0, i, params) for i in range(64)]
      return engine.generate(asked)

    made = engines.make_engine(config, policy, mesh)
    with contextlib.closing(made) as engine:
      engine.update_weights(weights, 0)
      plain, ended = sample(), sample(stop=(stop,))
    reasons = set()
    for a, b in zip(plain, ended):
      tokens = a.tokens.tolist()
      if special in tokens:
        tokens = tokens[: tokens.index(special) + 1]
        reasons.add(b.finish_reason)
      self.assertEqual(b.tokens.tolist(), tokens)
    self.assertEqual(reasons, {'stop'})


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
