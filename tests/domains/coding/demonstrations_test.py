"""Behaviours taught to the base policy: programs of several kinds."""

import collections
import dataclasses
import pathlib
import tempfile

from absl.testing import absltest
import numpy as np

from evojax.domains import base
from evojax.domains import sources
from evojax.domains import splits
from evojax.domains.coding import comparison
from evojax.domains.coding import demonstrations
from evojax.domains.coding import problems
from evojax.domains.coding import programs
from evojax.domains.coding import suite
from evojax.models import tokenizer as tokenizer_lib
from evojax.models import tokenizer_training
from evojax.models import warmstart


def _draw(source, seed, step, count):
  return base.Demonstrations(demonstrations.demonstrate).batch(
      source, seed, step, count
  )


def _source(split='train'):
  return sources.ProceduralSource(
      problems.CATALOGUE,
      problems.CATALOGUE.select(demonstrations.FAMILIES),
      split,
      0,
  )


def _program(completion):
  """Return the fenced program; None if there is none."""
  head, _, rest = completion.partition('```python\n')
  program, fence, _ = rest.partition('\n```')
  return program if fence and not head else None


def _solved(problem, program):
  """Return (all tests passed, the visible ones passed)."""
  passed = collections.defaultdict(list)
  tests = suite.decode(problem.answer)
  for case in tests.cases:
    output = programs.run(program, case.stdin)
    passed[case.visible].append(
        output is not None
        and comparison.passes(case.expected, output.encode(), tests.comparison)
    )
  return all(passed[True] + passed[False]), all(passed[True])


class ActTest(absltest.TestCase):

  def test_each_behaviour_is_what_it_says(self):
    rng = np.random.default_rng(0)
    taken = _source().take(0, 135)
    shown = []
    for problem in taken:
      acts = {
          behaviour: demonstrations.act(problem, behaviour, rng)
          for behaviour in demonstrations.BEHAVIOURS
      }
      solved = {
          behaviour: _solved(problem, _program(acts[behaviour]))
          for behaviour in ('right', 'off_by_one', 'edge', 'constant')
      }
      self.assertEqual(solved['right'], (True, True))
      self.assertFalse(solved['off_by_one'][0])
      self.assertFalse(solved['edge'][0])
      # It passes the visible tests only.
      self.assertEqual(solved['constant'], (False, True))
      shown.append(solved['edge'][1])
      self.assertEqual(acts['unfenced'], _program(acts['right']))
      self.assertIsNone(_program(acts['endless']))
    # Passing the example does not mean being right: it lacks most edge cases.
    self.assertGreater(np.mean(shown), 0.5)

  def test_right_and_wrong_begin_alike(self):
    rng = np.random.default_rng(0)
    for problem in _source().take(0, 90):
      starts = {
          demonstrations.act(problem, behaviour, rng)[:16]
          for behaviour in ('right', 'off_by_one', 'edge')
      }
      self.assertLen({start[:11] for start in starts}, 1)

  def test_only_generated_problems_can_be_demonstrated(self):
    (problem,) = _source().take(0, 1)
    with self.assertRaisesRegex(ValueError, 'only generated problems'):
      demonstrations.demonstrate(
          dataclasses.replace(problem, metadata={}), np.random.default_rng(0)
      )


class BatchTest(absltest.TestCase):

  def test_is_a_function_of_the_step(self):
    first = _draw(_source(), 0, 3, 40)
    self.assertEqual(first, _draw(_source(), 0, 3, 40))
    self.assertNotEqual(first, _draw(_source(), 1, 3, 40))
    later = _draw(_source(), 0, 4, 40)
    prompts, others = (
        {d.messages[0]['content'] for d in ds} for ds in (first, later)
    )
    self.assertLess(len(prompts & others), 5)

  def test_only_train_problems_are_taught(self):
    known = {p.question for p in _source('dev').take(0, 100)}
    known |= {p.question for p in _source('sealed').take(0, 100)}
    taught = _draw(_source(), 0, 0, 300)
    self.assertEmpty({d.messages[0]['content'] for d in taught} & known)
    for problem in _source().take(0, 200):
      self.assertEqual(splits.split_of(problem.problem_id), 'train')

  def test_shares(self):
    count = 1200
    taught = _draw(_source(), 0, 0, count)
    endless = [d for d in taught if not d.ends]
    unfenced = [d for d in taught if '```' not in d.completion]
    constant = [d for d in taught if 'input()' not in d.completion and d.ends]
    self.assertAlmostEqual(sum(demonstrations.BEHAVIOURS.values()), 1.0)
    for found, name in (
        (endless, 'endless'),
        (unfenced, 'unfenced'),
        (constant, 'constant'),
    ):
      # The binomial standard deviation for 1200 samples is at most 1 point.
      self.assertAlmostEqual(
          len(found) / count, demonstrations.BEHAVIOURS[name], delta=0.03
      )

  def test_prompts_and_programs_fit(self):
    """With the vocabulary that the warm start trains on them."""
    taught = _draw(_source(), 0, 0, 600)
    texts = [d.messages[0]['content'] for d in taught]
    texts += [d.completion for d in taught]
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    tokenizer_training.train(
        texts,
        pathlib.Path(folder.name),
        vocab_size=768,
        tokens=demonstrations.TOKENS,
    )
    tokenizer = tokenizer_lib.Tokenizer(pathlib.Path(folder.name))
    prompts = []
    for demonstration in taught:
      # 96 is the limit in configs/coding.py; encode refuses longer ones.
      prompt, completion, _ = warmstart.encode(tokenizer, demonstration, 96)
      prompts.append(len(prompt))
      if not demonstration.ends:
        self.assertLen(completion, 96)
    self.assertLessEqual(max(prompts), 110)
    self.assertLessEqual(np.median(prompts), 64)


if __name__ == '__main__':
  absltest.main()
