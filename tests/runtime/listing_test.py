"""The list of files in a store: what readers see, kills, cost of a version."""

from absl.testing import absltest

from evojax.runtime import lease
from evojax.runtime import listing
from evojax.runtime import storage
from tests.runtime import storage_test


class ListingTest(storage_test.StorageTestCase):

  def setUp(self):
    super().setUp()
    patch = absltest.mock.patch.object(listing, '_LEAST_ENTRIES', 4)
    self.enterContext(patch)
    self.writer = listing.Listing(self.store)
    self.writer.read()

  def seen(self):
    found = listing.read(self.store)
    self.assertEqual(found.version, self.writer.version)
    return found.files

  def segments(self):
    return sorted(self.store.list('.files'))

  def test_every_version_is_read_as_it_was_written(self):
    self.failing(0.05)
    wanted, versions = {}, {''}
    self.assertEqual(self.seen(), wanted)
    for number in range(40):
      # Two files come, one changes, and one goes in every other version.
      added = {f'a{number}': 1, f'b{number}': 2, 'log': number}
      removed = [f'a{number - 1}'] if number % 2 else []
      self.writer.write(added, removed)
      wanted |= added
      for name in removed:
        del wanted[name]
      self.assertEqual(self.seen(), wanted)
      versions.add(self.writer.version)
    self.assertLen(versions, 41)

  def test_a_file_that_changes_keeping_its_size_makes_a_version(self):
    self.writer.write({'log': 1}, ())
    before = self.writer.version
    self.writer.write({'log': 1}, ())
    self.assertEqual(self.seen(), {'log': 1})
    self.assertNotEqual(self.writer.version, before)

  def test_the_cost_of_a_version_does_not_grow(self):
    sizes, write = [], storage.Store._write

    def counted(store, function, path, data, **kwargs):
      sizes.append(len(data))
      return write(store, function, path, data, **kwargs)

    costs = []
    patch = absltest.mock.patch.object(storage.Store, '_write', counted)
    with patch:
      for number in range(512):
        names = [f'arms/{number:04d}/file{i}' for i in range(4)]
        self.writer.write(dict.fromkeys(names, 1000), ())
        if number in (255, 511):
          costs.append(sum(sizes))
          # A reader does not read much more than the list.
          self.assertLessEqual(len(self.segments()), (number + 1) // 2)
    self.assertLen(self.seen(), 4 * 512)
    # Twice the versions cost twice as much; whole lists would cost four times.
    self.assertLess(costs[1], 2.5 * costs[0])

  def test_a_kill_between_a_base_and_the_removal_of_its_segments(self):
    for number in range(2):
      self.writer.write({f'a{number}': 1}, ())
    self.writer.write({'b': 1}, ['a0'])
    left = self.segments()
    self.assertNotEmpty(left)
    with absltest.mock.patch.object(
        storage.Store, 'remove', side_effect=KeyboardInterrupt
    ):
      with self.assertRaises(KeyboardInterrupt):
        self.writer.write(dict.fromkeys(('c', 'd', 'e', 'f'), 1), ['b'])
    self.assertEqual(self.segments(), left)
    wanted = dict.fromkeys(('a1', 'c', 'd', 'e', 'f'), 1)
    self.assertEqual(self.seen(), wanted)
    # The next process goes on, and removes them with those of its own.
    self.writer = listing.read(self.store)
    for number in range(7):
      self.writer.write({'g': number}, ())
      self.assertEqual(self.seen(), wanted | {'g': number})
    self.assertNoCommonElements(self.segments(), left)

  def test_a_reader_while_the_list_is_compacted(self):
    self.writer.write({'a': 1}, ())
    self.writer.write({'b': 1}, ())
    read, reads = storage.Store.read_json, []

    def late(store, name, key):
      found = read(store, name, key)
      if not reads:  # The base that it has read is replaced at once.
        reads.append(name)
        self.writer.write(dict.fromkeys('cdef', 1), ['a'])
      return found

    with absltest.mock.patch.object(storage.Store, 'read_json', late):
      self.assertEqual(self.seen(), dict.fromkeys('bcdef', 1))
    self.assertEqual(reads, ['.files.json'])

  def test_two_writers(self):
    self.writer.write({'a': 1}, ())
    other = listing.read(self.store)
    self.writer.write({'b': 1}, ())
    with self.assertRaisesRegex(lease.LeaseError, '.files/000002.json was wri'):
      other.write({'c': 1}, ())
    self.assertEqual(self.seen(), {'a': 1, 'b': 1})

  def test_a_segment_that_somebody_has_deleted(self):
    for name in 'abc':
      self.writer.write({name: 1}, ())
    self.store.remove('.files/000002.json')
    with self.assertRaisesRegex(storage.StorageError, '.files lacks segments'):
      self.seen()

  def test_a_first_base_that_could_not_be_written(self):
    refused = absltest.mock.Mock(side_effect=storage.StorageError)
    with absltest.mock.patch.object(self.store, 'write', refused):
      with self.assertRaises(storage.StorageError):
        self.writer.write({}, ())
    self.writer.write({'a': 1}, ())  # As a process does at its end.
    self.assertEqual(self.seen(), {'a': 1})

  def test_an_answer_that_is_no_list(self):
    self.writer.write({'a': 1}, ())
    read = self.store._fs.cat_file
    answers = [b'<html>try later</html>', b'{"error": 503}']

    def answer(path):
      return answers.pop() if answers else read(path)

    with absltest.mock.patch.object(self.store._fs, 'cat_file', answer):
      self.assertEqual(self.seen(), {'a': 1})
    self.store.write('.files.json', b'[]')
    with self.assertRaisesRegex(storage.StorageError, ".files.json holds no"):
      listing.read(self.store)

  def test_a_base_that_somebody_has_deleted(self):
    for name in 'abc':
      self.writer.write({name: 1}, ())
    self.store.remove('.files.json')
    self.writer.read()
    self.assertEqual(self.seen(), {})
    self.writer.write({'d': 1}, ())
    self.writer.write({'e': 1}, ())
    self.assertEqual(self.seen(), {'d': 1, 'e': 1})


if __name__ == '__main__':
  absltest.main()
