"""Workdirs of earlier versions: continued, or refused with one line."""

import json
import pathlib
import shutil
import tempfile

from absl.testing import absltest

from configs import math as math_config
from evojax.evolve import loop
from evojax.ledger import history
from evojax.runtime import workdir as workdir_lib

_FROZEN = pathlib.Path(__file__).parent.parent / 'frozen'


class OlderTest(absltest.TestCase):

  def _copy(self, name):
    """Return a copy of a frozen workdir and the config of its run."""
    folder = self.enterContext(tempfile.TemporaryDirectory())
    workdir = pathlib.Path(folder, name)
    shutil.copytree(_FROZEN / name, workdir)
    config = math_config.get_config('smoke')
    saved = json.loads((workdir / 'config.json').read_text())['config']
    config.seed = saved['seed']
    for field in ('prompts', 'group_size'):
      config.grpo[field] = saved['grpo'][field]
    return workdir, config

  def test_an_evolving_run_is_refused_with_the_remedies(self):
    workdir, config = self._copy('tree_2026_11_21_math')
    before = (workdir / 'ledger.jsonl').read_bytes()
    with self.assertRaisesRegex(
        ValueError,
        r'(?s)evolve\.trials: 2 -> "\(absent\)".*An older evojax made that run'
        '.*--fork_from=',
    ):
      loop.run(config, str(workdir))
    self.assertEqual((workdir / 'ledger.jsonl').read_bytes(), before)
    self.assertLen(history.read(workdir).rows, before.count(b'\n'))

  def test_a_training_run_still_has_its_config(self):
    """Its checkpoints, 16 MB each, are not stored here; they resume, too."""
    workdir, config = self._copy('tree_2026_11_21_math_train')
    with workdir_lib.open_workdir(
        str(workdir), config, mode='train'
    ) as directory:
      self.assertEqual(directory.path, workdir)


if __name__ == '__main__':
  absltest.main()
