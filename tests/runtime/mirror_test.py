"""Workdirs in an object store: what readers see, two writers, two hosts."""

import concurrent.futures
import fcntl
import json
import os
import pathlib

from absl.testing import absltest
import ml_collections

from evojax.ledger import chain
from evojax.runtime import durable
from evojax.runtime import lease
from evojax.runtime import listing
from evojax.runtime import mirror
from evojax.runtime import mirrored
from evojax.runtime import storage
from evojax.runtime import stored_names
from evojax.runtime import workdir as workdir_lib
from tests.runtime import storage_test

URL = 'objects://bucket/run'
CONFIG = {'name': 'run', 'steps': 100}


def write(path, text):
  path.parent.mkdir(parents=True, exist_ok=True)
  durable.write_atomic(path, text.encode())


def files(root):
  """Name -> text of all files that a reader looks at."""
  return {
      p.relative_to(root).as_posix(): p.read_text()
      for p in sorted(pathlib.Path(root).rglob('[!.]*'))
      if p.is_file()
  }


class MirrorTestCase(storage_test.StorageTestCase):

  def setUp(self):
    super().setUp()
    for name in ('TTL_SECONDS', 'RENEW_SECONDS'):
      self.enterContext(absltest.mock.patch.object(lease, name, 0.5))
    self.enterContext(absltest.mock.patch.object(lease, '_WATCH_SECONDS', 0.05))

  def open(self, path, **fields):
    config = ml_collections.ConfigDict(CONFIG | fields)
    return workdir_lib.open_workdir(path, config, mode='train')

  def seen(self):
    """Name -> text of the files that a reader downloads at first."""
    with mirror.opened(URL) as path:
      return files(path) if os.path.isdir(path) else {}

  def objects(self):
    return sorted(n for n in self.store.list() if not n.startswith('.'))


def checkpoint(root, step, text='x'):
  """Makes a checkpoint appear at once, as `checkpoint` does."""
  folder = pathlib.Path(root, 'checkpoints')
  temporary = folder / f'step_{step:06d}.tmp'
  for name in ('state/d/1', 'state/manifest', 'meta.json', 'SHA256SUMS'):
    write(temporary / name, text)
  os.rename(temporary, folder / f'step_{step:06d}')
  return folder / f'step_{step:06d}'


class PublishTest(MirrorTestCase):

  def test_nothing_is_sent_before_the_first_step(self):
    with self.assertRaises(KeyError):
      with mirror.opened(URL) as path, self.open(path):
        write(pathlib.Path(path, 'metrics.jsonl'), '1\n')
        mirror.publish(pathlib.Path(path))
        raise KeyError
    self.assertEmpty(self.store.list('.files'))
    self.assertEmpty(self.objects())
    # The lease is given back, whatever has happened.
    with mirror.opened(URL) as path, self.open(path) as workdir:
      self.assertFalse(workdir.resumed)
      workdir.keep()
      self.assertEqual(list(self.seen()), ['config.json'])

  def test_files_come_and_go_and_change(self):
    self.failing(0.05)
    with mirror.opened(URL) as path, self.open(path) as workdir:
      root = pathlib.Path(path)
      workdir.keep()
      write(root / 'metrics.jsonl', '1\n')
      write(root / 'evidence/train/step_000000.parquet', 'a')
      for name in ('.x.tmp', 'y.tmp/z', 'weights/1/w', '.policy.old/c'):
        write(root / name, 'not for others')
      self.assertEqual(list(self.seen()), ['config.json'])
      mirror.publish(root / 'evidence')
      evidence = 'evidence/train/step_000000.parquet'
      self.assertEqual(
          list(self.seen()), ['config.json', evidence, 'metrics.jsonl']
      )
      (root / evidence).unlink()
      write(root / 'metrics.jsonl', '2\n')  # Of the same size.
    found = self.seen()
    self.assertEqual(list(found), ['config.json', 'metrics.jsonl'])
    self.assertEqual(found['metrics.jsonl'], '2\n')
    with mirror.opened(URL) as path, self.open(path) as workdir:
      self.assertTrue(workdir.resumed)

  def test_settled_folders_are_scanned_rarely(self):
    with mirror.opened(URL) as path, self.open(path) as workdir:
      root, found = pathlib.Path(path), mirror.of(path)
      workdir.keep()
      for arm in 'ab':
        write(root / f'arms/{arm}/evidence/x', '1')
      found.publish()
      (root / 'arms/a/evidence/x').unlink()
      write(root / 'arms/a/y', '1')
      found.settle(root / 'arms/a')
      # A change made before the folder was settled is uploaded.
      found.publish()
      names = ['arms/a/y', 'arms/b/evidence/x', 'config.json']
      self.assertEqual(list(self.seen()), names)
      write(root / 'arms/a/y', '2')
      with absltest.mock.patch.object(
          os, 'scandir', side_effect=os.scandir
      ) as scanned:
        found.publish()
      folders = [pathlib.Path(call.args[0]) for call in scanned.mock_calls]
      self.assertIn(root / 'arms/b', folders)
      self.assertNotIn(root / 'arms/a', folders)
      self.assertEqual(self.seen()['arms/a/y'], '1')
      # A file that is published by its name is uploaded at once.
      mirror.publish(root / 'arms/a/y')
      self.assertEqual(self.seen()['arms/a/y'], '2')
      write(root / 'arms/a/y', '3')
      found.publish()
      self.assertEqual(self.seen()['arms/a/y'], '2')
      self.assertEqual(found.published(root / 'arms/a'), {'arms/a/y': 1})
      self.assertEqual(self.seen()['arms/a/y'], '3')
      # Else it is noticed after as many uploads as there are folders.
      (root / 'arms/a/y').unlink()
      for _ in range(mirrored._LEAST_UPLOADS):
        found.publish()
      self.assertEqual(list(self.seen()), names[1:])
      write(root / 'arms/a/z', 'at the end')
    self.assertEqual(list(self.seen()), ['arms/a/z', *names[1:]])

  def test_a_settled_folder_is_downloaded_when_it_is_read(self):
    with mirror.opened(URL) as path, self.open(path) as workdir:
      workdir.keep()
      checkpoint(pathlib.Path(path, 'arms/a'), 1)
    with mirror.opened(URL) as path, self.open(path) as workdir:
      folder, found = pathlib.Path(path, 'arms/a'), mirror.of(path)
      workdir.keep()
      found.settle(folder)
      found.publish()
      state = folder / 'checkpoints/step_000001/state/manifest'
      self.assertFalse(state.exists())
      mirror.fetch(state.parent)
      self.assertEqual(state.read_text(), 'x')
    self.assertIn('arms/a/checkpoints/step_000001/state/d/1', self.objects())

  def test_uploads_beside_the_work_of_others(self):
    with mirror.opened(URL) as path, self.open(path) as workdir:
      root, found = pathlib.Path(path), mirror.of(path)
      workdir.keep()
      write(root / 'arms/a/metrics.jsonl', '1\n')
      mirror.publish_soon(root / 'arms/a')
      found._soon.result()
      self.assertIn('arms/a/metrics.jsonl', self.seen())
      write(root / 'arms/a/log', '1\n')
      mirror.publish_soon(root)  # Too early.
      found._soon.result()
      self.assertNotIn('arms/a/log', self.seen())
      found._next = 0.0
      with absltest.mock.patch.object(
          found._store, 'upload', side_effect=storage.StorageError('no answer')
      ):
        mirror.publish_soon(root)
        concurrent.futures.wait([found._soon])
      found._next = 0.0
      with self.assertRaisesRegex(storage.StorageError, 'no answer'):
        mirror.publish_soon(root)
    self.assertIn('arms/a/log', self.seen())

  def test_what_a_kill_leaves_is_not_there(self):
    with mirror.opened(URL) as path, self.open(path) as workdir:
      root = pathlib.Path(path)
      workdir.keep()
      checkpoint(root, 1)
      mirror.publish(root)
      before, sent = self.seen(), self.objects()
      checkpoint(root, 2)
      with absltest.mock.patch.object(
          listing.Listing, 'write', side_effect=KeyboardInterrupt
      ):
        with self.assertRaises(KeyboardInterrupt):
          mirror.publish(root)
      # As if the process were gone.
      workdir._mirror._publishes, workdir._mirror = False, None
    self.assertGreater(len(self.objects()), len(sent))
    self.assertEqual(self.seen(), before)
    with mirror.opened(URL) as path, self.open(path) as workdir:
      workdir.keep()
      self.assertEqual(self.objects(), sent)

  def test_parameters_are_downloaded_when_they_are_read(self):
    with mirror.opened(URL) as path, self.open(path) as workdir:
      workdir.keep()
      checkpoint(path, 1)
      checkpoint(path, 2)
      write(pathlib.Path(path, 'policy/config.json'), '{}')
      write(pathlib.Path(path, 'policy/model.safetensors'), 'large')
    sent = self.objects()
    with mirror.opened(URL) as path, self.open(path) as workdir:
      root = pathlib.Path(path)
      small = {'SHA256SUMS', 'meta.json'}
      names = lambda step: {
          p.relative_to(root / 'checkpoints' / step).as_posix()
          for p in (root / 'checkpoints' / step).rglob('*')
          if p.is_file()
      }
      self.assertEqual(names('step_000001'), small)
      self.assertFalse((root / 'policy/model.safetensors').exists())
      mirror.fetch(root / 'checkpoints/step_000002')
      self.assertEqual(names('step_000001'), small)
      self.assertEqual(
          names('step_000002'), small | {'state/d/1', 'state/manifest'}
      )
      workdir.keep()
      self.assertEqual(self.objects(), sent)  # What is not here stays there.
      os.rename(root / 'checkpoints/step_000001', root / 'old.tmp')
      mirror.publish(root)
      self.assertNotIn('checkpoints/step_000001/state/d/1', self.objects())
      # Another policy under the same names, or fewer files.
      os.rename(root / 'policy', root / 'p.tmp')
      write(root / 'policy/config.json', '{}')
    self.assertNotIn('policy/model.safetensors', self.objects())
    self.assertIn('checkpoints/step_000002/state/d/1', self.objects())

  def test_what_a_user_has_deleted_or_left_there(self):
    with mirror.opened(URL) as path, self.open(path) as workdir:
      workdir.keep()
      checkpoint(path, 1)
    self.store.remove('checkpoints/step_000001/meta.json')
    self.store.write('notes.txt', b'mine')
    with mirror.opened(URL) as path, self.open(path) as workdir:
      workdir.keep()
      self.assertNotIn('checkpoints/step_000001/meta.json', files(path))
      self.assertNotIn('notes.txt', files(path))
    self.assertIn('notes.txt', self.objects())

  def test_a_folder_that_no_run_has_written_is_refused(self):
    self.store.write('inbox/change.json', b'{}')
    self.seen()  # The inbox may be there before the run.
    self.store.write('checkpoints/step_000001/meta.json', b'{}')
    with self.assertRaisesRegex(
        storage.StorageError, 'has checkpoints/step_000001/meta.json and no'
    ):
      self.seen()
    # One whose first publication was cut short is there, and empty.
    self.store.remove('checkpoints/step_000001/meta.json')
    with mirror.opened(URL) as path, self.open(path) as workdir:
      with absltest.mock.patch.object(
          storage.Store, 'upload', side_effect=KeyboardInterrupt
      ):
        with self.assertRaises(KeyboardInterrupt):
          workdir.keep()
      workdir._mirror._publishes, workdir._mirror = False, None
    self.store.write('config.json', b'cut short')
    self.assertEqual(list(self.seen()), ['inbox/change.json'])

  def test_messages_name_the_url(self):
    with mirror.opened(URL) as path:
      text = f'page: {path}/report.html'
    self.assertEqual(mirror.shown(text), f'page: {URL}/report.html')
    self.assertEqual(mirror.shown('page: runs/x'), 'page: runs/x')

  def test_a_folder_of_runs(self):
    for name in ('a', 'b/c'):
      with mirror.opened(f'{URL}/{name}') as path, self.open(path) as workdir:
        workdir.keep()
        write(pathlib.Path(path, 'evidence/train/step_000000.parquet'), 'x')
    light = lambda name: not name.startswith('evidence/')
    with mirror.opened_below(URL, light) as path:
      found = {'a/config.json', 'b/c/config.json'}
      self.assertEqual(set(files(path)), found)
      # `refresh` shows new files of a run, and a run that is new itself.
      for name in ('a', 'd'):
        with mirror.opened(f'{URL}/{name}') as other, self.open(other) as run:
          run.keep()
          write(pathlib.Path(other, 'summary.json'), '{}')
        mirror.refresh(pathlib.Path(path, name))
        found |= {f'{name}/config.json', f'{name}/summary.json'}
        self.assertEqual(set(files(path)), found)
      mirror.refresh(pathlib.Path(path, 'e'))  # Not begun yet.
      self.assertEqual(set(files(path)), found)
      write(pathlib.Path(path, 'table.json'), '[]')
      mirror.put(pathlib.Path(path, 'table.json'))
    self.assertEqual(self.store.read('table.json'), b'[]')

  def test_a_folder_of_runs_has_one_sweep_at_a_time(self):
    self.enterContext(absltest.mock.patch.object(lease, 'RENEW_SECONDS', 0.1))
    def lock(path):
      return workdir_lib.lock_folder(pathlib.Path(path), seconds=0.0)

    with mirror.opened_below(URL) as one, mirror.opened_below(URL) as other:
      table = pathlib.Path(one, 'table.json')
      with lock(one):
        with self.assertRaisesRegex(workdir_lib.WorkdirError, f'{URL} is'):
          self.enterContext(lock(other))
        write(table, '[]')
        mirror.put(table)
      with lock(other):  # The first one has released it.
        pass
      with lock(one):
        name = max(self.store.list('.lease'))
        self.store.create(f'{name[:-6]}9.json', self.store.read(name))
        with self.assertRaisesRegex(lease.LeaseError, 'is in use'):
          mirror.put(table)
    self.assertEqual(self.store.read('table.json'), b'[]')

  def test_copies_of_processes_that_are_gone_are_removed(self):
    runs = storage.cache_folder() / 'runs'
    write(runs / 'gone/.lock', '')
    with mirror.opened(URL), mirror.opened(f'{URL}2'):
      self.assertLen(os.listdir(runs), 2)
    self.assertEmpty(os.listdir(runs))


class WritersTest(MirrorTestCase):

  def test_copies_of_processes_that_begin_together_stay(self):
    flock, began = fcntl.flock, []

    def late(file, how):
      if how == fcntl.LOCK_EX and not began:
        began.append(file.name)
        with mirror._scratch():  # Another process, a moment before.
          pass
      flock(file, how)

    with absltest.mock.patch.object(fcntl, 'flock', late):
      with mirror._scratch() as folder:
        self.assertTrue(folder.is_dir())
        # It stays when further processes begin.
        with mirror._scratch():
          self.assertTrue(folder.is_dir())
    self.assertLen(began, 1)
    self.assertFalse(folder.exists())

  def test_another_process_is_refused(self):
    with mirror.opened(URL) as path, self.open(path) as workdir:
      workdir.keep()
      with mirror.opened(URL) as other:
        with self.assertRaisesRegex(
            workdir_lib.WorkdirError,
            rf'workdir {URL} is in use by pid {os.getpid()} on .*Wait for it',
        ):
          self.open(other)
        self.assertTrue(workdir_lib.in_use(other))
      write(pathlib.Path(path, 'metrics.jsonl'), '1\n')
    self.assertIn('metrics.jsonl', self.seen())
    with mirror.opened(URL) as path:
      self.assertFalse(workdir_lib.in_use(path))

  def test_a_holder_that_was_replaced_writes_no_more(self):
    stopped = absltest.mock.patch.object(lease, 'RENEW_SECONDS', 100)
    elsewhere = absltest.mock.patch.object(
        lease, '_place', lambda: {'machine': 'x', 'pid': 1, 'started': '1'}
    )
    with mirror.opened(URL) as path:
      with stopped, elsewhere:
        old = self.open(path)
      old.keep()
      ledger = chain.Ledger(pathlib.Path(path, 'ledger.jsonl'))
      ledger.append('train', {}, {})
      with mirror.opened(URL) as other, self.open(other) as new:
        new.keep()
        sent = self.objects()
        checkpoint(path, 1)
        with self.assertRaisesRegex(lease.LeaseError, 'is in use by pid'):
          mirror.publish(pathlib.Path(path))
        # It was asked for the lease just before: the row itself is refused.
        chain.Ledger(pathlib.Path(other, 'ledger.jsonl')).append('a', {}, {})
        with absltest.mock.patch.object(lease.Lease, 'check'):
          with self.assertRaisesRegex(lease.LeaseError, '000001.json was writ'):
            ledger.append('b', {}, {})
        self.assertContainsSubset(sent, self.objects())
        rows = chain.read(pathlib.Path(other, 'ledger.jsonl'))
      with self.assertRaises(lease.LeaseError):
        old.close()
      mirror.of(path)._publishes = False
    self.assertEqual([row['payload']['step'] for row in rows], ['train', 'a'])


class HostsTest(MirrorTestCase):
  """Process 0 and another one of a run, both in this process."""

  def setUp(self):
    super().setUp()
    self.first = self.enterContext(mirror.opened(URL))
    second = self.enterContext(mirror.opened(URL, stored_names.is_for_all))
    self.leader, self.other = mirror.of(self.first), mirror.of(second)
    self.workdir = self.open(self.first)
    self.addCleanup(self.workdir.close)
    self.workdir.keep()

  def follow(self):
    self.other.follow(self.leader.lead())

  def shards(self, step=1, text='y'):
    """Files of the other process, in a folder of its own; a send of them."""
    folder = self.other.root / f'checkpoints/step_{step:06d}.tmp'
    names = ['state/w/c/1', 'state/array_metadatas/process_1']
    for name in names:
      write(folder / name, text)
    final = self.other.root / f'checkpoints/step_{step:06d}'
    return self.other.send(folder, names, final)

  def test_files_of_two_processes_appear_at_once(self):
    self.failing(0.05)
    self.follow()
    before = self.seen()
    sizes = self.shards()
    self.assertEqual(list(sizes.values()), [1, 1])
    write(pathlib.Path(self.first, 'metrics.jsonl'), '1\n')
    mirror.publish(pathlib.Path(self.first))
    self.assertEqual(self.seen(), before | {'metrics.jsonl': '1\n'})
    self.assertContainsSubset(sizes, self.objects())  # And they are kept.
    with mirror.adding(pathlib.Path(self.first), sizes):
      checkpoint(self.first, 1)
    mirror.publish(pathlib.Path(self.first))
    with mirror.opened(URL) as path:
      mirror.fetch(pathlib.Path(path))
      found = files(path)
    self.assertEqual([found[name] for name in sizes], ['y', 'y'])
    self.assertIn('checkpoints/step_000001/state/d/1', found)
    # Process 0 never has them, and a later upload leaves them.
    write(pathlib.Path(self.first, 'metrics.jsonl'), '2\n')
    mirror.publish(pathlib.Path(self.first))
    self.assertNoCommonElements(sizes, files(self.first))
    self.assertContainsSubset(sizes, self.objects())
    os.rename(f'{self.first}/checkpoints/step_000001', f'{self.first}/old.tmp')
    mirror.publish(pathlib.Path(self.first))
    self.assertNoCommonElements(sizes, self.objects())

  def test_no_upload_while_files_appear(self):
    self.follow()
    sizes = self.shards()
    checkpoint(self.first, 1)
    mirror.publish(pathlib.Path(self.first))
    with concurrent.futures.ThreadPoolExecutor() as pool:
      with mirror.adding(pathlib.Path(self.first), sizes):
        os.rename(
            f'{self.first}/checkpoints/step_000001', f'{self.first}/old.tmp'
        )
        upload = pool.submit(mirror.publish, pathlib.Path(self.first))
        with self.assertRaises(TimeoutError):
          upload.result(timeout=0.2)
        checkpoint(self.first, 1, 'new')
      upload.result()
    self.assertContainsSubset(sizes, self.objects())

  def test_another_run_worked_there_in_between(self):
    self.workdir.close()
    self.leader.release()
    with mirror.opened(URL) as path, self.open(path):
      checkpoint(path, 7)
      write(pathlib.Path(path, 'evidence/train/step_000000.parquet'), 'large')
    with mirror.opened(URL) as path, self.open(path):
      self.other.follow(mirror.of(path).lead())
      found = files(self.other.root)
    self.assertContainsSubset({'config.json'}, found)
    self.assertIn('checkpoints/step_000007/SHA256SUMS', found)
    # Only process 0 reads it.
    self.assertNotIn('evidence/train/step_000000.parquet', found)

  def test_processes_that_see_different_files(self):
    lead = self.leader.lead() | {'files': 'of another version'}
    with self.assertRaisesRegex(storage.StorageError, 'see different versions'):
      self.other.follow(lead)

  def test_another_process_than_0_writes_no_more_without_a_lease(self):
    self.follow()
    self.leader.release()
    with mirror.opened(URL) as path, self.open(path):
      before = self.objects()
      with self.assertRaisesRegex(lease.LeaseError, 'is in use by pid'):
        self.shards()
      self.assertEqual(self.objects(), before)


class LedgerTest(MirrorTestCase):

  def test_a_row_is_an_object(self):
    self.failing(0.05)
    with mirror.opened(URL) as path, self.open(path) as workdir:
      ledger = chain.Ledger(pathlib.Path(path, 'ledger.jsonl'))
      ledger.append('open', {}, {})
      self.assertEmpty(self.store.list('ledger'))  # Until the first step.
      workdir.keep()
      for number in range(1, 12):
        ledger.append('train', {'number': number}, {})
        self.assertLen(self.store.list('ledger'), number + 1)
      text = pathlib.Path(path, 'ledger.jsonl').read_text()
    self.assertEqual(self.seen()['ledger.jsonl'], text)
    self.assertNotIn('ledger.jsonl', self.objects())
    with mirror.opened(URL) as path, self.open(path):
      self.assertLen(chain.Ledger(pathlib.Path(path, 'ledger.jsonl')).rows, 12)

  def test_a_damaged_row_is_set_aside(self):
    with mirror.opened(URL) as path, self.open(path) as workdir:
      workdir.keep()
      ledger = chain.Ledger(pathlib.Path(path, 'ledger.jsonl'))
      for _ in range(4):
        ledger.append('train', {}, {})
    self.store.write('ledger/000002.json', b'{"hash": 1}\n')
    with mirror.opened(URL) as path, self.open(path) as workdir:
      with self.assertLogs('absl', 'WARNING'):
        ledger = chain.Ledger(pathlib.Path(path, 'ledger.jsonl'))
      self.assertLen(ledger.rows, 2)
      workdir.keep()
      ledger.append('again', {}, {})
    with mirror.opened(URL) as path:
      rows = chain.read(pathlib.Path(path, 'ledger.jsonl'))
      self.assertIn('ledger.jsonl.damaged-0', files(path))
    steps = [row['payload']['step'] for row in rows]
    self.assertEqual(steps, ['train', 'train', 'again'])

  def test_a_row_that_is_missing_is_named(self):
    with mirror.opened(URL) as path, self.open(path) as workdir:
      workdir.keep()
      ledger = chain.Ledger(pathlib.Path(path, 'ledger.jsonl'))
      for _ in range(3):
        ledger.append('train', {}, {})
    self.store.remove('ledger/000001.json')
    with self.assertRaisesRegex(storage.StorageError, 'no ledger/000001.json'):
      self.seen()

  def test_the_inbox_of_the_user_is_read_at_every_row(self):
    with mirror.opened(URL) as path, self.open(path) as workdir:
      root = pathlib.Path(path)
      workdir.keep()
      ledger = chain.Ledger(root / 'ledger.jsonl')
      self.store.write('inbox/change.json', b'{}')
      ledger.append('train', {}, {})
      (root / 'inbox/done').mkdir()
      os.rename(root / 'inbox/change.json', root / 'inbox/done/change.json')
      ledger.append('train', {}, {})
      self.assertEqual(
          list(self.store.list('inbox')), ['inbox/done/change.json']
      )
    self.store.write('inbox/next.json', json.dumps({'veto': 1}).encode())
    self.assertContainsSubset(
        {'inbox/next.json', 'inbox/done/change.json'}, self.seen()
    )


if __name__ == '__main__':
  absltest.main()
