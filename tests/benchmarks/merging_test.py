"""Merged states by hand, the table, and a queue that can be interrupted."""

import collections
import contextlib
import io
import json
import pathlib
import tempfile
from unittest import mock

from absl import flags
from absl.testing import absltest
from absl.testing import flagsaver
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import json_lines
from benchmarks import merging

Moments = collections.namedtuple('Moments', 'count mu nu')


def state(value, mu, nu):
  """The state of an arm with one parameter, after 8 updates."""
  leaf = lambda x: {'w': jnp.float32(x)}
  moments = Moments(jnp.int32(8), leaf(mu), leaf(nu))
  return {'params': leaf(value), 'moments': moments, 'step': 8}


def row(line, seed, score, what='policy', **fields):
  """A row of a file, with the numbers that the table prints."""
  names = 'pass_at_k length truncated entropy kl_base logprob_gap seconds'
  return {
      **dict.fromkeys(names.split(), 0.0),
      **dict(domain='math', line=line, seed=seed, what=what, score=score),
      **dict(mark=250_000, tokens=260_000, updates_in_a_row=16, kl_arms=[]),
      **fields,
  }


class MergeTest(absltest.TestCase):

  def _merge(self, velocity=None, **fields):
    """Merge arms at 0.6 and 0.8 that started at 1."""
    states = state(0.6, 0.1, 0.3), state(0.8, 0.3, 0.5)
    line = merging.Line(rates=(1e-4,) * 2, **fields)
    start = {'w': jnp.float32(1.0)}
    velocity = velocity and {'w': jnp.float32(velocity)}
    found, velocity = merging.merge(line, start, states, velocity)
    moments = found['moments']
    return (
        [float(found['params']['w']), int(moments.count)],
        [float(moments.mu['w']), float(moments.nu['w'])],
        velocity and float(velocity['w']),
    )

  def _assert_merged(self, found, *expected):
    for own, wanted in zip(found, expected, strict=True):
      if wanted is None:
        self.assertIsNone(own)
      else:
        np.testing.assert_allclose(own, wanted, rtol=1e-6)

  def test_mean(self):
    self._assert_merged(self._merge(), [0.7, 8], [0.2, 0.4], None)

  def test_moments_start_again_with_their_count(self):
    found = self._merge(moments='reset')
    self._assert_merged(found, [0.7, 0], [0.0, 0.0], None)

  def test_outer_step(self):
    # d = 1 - 0.7 = 0.3, and at first v = d: 1 - 0.7 (0.3 + 0.9 x 0.3).
    first = self._merge(combine='outer')
    self._assert_merged(first, [0.601, 8], [0.2, 0.4], 0.3)
    # v = 0.9 x 0.5 + 0.3 = 0.75: 1 - 0.7 (0.3 + 0.9 x 0.75).
    later = self._merge(0.5, combine='outer')
    self._assert_merged(later, [0.3175, 8], [0.2, 0.4], 0.75)
    # A step of 2 without momentum: 1 - 2 x 0.3.
    plain = self._merge(combine='outer', outer_rate=2.0, outer_momentum=0.0)
    self._assert_merged(plain, [0.4, 8], [0.2, 0.4], 0.3)


class QueueTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.enter_context(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(folder, 'rows.jsonl')
    flags.FLAGS.mark_as_parsed()

  def _main(self, **values):
    """Run the command; return what it prints."""
    values = dict(out=str(self.path), domains=['math'], seeds=2) | values
    out = io.StringIO()
    with flagsaver.flagsaver(**values), contextlib.redirect_stdout(out):
      merging.main([])
    return out.getvalue()

  def test_table(self):
    rows = [row('seed', 0, 70.0), row('seed', 1, 74.0)]
    rows += [row('merged_1e-4', 0, 60.0), row('merged_1e-4', 1, 69.0)]
    # The line was trained again after a kill.
    rows += [row('merged_1e-4', 0, 66.0, kl_arms=[0.1, 0.3])]
    rows += [row('merged_1e-4', 0, 61.0, 'arm', arm=0)]
    rows += [row('merged_1e-4', 0, 64.0, 'arm', arm=1)]
    rows += [row('merged_1e-4', 0, 65.0, 'between_0.5')]
    json_lines.append(self.path, rows)
    header, merged, seed, end = self._main(table=True).splitlines()
    self.assertIn('tokens', header)
    # Student's t for two seeds is 12.706: 66 and 69 are 67.5 +- 12.706 x 1.5,
    # and the differences to the seed recipe, -4 and -5, -4.5 +- 12.706 x 0.5.
    self.assertIn('0.25 M (0.26 spent)  n=2   67.5 ±19.1   -4.5 ± 6.4', merged)
    self.assertIn(' 0.2000 ', merged)  # Mean KL between the arms.
    self.assertIn('n=2   72.0 ±25.4    0.0 ± 0.0', seed)
    self.assertEndsWith(end, 'at its end: arm 62.5, between_0.5 65.0')

  def test_finished_lines_are_not_trained_again(self):
    json_lines.append(self.path, [row('seed', 0, 70.0), row('seed', 1, 71.0)])
    before = self.path.read_bytes()
    wanted = dict(lines=['seed'], most_tokens=3e5)
    with mock.patch.object(merging, 'Bench', side_effect=KeyError) as bench:
      self.assertEqual(self._main(**wanted), '')
      bench.assert_not_called()
      # A line of which a mark or a seed is missing is trained.
      unfinished = dict(most_tokens=6e5), dict(seeds=3), dict(lines=['unlike'])
      for more in unfinished:
        with self.assertRaises(KeyError):
          self._main(**(wanted | more))
    self.assertEqual(self.path.read_bytes(), before)

  def test_a_row_that_a_kill_cut_off(self):
    json_lines.append(self.path, [row('seed', 0, 70.0)])
    with self.path.open('a') as file:
      file.write(json.dumps(row('seed', 1, 71.0))[:-9])
    self.assertLen(merging.read(self.path), 1)
    json_lines.append(self.path, [row('seed', 1, 72.0)])
    scores = [found['score'] for found in merging.read(self.path).values()]
    self.assertEqual(scores, [70.0, 72.0])

  def test_wrong_flags(self):
    for values, error in (
        (dict(most_tokens=1e5), 'most_tokens=100000: at least 250000'),
        (dict(lines=['seed', 'x']), r"lines=\['x'\]: choose from"),
    ):
      with self.assertRaisesRegex(merging.app.UsageError, error):
        self._main(**values)

  @pytest.mark.long
  def test_training_continues_after_a_kill(self):
    sizes = dict(MARKS=(1000, 4000), ROUND=1, PROBLEMS=4, SAMPLES=2)
    for name, value in dict(sizes, MEASURED=8, ON_THE_LINE=(0.5,)).items():
      self.enter_context(mock.patch.object(merging, name, value))
    wanted = dict(lines=['outer2_1e-4'], seeds=1, most_tokens=4e3)
    self._main(**wanted)
    whole = self.path.read_text().splitlines()
    # The policy at 2 marks; at the last one the arms and a point between them.
    self.assertLen(whole, 2 + 3)
    self.path.write_text('\n'.join([*whole[:1], whole[1][:20]]))
    self._main(**wanted)
    stripped = lambda line: {k: v for k, v in line.items() if k != 'seconds'}
    again = merging.read(self.path)
    expected = [stripped(json.loads(line)) for line in whole]
    self.assertCountEqual(map(stripped, again.values()), expected)


if __name__ == '__main__':
  absltest.main()
