"""Streams of problems: reproducible, disjoint, without repeats."""

import json
import os
import subprocess
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from evojax.domains import sources
from evojax.domains import splits
from evojax.domains.math import generators
from evojax.domains.math import gym
from evojax.domains.math import problems


def draw():
  """Return problems of a stream and of every family."""
  stream = sources.ProceduralSource(
      problems.CATALOGUE, problems.CATALOGUE.select('gcd,aiw'), 'dev', 5
  )
  drawn = [problem.problem_id for problem in stream.take(40, 60)]
  for family, levels in generators.FAMILIES.items():
    for level in range(len(levels)):
      for index in range(2 if family == 'knight_swap' else 3):
        drawn.append(list(generators.generate(family, level, 3, index)[:2]))
  return drawn


def _source(split='train', seed=0, families='small', **kwargs):
  return sources.ProceduralSource(
      problems.CATALOGUE,
      problems.CATALOGUE.select(families),
      split,
      seed,
      **kwargs,
  )


class SelectTest(parameterized.TestCase):

  def _shares(self, *args):
    return {
        (e.family, e.level): e.weight for e in problems.CATALOGUE.select(*args)
    }

  def test_a_name_shares_its_weight_among_its_levels(self):
    # lcm has 2 small levels and 2 of the library: 3 / 4 each.
    self.assertEqual(
        self._shares(('gcd:1', 'lcm'), (1.0, 3.0)),
        {('gcd', 1): 1, **{('lcm', level): 0.75 for level in range(4)}},
    )

  def test_one_string_and_ranges(self):
    self.assertEqual(
        self._shares('gcd:0-1, chain_sum:3'),
        {('gcd', 0): 0.5, ('gcd', 1): 0.5, ('chain_sum', 3): 1},
    )

  def test_sets(self):
    small = self._shares('small')
    self.assertEqual(
        set(small),
        {(f, i) for f, ls in generators.SMALL.items() for i in range(len(ls))},
    )
    self.assertAlmostEqual(small['chain_sum', 0], 1 / len(generators.SMALL) / 5)
    families = {family for family, _ in self._shares('all')}
    self.assertEqual(
        families,
        set(generators.FAMILIES) - {*generators.TOO_SMALL, *gym.SCORED},
    )
    scored = {family for family, _ in self._shares('scored')}
    self.assertEqual(scored, set(gym.SCORED))
    self.assertGreaterEqual(len(families), 25)

  @parameterized.parameters(
      ('gdc', (), "'gdc' is not small, all, scored, or one of .* mean gcd"),
      ('gcd:7', (), "'gcd:7' asks for levels .* 0 to 3"),
      ('gcd:-1', (), 'asks for levels'),
      ('gcd:2-1', (), 'asks for levels'),
      ('gcd:x', (), 'asks for levels'),
      ('gcd,lcm', (1.0,), 'one positive number for each of the 2 names'),
      ('gcd,lcm', (1.0, 0.0), 'one positive number'),
      ('gcd,lcm', (1.0, -1.0), 'one positive number'),
      ('gcd,lcm', (1.0, float('nan')), 'one positive number'),
      ('gcd,lcm', (1.0, float('inf')), 'one positive number'),
  )
  def test_refuses(self, families, weights, message):
    with self.assertRaisesRegex(ValueError, message):
      problems.CATALOGUE.select(families, weights)


class CapacityTest(parameterized.TestCase):

  def test_collisions_give_the_size_of_a_known_space(self):
    # 2 terms of 2 digits, + or -: 90 * 90 * 2 = 16,200 problems. 400 draws
    # collide in 400 * 399 / 2 / 16,200 = 4.9 pairs: bound 5,000 to 26,600.
    count = problems.measure_capacity('chain_sum', 1)
    self.assertBetween(count, 3_000, 16_200)

  def test_the_table_is_what_is_measured(self):
    for family, levels in generators.FAMILIES.items():
      if family in gym.SCORED:  # Some are slow; gym_test.py covers a few.
        continue
      for level in range(len(levels)):
        with self.subTest(family, level=level):
          self.assertEqual(
              problems.capacity(family, level),
              problems.measure_capacity(family, level),
          )

  def test_every_family_of_all_passes_and_only_those(self):
    refused = set()
    for family, levels in generators.FAMILIES.items():
      for level in range(len(levels)):
        try:
          problems.CATALOGUE.check_capacity(family, level)
        except ValueError:
          refused.add(family)
    self.assertEqual(refused, set(generators.TOO_SMALL))

  def test_refusal_names_family_level_count_and_need(self):
    # 3 to 15 flips, exactly or at least k heads: 234 problems.
    with self.assertRaisesRegex(
        ValueError,
        "'coin_flip' level 0 has only about 2[0-9][0-9] distinct problems,"
        ' 2[0-9] in a split of 10 %.* need 100',
    ):
      _source(families='coin_flip')


class ProceduralSourceTest(parameterized.TestCase):

  def test_splits_are_disjoint_whatever_the_seed(self):
    ids = {
        split: {
            p.problem_id
            for seed in (0, 1)
            for p in _source(split, seed).take(0, count)
        }
        for split, count in (('train', 1500), ('dev', 300), ('sealed', 300))
    }
    self.assertEmpty(ids['train'] & ids['dev'])
    self.assertEmpty(ids['train'] & ids['sealed'])
    self.assertEmpty(ids['dev'] & ids['sealed'])

  def test_problems_belong_to_the_split_by_their_text(self):
    for split in splits.SHARES:
      for problem in _source(split).take(17, 40):
        identity = splits.problem_id(problem.question)
        self.assertEqual(identity, problem.problem_id)
        self.assertEqual(splits.split_of(identity), split)

  def test_any_position_without_those_before(self):
    whole = _source().take(0, 64)
    # The space is large, so none of the 64 problems was replaced as a repeat.
    apart = [p for i in range(0, 64, 16) for p in _source().take(i, 16)]
    self.assertEqual(whole, apart)
    self.assertEqual(_source().take(5003, 4), _source().take(5000, 8)[3:7])

  def test_far_positions_cost_no_more_than_near_ones(self):
    source = _source()
    with mock.patch.object(
        generators, 'generate', wraps=generators.generate
    ) as generate:
      source.take(10**9, 16)
    self.assertLess(generate.call_count, 100)

  def test_no_problem_twice_in_one_take(self):
    # About 3,500 problems in all, 350 in dev: 200 samples certainly repeat
    # some.
    taken = _source('dev', families='gcd:0').take(0, 200)
    self.assertLen({p.problem_id for p in taken}, 200)
    self.assertEqual(taken, _source('dev', families='gcd:0').take(0, 200))

  def test_a_take_beyond_the_space_is_an_error(self):
    # With fewer attempts, the source finds sooner that nothing is left.
    few = mock.patch.object(sources, '_ATTEMPTS', 100)
    wanted = "no further .* split 'dev' after"
    with few, self.assertRaisesRegex(ValueError, wanted):
      _source('dev', families='gcd:0').take(0, 500)

  def test_dev_is_drawn_afresh_by_seed(self):
    a, b = (
        {p.problem_id for p in _source('dev', seed).take(0, 128)}
        for seed in (0, 1)
    )
    self.assertLess(len(a & b), 16)

  def test_weights_are_the_shares_of_the_stream(self):
    entries = problems.CATALOGUE.select(('gcd:1', 'lcm:1'), (1.0, 3.0))
    taken = sources.ProceduralSource(
        problems.CATALOGUE, entries, 'train', 0
    ).take(0, 400)
    # 300 of 400 are expected; standard deviation sqrt(400 * .75 * .25) = 8.7.
    self.assertBetween(sum(p.family == 'lcm' for p in taken), 270, 330)

  def test_a_problem_says_where_it_is_from(self):
    problem = _source(families='gcd:1', system_prompt='Be brief.').take(3, 1)[0]
    self.assertEqual((problem.family, problem.difficulty), ('gcd', 1))
    self.assertEqual(
        problem.messages[0], {'role': 'system', 'content': 'Be brief.'}
    )
    self.assertEqual(problem.metadata['answer_form'], 'value')
    self.assertEqual(problem.metadata['result'], int(problem.answer))
    # The system prompt is not part of the identity, so that a prompt can be
    # tuned without moving problems between splits.
    bare = _source(families='gcd:1').take(3, 1)[0]
    self.assertEqual(problem.problem_id, bare.problem_id)

  def test_length_is_a_lower_bound_of_distinct_problems(self):
    # 59 * 59 = 3,481 pairs of 2..60, 10 % of them in dev.
    self.assertBetween(len(_source('dev', families='gcd:0')), 100, 348)
    self.assertEqual(
        len(_source('train', families='gcd:0')),
        problems.capacity('gcd', 0) * 80 // 100,
    )

  def test_unknown_split(self):
    with self.assertRaisesRegex(ValueError, "'test'"):
      _source('test')

  def test_problems_do_not_depend_on_the_process(self):
    # Iterating over a set of strings would make them depend on the hash seed.
    script = (
        'import json, runpy\n'
        f'print(json.dumps(runpy.run_path({__file__!r})["draw"]()))'
    )
    output = subprocess.run(
        [sys.executable, '-c', script],
        env={**os.environ, 'PYTHONHASHSEED': '11', 'PYTHONPATH': '.'},
        capture_output=True,
        check=True,
    ).stdout
    self.assertEqual(json.loads(output), draw())


if __name__ == '__main__':
  absltest.main()
