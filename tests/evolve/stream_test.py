"""The policy's line meets each problem of a data set once in an epoch."""

import dataclasses
import json
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest
import ml_collections

import evojax
from evojax.evidence import store
from evojax.evolve import opening
from evojax.evolve import stream
from evojax.ledger import chain
from evojax.ledger import records
from tests import tiny
from tests.ledger import samples


class ReserveTest(absltest.TestCase):

  def test_by_hand(self):
    refills = {'seed': 0, 'filter': 2}
    evolve = dict(first_updates=8, pairs=4, updates=5)
    run = mock.Mock(
        spec=opening.Run, harnesses=mock.Mock(), recorder=mock.Mock()
    )
    run.config = ml_collections.ConfigDict(
        {'seed': 9, 'evolve': evolve, 'grpo': {'prompts': 3}}
    )
    run.harnesses.config_under = lambda name: ml_collections.ConfigDict(
        {'grpo': {'refill_rounds': refills[name]}}
    )
    arm = lambda name: samples.record(records.RacedArm, harness=name)
    races = [
        samples.record(
            records.Race, round=n, arms=tuple(arm(name) for name in names)
        )
        for n, names in enumerate((['seed'], ['seed', 'filter'], ['seed']))
    ]
    base = samples.record(records.Train, harness='seed', end='aa')
    run.recorder.history = mock.Mock(races=races, base=base)
    opened = lambda forked: samples.record(records.Open, forked=forked)
    run.recorder.find.return_value = opened('')
    # Version 0: 8 x 3 = 24. Round 0: 4 x 5 x 3 = 60. Round 1, in which an
    # update may need 3 x 3: 180.
    for number, first in enumerate((24, 84, 264)):
      found = stream.reserve(run, number, ['seed'])
      self.assertEqual(found, stream.Reserve(9, first, 15))
    found = stream.reserve(run, 1, ['seed', 'filter'])
    self.assertEqual([found.of(pair) for pair in (0, 1)], [(9, 84), (9, 129)])
    self.assertEqual(stream.lineage(run), ())
    # A fork has a stream of its own, which depends on what it continues.
    run.recorder.find.return_value = opened('run:v1')
    forks = set()
    for end in ('aa', 'aa', 'bb'):
      run.recorder.history.base = dataclasses.replace(base, end=end)
      self.assertEqual(stream.lineage(run), (end,))
      forks.add(stream.reserve(run, 1, ['seed', 'filter']).seed)
    self.assertLen(forks, 2)
    self.assertNotIn(9, forks)


class LineTest(absltest.TestCase):

  def test_no_problem_twice_in_an_epoch(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    # Version 0 has 2 x 4 problems, and the three pairs of each of two rounds
    # have as many: 56 in all.
    for split, count in (('train', 60), ('dev', 30), ('sealed', 30)):
      lines = [
          json.dumps({'question': f'{split} {n} + 1?', 'answer': str(n + 1)})
          for n in range(count)
      ]
      (root / f'{split}.jsonl').write_text('\n'.join(lines))
    config = tiny.evolving(evolve__entries=1, evolve__end_at_fault=False)
    with config.unlocked():
      config.domain.kwargs = ml_collections.ConfigDict(
          {
              'jsonl': {
                  split: str(root / f'{split}.jsonl')
                  for split in ('train', 'dev', 'sealed')
              }
          }
      )
    path = root / 'run'
    evojax.run(config, str(path))
    rows = [r['payload'] for r in chain.read(path / 'ledger.jsonl')]
    races = [row for row in rows if row['step'] == 'race']
    self.assertLen(races, 2)
    by_pair = {}
    for row in races:
      for arm in row['arms']:
        met = self._problems(path / arm['folder'])
        # Arms of a pair share their problems, in the same order.
        self.assertEqual(
            by_pair.setdefault((row['round'], arm['pair']), met), met
        )
    self.assertLen(by_pair, 6)
    line = self._problems(path / 'arms/v0')
    for met in by_pair.values():
      line += met
    self.assertLen(line, 56)
    self.assertLen(set(line), 56)

  def _problems(self, folder):
    """The problems that an arm met, in order."""
    found = []
    for step in store.list_steps(folder, 'train'):
      frame = store.read(folder, 'train', [step])
      found += frame.drop_duplicates('group')['problem_id'].to_list()
    return found


if __name__ == '__main__':
  absltest.main()
