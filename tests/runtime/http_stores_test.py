"""Object stores over HTTP: the clients of gs:// and s3://, local servers.

    EVOJAX_STORES=1 bash test.sh -m long tests/runtime/http_stores_test.py

installs clients and servers into an environment of their own; without them the
tests are skipped. `Store.create`, on which rows of the ledger and the lease
depend, writes on a condition: the first writer wins. moto has
this condition (If-None-Match: *); the emulator of Cloud Storage ignores its
ifGenerationMatch=0, so it is added to the emulator below.
"""

import http
import os
import pathlib
import tempfile

from absl.testing import absltest
import pytest

from evojax.runtime import lease
from evojax.runtime import mirror
from evojax.runtime import storage
from tests import pairs


class _StoreTests:
  """What both kinds of store must do; `serve` starts a server."""

  SCHEME = ''

  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.set_variables(XDG_CACHE_HOME=str(self.root / 'cache'))
    self.serve()
    self.url = f'{self.SCHEME}://bucket/{self._testMethodName}'
    self.store = storage.Store(self.url)

  def set_variables(self, **variables):
    self.enterContext(absltest.mock.patch.dict(os.environ, variables))

  def test_objects(self):
    self.assertEmpty(self.store.list())
    self.store.write('a/b', b'1')
    self.store.write('a/b', b'22')
    self.assertEqual(self.store.read('a/b'), b'22')
    created = [self.store.create('c', data) for data in (b'1', b'2', b'1')]
    self.assertEqual(created, [True, False, True])
    with self.assertRaises(FileNotFoundError):
      self.store.read('none')
    file, copy = self.root / 'file', self.root / 'copy'
    file.write_bytes(os.urandom(20 << 20))  # In several parts.
    self.store.upload(file, 'large')
    self.store.download('large', copy)
    self.assertEqual(copy.read_bytes(), file.read_bytes())
    sizes = {name: info['size'] for name, info in self.store.list().items()}
    self.assertEqual(sizes, {'a/b': 2, 'c': 1, 'large': 20 << 20})
    for name in sizes:
      self.store.remove(name)
      self.store.remove(name)
    self.assertEmpty(self.store.list())

  def test_a_bucket_that_is_not_there(self):
    with self.assertRaisesRegex(storage.StorageError, 'no such bucket'):
      storage.Store(f'{self.SCHEME}://other/run').write('a', b'')

  def test_a_workdir(self):
    with mirror.opened(self.url) as path:
      opened = mirror.of(path)
      opened.begin()
      opened.keep()
      checkpoint = pathlib.Path(path, 'checkpoints/step_000001')
      (checkpoint / 'state').mkdir(parents=True)
      (checkpoint / 'state/array').write_bytes(os.urandom(9 << 20))
      (checkpoint / 'SHA256SUMS').write_text('sums')
      pathlib.Path(path, 'ledger.jsonl').write_text('{"n": 0}\n{"n": 1}\n')
      opened.publish()
      with mirror.opened(self.url) as other:
        with self.assertRaisesRegex(lease.LeaseError, 'is in use by pid'):
          mirror.of(other).begin()
      array = (checkpoint / 'state/array').read_bytes()
    with mirror.opened(self.url) as path:
      folder = pathlib.Path(path, 'checkpoints/step_000001')
      self.assertEqual(os.listdir(folder), ['SHA256SUMS'])
      mirror.fetch(folder)
      self.assertEqual((folder / 'state/array').read_bytes(), array)
      ledger = pathlib.Path(path, 'ledger.jsonl').read_text()
      self.assertEqual(ledger, '{"n": 0}\n{"n": 1}\n')
    self.assertIn('ledger/000001.json', self.store.list())


@pytest.mark.long
class S3Test(_StoreTests, absltest.TestCase):
  SCHEME = 's3'

  def serve(self):
    s3fs = pytest.importorskip('s3fs')
    moto = pytest.importorskip('moto.server')
    config = pytest.importorskip('fsspec.config')
    server = moto.ThreadedMotoServer(ip_address='127.0.0.1', port=0)
    server.start()
    self.addCleanup(server.stop)
    host, port = server.get_host_and_port()
    self.set_variables(
        AWS_ACCESS_KEY_ID='nobody',
        AWS_SECRET_ACCESS_KEY='nothing',
        AWS_DEFAULT_REGION='us-east-1',
    )
    endpoint = {'s3': {'endpoint_url': f'http://{host}:{port}'}}
    self.enterContext(absltest.mock.patch.dict(config.conf, endpoint))
    # Servers of one process share their buckets.
    s3fs.S3FileSystem().makedirs('bucket', exist_ok=True)


@pytest.mark.long
class GcsTest(_StoreTests, absltest.TestCase):
  SCHEME = 'gs'

  def serve(self):
    # Otherwise gcsfs asks for the kind of bucket by gRPC. It is read once.
    self.set_variables(GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT='false')
    pytest.importorskip('gcsfs')
    emulator = pytest.importorskip('gcp_storage_emulator.server')
    config = pytest.importorskip('fsspec.config')
    (uploads,) = (
        handlers
        for _, handlers in emulator.HANDLERS
        if handlers.get('POST') is emulator.objects.insert
    )
    insert = uploads['POST']

    def insert_if_asked(request, response, stored, *args, **kwargs):
      # The emulator ignores this condition, which `Store.create` relies on.
      if request.query.get('ifGenerationMatch') == ['0']:
        names = stored.objects.get(request.params['bucket_name'], {})
        if request.data['meta']['name'] in names:
          response.status = http.HTTPStatus.PRECONDITION_FAILED
          return
      insert(request, response, stored, *args, **kwargs)

    self.enterContext(
        absltest.mock.patch.dict(uploads, {'POST': insert_if_asked})
    )
    port = pairs.free_port()
    server = emulator.create_server(
        '127.0.0.1', port, in_memory=True, default_bucket='bucket'
    )
    server.start()
    self.addCleanup(server.stop)
    self.set_variables(
        STORAGE_EMULATOR_HOST=f'http://127.0.0.1:{port}',
    )
    anonymous = {'gs': {'token': 'anon'}, 'gcs': {'token': 'anon'}}
    self.enterContext(absltest.mock.patch.dict(config.conf, anonymous))


if __name__ == '__main__':
  absltest.main()
