"""Runs that evolve under evolve.tokens, recomputed from their ledgers.

Limits are in updates, of as many tokens as the first round expects. An arm has
two updates, a dev score costs D, and so does the perturbed score of an arm, for
which a round with candidates keeps 2 D per pair.
"""

import contextlib
import functools
import json
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest
import pytest

import evojax
from evojax.ledger import chain
from tests import compiled
from tests import tiny
from tests.evolve import recompute

_GROWTH = 1.1  # Completions may grow by a tenth in the first round.
_RATE = {
    'delta': {'overlay': {'optim.learning_rate': 0.002}},
    'hypothesis': 'It learns too slowly.',
    'expected': [0.0, 0.5],
}
# Rollouts at another temperature do not compare: arms need dev scores.
_HOTTER = {
    'delta': {'overlay': {'rollout.temperature': 1.2}},
    'hypothesis': 'It explores too little.',
    'expected': [0.0, 0.5],
}
# Kinds of problems, of which one is less than 5 %: a critical fault.
_KINDS = (
    'basic_arithmetic:0-1', 'chain_sum:0-4', 'decimal_chain_sum:0-1', 'gcd:0-1',
    'lcm:0-1', 'leg_counting:0-2', 'products:0-1', 'simple_equations:0-2',
)  # fmt: skip
_SLICE = dict(
    domain__kwargs__families=_KINDS,
    data__families=('chain_sum:0',),
    data__max_prompt_tokens=64,
)


class Killed(BaseException):
  """The process ends here."""


@pytest.fixture(autouse=True, scope='module')
def optimised():
  with compiled.optimised():
    yield


def payloads(path):
  return [row['payload'] for row in chain.read(path / 'ledger.jsonl')]


def of(rows, step, **match):
  """Return the rows of a step whose fields have these values."""
  found = [row for row in rows if row['step'] == step]
  return [row for row in found if match.items() <= row.items()]


def evolve(path, config, **changes):
  """Evolve with changes in the inbox of a new run; return its rows."""
  if not path.exists():
    (path / 'inbox').mkdir(parents=True)
    for name, fields in changes.items():
      (path / 'inbox' / f'{name}.json').write_text(json.dumps(fields))
  evojax.run(config, str(path))
  return payloads(path)


def evolve_until(death, path, config, **changes):
  """Evolve, but die before a row is written; return the rows until then."""
  append = chain.Ledger.append

  def dies(ledger, step, row, measured):
    if death.items() <= dict(row, step=step).items():
      raise Killed
    return append(ledger, step, row, measured)

  with mock.patch.object(chain.Ledger, 'append', dies):
    with contextlib.suppress(Killed):
      evolve(path, config, **changes)
      raise AssertionError(f'no row is {death}')
  return payloads(path)


@functools.cache
def first_arm(sliced):
  """Return the row of the first arm of a run, which no limit changes."""
  config = tiny.evolving(**_SLICE if sliced else {})
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, 'run')
    return evolve_until(dict(step='diagnose'), path, config)[-1]


def limited(updates, sliced=False, **options):
  """Return a config whose tokens pay for updates after the first arm."""
  arm = first_arm(sliced)
  tokens = arm['sampled_tokens'] * (1 + updates * _GROWTH / arm['updates'])
  options |= _SLICE if sliced else {}
  return tiny.evolving(evolve__tokens=round(tokens), **options)


class TokensTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    root = self.enterContext(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(root, 'run')

  @pytest.mark.slow
  def test_a_repair_that_enters_alone_in_fewer_pairs(self):
    # D is 1.5: two candidates have places from 24 + 8 D = 36 updates on, and
    # four pairs of a repair with dev scores cost 16 + 16 D = 40.
    config = limited(
        38,
        sliced=True,
        evolve__candidates=2,
        evolve__pairs=4,
        evolve__problems=12,
        evolve__rounds=4,
    )
    rows = evolve_until(dict(step='promote'), self.path, config, rate=_RATE)
    self.assertEqual(recompute.compare(self.path), [])
    factors = [row['delta']['factor'] for row in of(rows, 'design')]
    self.assertEqual(factors, ['optim.learning_rate', 'data.families'])
    (first,) = of(rows, 'race')
    queue = [(p['trial'], p['enters'], p['reason']) for p in first['queue']]
    self.assertEqual(
        queue,
        [
            (1, True, 'repairs a critical fault'),
            (0, False, 'was left in the inbox, waits for that repair'),
        ],
    )
    self.assertEqual(first['scored_by'], 'dev')
    self.assertEqual({arm['pair'] for arm in first['arms']}, {0, 1, 2})

  @pytest.mark.slow
  def test_a_candidate_that_just_has_a_place_also_if_the_run_is_killed(self):
    # D is 1: a candidate has a place if three pairs, with the perturbed scores
    # of four, are paid for: 12 + 8 D = 20 updates. Once its replay has taken
    # some, there must be no doubt about this.
    config = limited(20.3, evolve__pairs=4, evolve__rounds=3)
    end = dict(step='promote')
    rows = evolve_until(end, self.path, config, rate=_RATE)
    self.assertEqual(recompute.compare(self.path), [])
    (replay,) = of(rows, 'backtest')
    arm = first_arm(sliced=False)
    update = _GROWTH * arm['sampled_tokens'] / arm['updates']
    self.assertBetween(replay['sampled_tokens'] / update, 0.4, 2.2)
    (race_,) = of(rows, 'race')
    self.assertEqual({arm['pair'] for arm in race_['arms']}, {0, 1, 2})
    # No further race is paid for: all is bet.
    (standing,) = race_['standings']
    self.assertIn(standing['e_value'], (0.0, standing['threshold']))
    killed = self.path.with_name('killed')
    for death in (dict(step='race'), dict(step='verify'), end):
      again = evolve_until(death, killed, config, rate=_RATE)
    for expected, found in zip(rows, again, strict=True):
      self.assertEqual(found, expected)

  def test_a_candidate_whose_scores_are_not_paid_for(self):
    # D is 1: a candidate has a place if three pairs without dev scores are paid
    # for, which cost 12 + 8 D = 20 updates. With them it takes 12 + 12 D = 24.
    config = limited(22, evolve__pairs=4, evolve__rounds=1)
    end = dict(step='promote')
    rows = evolve_until(end, self.path, config, hotter=_HOTTER)
    self.assertEqual(recompute.compare(self.path), [])
    (race_,) = of(rows, 'race')
    (place,) = race_['queue']
    self.assertFalse(place['enters'])
    self.assertEndsWith(place['reason'], 'which the tokens do not pay for')
    self.assertLen(race_['arms'], 4)
    (verdict,) = of(rows, 'verify')
    self.assertEqual(verdict['status'], 'superseded')


if __name__ == '__main__':
  absltest.main()
