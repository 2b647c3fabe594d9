"""Writes that are complete and durable, or leave the old file as it was."""

import errno
import os
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from evojax.runtime import durable


class WriteAtomicTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def test_replaces(self):
    file = self.folder / 'x'
    durable.write_atomic(file, b'one')
    durable.write_atomic(file, b'')
    self.assertEqual(file.read_bytes(), b'')
    self.assertEqual(os.listdir(self.folder), ['x'])

  def test_order_that_survives_a_power_cut(self):
    # Data before the name, the name before the directory.
    calls = []
    fsync, replace = os.fsync, os.replace

    def spy_fsync(fd):
      kind = 'directory' if os.path.isdir(f'/proc/self/fd/{fd}') else 'file'
      calls.append(f'sync {kind}')
      fsync(fd)

    def spy_replace(*args):
      calls.append('rename')
      replace(*args)

    with absltest.mock.patch.multiple(os, fsync=spy_fsync, replace=spy_replace):
      durable.write_atomic(self.folder / 'x', b'data')
    self.assertEqual(calls, ['sync file', 'rename', 'sync directory'])

  @parameterized.parameters(
      (errno.ENOSPC, 'Free space there or raise the quota'),
      (errno.EDQUOT, 'Free space there or raise the quota'),
      (errno.EACCES, f'Let user {os.getuid()} write there'),
      (errno.EROFS, f'Let user {os.getuid()} write there'),
      (errno.EIO, 'Make sure that the directory is there and that its disk'),
      (errno.ESTALE, 'Make sure that the directory is there and that its disk'),
  )
  def test_the_remedy_is_that_of_the_cause(self, number, remedy):
    def fail(*_):
      raise OSError(number, os.strerror(number))

    file = self.folder / 'x'
    durable.write_atomic(file, b'old')
    with absltest.mock.patch.object(os, 'replace', fail):
      with self.assertRaises(durable.DiskError) as caught:
        durable.write_atomic(file, b'new')
    self.assertIn(
        f'{os.strerror(number)}. {remedy}', str(caught.exception)
    )
    self.assertEqual(caught.exception.errno, number)
    self.assertEqual(file.read_bytes(), b'old')
    self.assertEqual(os.listdir(self.folder), ['x'])

  def test_a_file_system_that_became_read_only(self):
    # It refuses even to remove a file that is not there.
    refused = OSError(errno.EROFS, os.strerror(errno.EROFS))
    with absltest.mock.patch.multiple(
        pathlib.Path,
        open=absltest.mock.Mock(side_effect=refused),
        unlink=absltest.mock.Mock(side_effect=refused),
    ):
      with self.assertRaisesRegex(durable.DiskError, 'Let user .* write there'):
        durable.write_atomic(self.folder / 'x', b'new')

  def test_a_copied_directory_survives_a_power_cut(self):
    source, target = self.folder / 'a', self.folder / 'more' / 'b'
    (source / 'x' / 'y').mkdir(parents=True)
    for name in ('one', 'x/two', 'x/y/three'):
      (source / name).write_text(name)
    synced = []

    def spy(fd):
      synced.append(os.path.realpath(f'/proc/self/fd/{fd}'))

    with absltest.mock.patch.object(os, 'fsync', spy):
      durable.copy_tree(source, target)
    self.assertEqual((target / 'x/y/three').read_text(), 'x/y/three')
    # Data and names: those of a directory are in the directory itself.
    every = [target, *target.rglob('*')]
    self.assertCountEqual(synced, [os.path.realpath(p) for p in every])


if __name__ == '__main__':
  absltest.main()
