"""The coding domain through the interface of evojax.records."""

import dataclasses
import json
import os
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from configs import coding as coding_config
from evojax import domains
from evojax import records
from evojax.domains.coding import demonstrations
from evojax.domains.coding import grade
from evojax.domains.coding import suite
from evojax.episodes import collect
from evojax.episodes import synthetic
from evojax.eval import perturb


def _completion(text):
  return records.Episode(
      np.zeros(1, np.int32), np.zeros(1, np.float32), 'stop', 0, text
  )


class CodingDomainTest(parameterized.TestCase):

  def test_behaviours_earn_what_they_should(self):
    """In the box, for every family, only the right program is solved."""
    domain = domains.make('coding')
    problems = domain.source('dev', seed=0).take(0, 64)
    rng = np.random.default_rng(0)
    names = list(demonstrations.BEHAVIOURS)
    asked = [problem for problem in problems for _ in names]
    texts = [
        demonstrations.act(problem, name, rng)
        for problem in problems
        for name in names
    ]
    grades, _ = collect.grade(domain, problems, list(map(_completion, texts)))
    self.assertLen(grades, len(asked))
    modes = grade.CODING_MODE
    for problem, name, found in zip(
        asked, names * len(problems), grades, strict=True
    ):
      with self.subTest(f'{problem.family} {problem.difficulty} {name}'):
        self.assertEqual(found.outcome, name == 'right')
        self.assertEqual(found.columns['difficulty'], problem.difficulty)
        if name in ('right', 'constant'):
          self.assertTrue(found.columns['visible_passed'])
        if name in ('unfenced', 'endless'):
          self.assertEqual(found.status, 'no_program')
        if name == 'constant':
          self.assertEqual(found.columns['mode'], modes['constant'])

  def test_functions_are_tried_on_every_kind_of_grade(self):
    config = coding_config.get_config()
    made = synthetic.Evidence(domains.make('coding', partial=True))
    view = made.evidence(config)
    self.assertTrue(view.valid.all())
    for name in ('outcome', 'compiles', 'format_ok', 'crashed'):
      with self.subTest(name):
        self.assertEqual(np.unique(getattr(view, name)).tolist(), [False, True])
    self.assertEqual(
        {code for code in grade.CODING_MODE.values()} - set(view.mode.flat),
        set(),
    )
    self.assertGreater(len(np.unique(view.partial)), 2)
    # Each completion is judged only once.
    self.assertIs(made.evidence(config), view)

  def test_given_problems_have_attempts_too(self):
    domain = domains.make('coding')
    (problem,) = domain.source('train', 0).take(0, 1)
    given = dataclasses.replace(problem, metadata={})
    texts = domain.attempts(given)
    self.assertContainsSubset(('', 'I cannot say.'), texts)
    self.assertLess(len(texts), len(domain.attempts(problem)))

  def test_a_run_from_the_blind_harness_does_not_see_what_is_shown(self):
    config = coding_config.get_config()
    domain = domains.make('coding')
    for seed, readers in (
        ('seed_harness', ('diagnostic', 'report')),
        ('seed_blind', ('report',)),
    ):
      config.evolve.seed_harness = seed
      columns = {c.name: c for c in collect.columns(domain, config)}
      self.assertEqual(columns['visible_passed'].readers, readers)
      self.assertEqual(
          'visible_passed' in synthetic.Evidence(domain).columns(config),
          'diagnostic' in readers,
      )
      self.assertIn('reward', columns['tests_passed'].readers)

  def test_one_and_many_agree(self):
    domain = domains.make('coding', partial=True)
    (problem,) = domain.source('train', 1).take(0, 1)
    text = demonstrations.act(problem, 'right', np.random.default_rng(0))
    found = domain.grade(problem, _completion(text))
    self.assertTrue(found.outcome)
    (many,) = domain.grade_many([problem], [_completion(text)])
    self.assertEqual(found.columns, many.columns)

  def test_perturbed_problems_are_judged_at_once_too(self):
    domain = perturb.Perturbed(domains.make('coding'))
    problems = domain.source('dev', 0).take(0, 4)
    rng = np.random.default_rng(0)
    texts = [demonstrations.act(p, 'right', rng) for p in problems]
    grades = domain.grade_many(problems, list(map(_completion, texts)))
    self.assertTrue(all(g.outcome for g in grades))

  def test_data_sets(self):
    """In TACO's format; a split without a file gets its share by hash."""
    rows = [
        {
            'question': f'Print {i}.',
            'input_output': json.dumps({'inputs': [''], 'outputs': [str(i)]}),
        }
        for i in range(100)
    ]
    with tempfile.TemporaryDirectory() as folder:
      path = os.path.join(folder, 'rows.jsonl')
      pathlib.Path(path).write_text('\n'.join(map(json.dumps, rows)))
      domain = domains.make('coding', jsonl={'train': path, 'dev': ''})
    sizes = [len(domain.source(s, 0)) for s in ('train', 'dev', 'sealed')]
    self.assertEqual(sum(sizes), 100)
    (problem,) = domain.source('sealed', 0).take(0, 1)
    expected = suite.decode(problem.answer).cases[0].expected
    text = f'```\nprint({expected})\n```'
    self.assertTrue(domain.grade(problem, _completion(text)).outcome)
    self.assertIsNone(domain.perturb(problem))

  @parameterized.parameters(
      ({'slots': -1}, r'domain\.kwargs\.slots=-1 must be'),
      ({'families': 'sums', 'jsonl': {'train': 'x'}}, 'one of families, jsonl'),
      ({'weights': (1.0,)}, 'weights belong to families'),
      ({'jsonl': {'dev': 'x'}}, r"missing=\['train'\]; it takes train, dev"),
      ({'jsonl': {'train': 'x', 'test': 'y'}}, r"unknown=\['test'\]"),
      ({'jsonl': {'train': '/no/such'}}, "'/no/such' does not exist"),
      ({'families': 'sum'}, "'sum' is not"),
      ({'families': 'sums:0-'}, "'sums:0-' asks for levels"),
      ({'families': 'sums:'}, "'sums:' asks for levels"),
  )
  def test_refuses(self, kwargs, message):
    with self.assertRaisesRegex(ValueError, message):
      domains.make('coding', **kwargs)


if __name__ == '__main__':
  absltest.main()
