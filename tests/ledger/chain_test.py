import hashlib
import json
import os
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.ledger import chain as chain_lib

STEPS = (
    ('open', {'config': {'b': 1, 'a': [0.1, None]}}),
    ('train', {'version': 'v0', 'outcome': [0.5, 1e-7]}),
    ('verify', {'trial': 0, 'p': 0.25, 'reasons': ['so', 'ü']}),
)


def _payloads(ledger):
  return [row['payload'] for row in ledger.rows]


class LedgerTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    directory = self.enterContext(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(directory) / 'ledger.jsonl'

  def _fill(self):
    ledger = chain_lib.Ledger(self.path)
    for step, data in STEPS:
      ledger.append(step, data, {'seconds': 1.5})
    return ledger

  def _clear(self):
    # Much faster than to overwrite, which some file systems flush.
    for path in self.path.parent.iterdir():
      path.unlink()

  def _open_damaged(self, data):
    """Ledger on these bytes, and what was set aside of them."""
    self._clear()
    self.path.write_bytes(data)
    with self.assertLogs(level='WARNING') as logs:
      ledger = chain_lib.Ledger(self.path)
    self.assertLen(logs.output, 1)
    aside = self.path.with_name('ledger.jsonl.damaged-0').read_bytes()
    # Nothing is lost, and the warning says where the damage begins.
    self.assertEqual(self.path.read_bytes() + aside, data)
    self.assertIn(f'from byte {len(data) - len(aside)}:', logs.output[0])
    return ledger

  def test_the_tier_stands_in_every_row(self):
    ledger = chain_lib.Ledger(self.path, 'T1')
    ledger.append('a', {}, {})
    # The rest of the run may be done where the box holds less.
    chain_lib.Ledger(self.path, 'T2').append('b', {}, {})
    rows = [row['payload'] for row in chain_lib.read(self.path)]
    self.assertEqual([row['sandbox'] for row in rows], ['T1', 'T2'])
    with self.assertRaisesRegex(chain_lib.LedgerError, 'sandbox'):
      chain_lib.Ledger(self.path, 'T2').append('c', {'sandbox': 'T0'}, {})

  def test_chain_is_that_of_the_contract(self):
    self._fill()
    previous = '0' * 64
    for n, line in enumerate(self.path.read_text().splitlines()):
      row = json.loads(line)
      canonical = lambda x: json.dumps(x, sort_keys=True, separators=(',', ':'))
      previous = hashlib.sha256(
          (previous + canonical(row['payload'])).encode()
      ).hexdigest()
      self.assertEqual(row['hash'], previous)
      self.assertEqual(
          row['measured_sha256'],
          hashlib.sha256(b'{"seconds":1.5}').hexdigest(),
      )
      self.assertEqual(
          row['payload'], {'n': n, 'step': STEPS[n][0], **STEPS[n][1]}
      )

  def test_reopened_is_the_same(self):
    ledger = self._fill()
    with self.assertNoLogs(level='WARNING'):
      again = chain_lib.Ledger(self.path)
    self.assertEqual(again.rows, ledger.rows)
    self.assertEqual(again.head, ledger.head)
    self.assertEqual(_payloads(again), _payloads(ledger))
    self.assertEqual(chain_lib.read(self.path), list(ledger.rows))

  def test_payload_and_head_do_not_depend_on_measurements_or_key_order(self):
    one = chain_lib.Ledger(self.path)
    one.append('train', {'a': 1, 'b': 2}, {'seconds': 1.0})
    other = chain_lib.Ledger(self.path.with_name('other.jsonl'))
    other.append('train', {'b': 2, 'a': 1}, {'seconds': 2.0, 'rss': 7})
    self.assertEqual(one.head, other.head)
    self.assertEqual(_payloads(one), _payloads(other))

  def test_appended_row_is_what_a_reader_gets(self):
    ledger = chain_lib.Ledger(self.path)
    row = ledger.append('design', {'changes': (('a', 1, 2.5),)}, {})
    self.assertEqual(row['payload']['changes'], [['a', 1, 2.5]])
    self.assertEqual(row, chain_lib.Ledger(self.path).rows[0])

  @mock.patch.object(os, 'fsync')  # Thousands of files, none to outlast us.
  def test_truncated_at_every_byte(self, _):
    payloads = _payloads(self._fill())
    data = self.path.read_bytes()
    for cut in range(len(data)):
      whole = data[:cut].count(b'\n')
      if data[:cut].endswith(b'\n') or not cut:
        self._clear()
        self.path.write_bytes(data[:cut])
        with self.assertNoLogs(level='WARNING'):
          ledger = chain_lib.Ledger(self.path)
      else:
        ledger = self._open_damaged(data[:cut])
      self.assertEqual(_payloads(ledger), payloads[:whole], cut)

  @mock.patch.object(os, 'fsync')  # Thousands of files, none to outlast us.
  def test_altered_in_every_byte(self, _):
    payloads = _payloads(self._fill())
    data = self.path.read_bytes()
    for at in range(len(data)):
      before = data[:at].count(b'\n')
      for value in {data[at] ^ 1, data[at] ^ 0x20, data[at] ^ 0x80, 10, 32}:
        if value == data[at]:
          continue
        altered = data[:at] + bytes([value]) + data[at + 1 :]
        self._clear()
        self.path.write_bytes(altered)
        rows = chain_lib.read(self.path)
        self.assertEqual(
            [row['payload'] for row in rows], payloads[:before], (at, value)
        )
      self.assertEqual(
          _payloads(self._open_damaged(altered)), payloads[:before]
      )

  @parameterized.named_parameters(
      ('swapped', lambda a, b, c: a + c + b, 1),
      ('one_missing', lambda a, b, c: a + c, 1),
      ('first_missing', lambda a, b, c: b + c, 0),
      ('repeated', lambda a, b, c: a + b + b + c, 2),
      ('blank_line', lambda a, b, c: a + b'\n' + b + c, 1),
      ('carriage_return', lambda a, b, c: a + b[:-1] + b'\r\n' + c, 1),
      ('not_json', lambda a, b, c: a + b + b'[' * 100_000 + b'\n' + c, 2),
      ('not_a_row', lambda a, b, c: a + b'[1]\n', 1),
      ('payload_is_text', lambda a, b, c: a + b'{"payload":"n"}\n', 1),
      ('nan', lambda a, b, c: a + b.replace(b'0.5', b'NaN') + c, 1),
      ('same_value', lambda a, b, c: a + b.replace(b'0.5', b'0.50') + c, 1),
  )
  def test_damage(self, damage, rows):
    payloads = _payloads(self._fill())
    lines = self.path.read_bytes().splitlines(keepends=True)
    ledger = self._open_damaged(damage(*lines))
    self.assertEqual(_payloads(ledger), payloads[:rows])

  def test_goes_on_after_damage_as_if_nothing_had_been(self):
    undisturbed = self._fill()
    data = self.path.read_bytes()
    ledger = self._open_damaged(data[:-5])
    step, values = STEPS[-1]
    ledger.append(step, values, {'seconds': 99.0})
    self.assertEqual(ledger.head, undisturbed.head)
    # A second accident keeps the first tail.
    with open(self.path, 'ab') as file:
      file.write(b'torn')
    reopened = chain_lib.Ledger(self.path)
    self.assertEqual(_payloads(reopened), _payloads(undisturbed))
    second = self.path.with_name('ledger.jsonl.damaged-1')
    self.assertEqual(second.read_bytes(), b'torn')

  @parameterized.named_parameters(
      ('nan', {'a': {'b': [1.0, float('nan')]}}, r'a\.b\[1\] = nan'),
      ('infinite', {'a': float('inf')}, 'a = inf'),
      ('array', {'a': np.ones(2)}, r'ndarray.*\.tolist\(\)'),
      ('numpy_integer', {'a': np.int64(1)}, r'int64.*\.item\(\)'),
      ('key', {'a': {1: 2}}, 'key 1 in a is not text'),
      ('reserved', {'n': 3}, 'set by the ledger'),
  )
  def test_refused(self, data, message):
    ledger = self._fill()
    before = self.path.read_bytes()
    with self.assertRaisesRegex(chain_lib.LedgerError, message):
      ledger.append('train', data, {})
    self.assertEqual(self.path.read_bytes(), before)

  def test_full_disk_leaves_the_ledger_as_it_was(self):
    ledger = self._fill()
    before = self.path.read_bytes()
    write = os.pwrite

    def fills_up(fd, data, offset):
      if len(data) < 40:
        raise OSError(28, 'No space left on device')
      return write(fd, data[:30], offset)

    with mock.patch.object(os, 'pwrite', fills_up):
      with self.assertRaisesRegex(OSError, 'No space left.*Free space'):
        ledger.append('stop', {'reason': 'trials'}, {})
    self.assertEqual(self.path.read_bytes(), before)
    ledger.append('stop', {'reason': 'trials'}, {})
    self.assertLen(chain_lib.Ledger(self.path).rows, 4)

  def test_row_is_synced_before_append_returns(self):
    ledger = self._fill()
    sizes = []
    sync = os.fsync

    def fsync(fd):
      sizes.append(os.fstat(fd).st_size)
      sync(fd)

    with mock.patch.object(os, 'fsync', fsync):
      ledger.append('stop', {}, {})
    self.assertEqual(sizes, [self.path.stat().st_size])

  def test_another_writer_is_noticed(self):
    ledger = self._fill()
    chain_lib.Ledger(self.path).append('stop', {}, {})
    before = self.path.read_bytes()
    with self.assertRaisesRegex(chain_lib.LedgerError, 'whatever else writes'):
      ledger.append('stop', {}, {})
    self.assertEqual(self.path.read_bytes(), before)

  def test_reading_a_live_ledger_changes_nothing(self):
    self._fill()
    with open(self.path, 'ab') as file:
      file.write(b'{"hash":')
    self.assertLen(chain_lib.read(self.path), 3)
    self.assertTrue(self.path.read_bytes().endswith(b'{"hash":'))
    self.assertLen(list(self.path.parent.iterdir()), 1)


if __name__ == '__main__':
  absltest.main()
