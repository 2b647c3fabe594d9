"""Object stores: retries, writes that only create, models in a cache."""

import multiprocessing
import os
import pathlib
import random
import sys
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from evojax import domains
from evojax.runtime import storage
from tests import objects


class StorageTestCase(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    variables = objects.make(self.root)
    self.enterContext(absltest.mock.patch.dict(os.environ, variables))
    self.enterContext(absltest.mock.patch.object(storage, '_FIRST_WAIT', 0.001))
    storage.cached.cache_clear()
    self.store = storage.Store('objects://bucket/run/')

  def failing(self, share):
    variables = {'OBJECTS_FAILING': str(share)}
    self.enterContext(absltest.mock.patch.dict(os.environ, variables))


def create(number):
  """In a process of its own."""
  store = storage.Store('objects://bucket/run')
  return [store.create(f'{n}', f'{number}'.encode()) for n in range(50)]


class StoreTest(StorageTestCase):

  def test_objects_by_name(self):
    self.store.write('a/b.json', b'1')
    self.store.write('a/b.json', b'22')
    self.store.write('ab/c', b'')
    self.assertEqual(self.store.read('a/b.json'), b'22')
    sizes = lambda found: {name: info['size'] for name, info in found.items()}
    self.assertEqual(sizes(self.store.list()), {'a/b.json': 2, 'ab/c': 0})
    self.assertEqual(sizes(self.store.list('a')), {'a/b.json': 2})
    self.store.remove('a/b.json')
    self.store.remove('a/b.json')
    self.assertEqual(sizes(self.store.list()), {'ab/c': 0})
    with self.assertRaises(FileNotFoundError):
      self.store.read('a/b.json')

  def test_files_of_any_size(self):
    file, copy = self.root / 'file', self.root / 'x/copy'
    for size in (0, 10, storage._AT_ONCE_BYTES + 1):
      file.write_bytes(os.urandom(size))
      self.assertEqual(self.store.upload(file, 'f'), size)
      self.store.download('f', copy)
      self.assertEqual(copy.read_bytes(), file.read_bytes())
    self.assertEqual(os.listdir(copy.parent), ['copy'])

  def test_one_process_creates_an_object(self):
    # A fork of a process with threads may wait forever for a lock.
    with multiprocessing.get_context('spawn').Pool(2) as pool:
      created = pool.map(create, range(2))
    for won in zip(*created):
      self.assertEqual(sum(won), 1)

  def test_calls_that_fail_are_made_again(self):
    # Among 600 calls, eight failures in a row would be too likely by chance.
    random.seed(0)
    self.failing(0.3)
    for n in range(100):  # A lost answer must not look like another writer.
      self.assertTrue(self.store.create(f'{n}', b'mine'), n)
      self.assertFalse(self.store.create(f'{n}', b'other'), n)
      self.assertEqual(self.store.read(f'{n}'), b'mine')
    for n in range(100):
      self.store.remove(f'{n}')
    self.assertEmpty(self.store.list())

  def test_but_not_for_ever(self):
    self.store.write('a', b'1')
    self.failing(1)
    before = objects.ObjectStore.calls
    with self.assertRaisesRegex(
        storage.StorageError, 'objects://bucket/run does not answer: .*was lost'
    ):
      self.store.read('a')
    self.assertEqual(objects.ObjectStore.calls - before, storage._ATTEMPTS)

  def test_a_store_that_is_silent_for_long_is_said_once(self):
    self.store.write('a', b'1')
    self.failing(1)
    with (
        absltest.mock.patch.object(storage, '_SILENT', 0.0),
        self.assertLogs(level='WARNING') as logs,
    ):
      for _ in range(2):
        with self.assertRaises(storage.StorageError):
          self.store.read('a')
    (line,) = logs.output
    self.assertRegex(line, 'objects://bucket/run does not answer .*8 times')

  def test_nor_where_it_cannot_help(self):
    self.failing(0)
    with absltest.mock.patch.object(
        objects.ObjectStore, 'cat_file', side_effect=PermissionError('no')
    ) as call:
      with self.assertRaisesRegex(storage.StorageError, 'credentials'):
        self.store.read('a')
    call.assert_called_once()

  def test_no_name_leaves_the_folder(self):
    (self.root / 'objects/bucket%2Frun%2F..%2Fx').touch()
    with self.assertRaisesRegex(storage.StorageError, r"'\.\./x'"):
      self.store.list()

  @parameterized.parameters(
      ('gs', 'gcsfs', 'gcsfs.*pip install -r requirements/gcs.txt'),
      ('s3', 's3fs', 's3fs.*pip install --no-deps -r requirements/s3'),
      ('nonsense', '-', "the scheme 'nonsense' is unknown; gs://"),
      ('file', '-', 'as a plain path'),
      ('ftp', '-', "the scheme 'ftp' cannot be used .*host"),
  )
  def test_a_scheme_that_cannot_be_used(self, scheme, package, message):
    with absltest.mock.patch.dict(sys.modules, {package: None}):
      with self.assertRaisesRegex(storage.StorageError, message) as caught:
        storage.Store(f'{scheme}://bucket/x')
    self.assertNotIn('\n', str(caught.exception))


class CachedTest(StorageTestCase):

  def setUp(self):
    super().setUp()
    self.model = storage.Store('objects://bucket/models/tiny')
    self.files = {'config.json': b'{}', 'model.safetensors': b'weights'}
    for name, data in self.files.items():
      self.model.write(name, data)
    self.model.write('onnx/model.onnx', b'large')

  def get(self):
    storage.cached.cache_clear()
    folder = domains.policy_path('objects://bucket/models/tiny')
    found = {p.name: p.read_bytes() for p in folder.glob('[!.]*')}
    self.assertEqual(found, self.files)
    return folder

  def downloads(self):
    original, names = storage.Store.download, []

    def download(store, name, file):
      names.append(name)
      original(store, name, file)

    self.enterContext(
        absltest.mock.patch.object(storage.Store, 'download', download)
    )
    return names

  def test_a_model_is_downloaded_once(self):
    self.failing(0.05)
    downloads = self.downloads()
    folder = self.get()
    self.assertCountEqual(downloads, self.files)
    self.assertEqual(self.get(), folder)
    self.assertLen(downloads, 2)
    self.assertStartsWith(folder.name, 'tiny-')

  def test_what_changed_on_either_side_is_downloaded_again(self):
    folder = self.get()
    downloads = self.downloads()
    (folder / 'config.json').write_bytes(b'[]')  # Of the same size.
    self.get()
    self.assertEqual(downloads, ['config.json'])
    self.files['model.safetensors'] = b'WEIGHTS'
    self.model.write('model.safetensors', b'WEIGHTS')
    self.get()
    self.assertEqual(downloads, ['config.json', 'model.safetensors'])
    del self.files['config.json']
    self.model.remove('config.json')
    self.get()

  def test_a_damaged_record_of_the_downloads(self):
    folder = self.get()
    for text in ('', '{"config.js', '[]'):
      (folder / '.remote.json').write_text(text)
      downloads = self.downloads()
      self.get()
      self.assertCountEqual(downloads, self.files)

  def test_only_some_files_and_the_others_stay(self):
    downloads = self.downloads()
    url = 'objects://bucket/models/tiny'
    folder = storage.cached(url, ('config.json', 'tokenizer.json'))
    self.assertEqual(downloads, ['config.json'])
    self.assertFalse((folder / 'model.safetensors').exists())
    self.assertEqual(self.get(), folder)
    self.assertEqual(downloads, ['config.json', 'model.safetensors'])
    # The second file is not read again when only the first one has changed.
    self.model.write('config.json', b'[]')
    self.files['config.json'] = b'[]'
    with absltest.mock.patch.object(
        storage.hashlib, 'file_digest', wraps=storage.hashlib.file_digest
    ) as digest:
      storage.cached.cache_clear()
      storage.cached(url, ('config.json',))
    read = {pathlib.Path(c.args[0].name).name for c in digest.call_args_list}
    self.assertEqual(read, {'config.json'})
    self.get()
    self.assertLen(downloads, 3)

  def test_a_download_that_is_cut_short(self):
    original = storage.Store.download

    def download(store, name, file):
      original(store, name, file)
      os.truncate(file, 1)

    with absltest.mock.patch.object(storage.Store, 'download', download):
      with self.assertRaisesRegex(storage.StorageError, '1 arrived'):
        self.get()
    self.get()

  def test_nothing_there(self):
    with self.assertRaisesRegex(storage.StorageError, 'none holds no files'):
      domains.policy_path('objects://bucket/none')

  def test_a_disk_without_room(self):
    usage = absltest.mock.Mock(free=3)
    with absltest.mock.patch('shutil.disk_usage', return_value=usage):
      with self.assertRaisesRegex(
          storage.StorageError, 'needs 9 bytes.*3 are free.*XDG_CACHE_HOME'
      ):
        self.get()


if __name__ == '__main__':
  absltest.main()
