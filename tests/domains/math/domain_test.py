"""The math domain through the interface of evojax.records."""

import json
import os
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import ml_collections
import numpy as np

from evojax import domains
from evojax import records


def _completion(text, finish_reason='stop'):
  return records.Episode(
      tokens=np.zeros(3, np.int32),
      logprobs=np.zeros(3, np.float32),
      finish_reason=finish_reason,
      policy_version=0,
      text=text,
  )


class MathDomainTest(parameterized.TestCase):

  @parameterized.parameters('small', 'all')
  def test_every_split_gives_problems_that_their_answers_solve(self, families):
    domain = domains.make('math', families=families)
    for split in ('train', 'dev', 'sealed'):
      for problem in domain.source(split, seed=0).take(0, 40):
        solved = domain.grade(
            problem, _completion(f'<answer>{problem.answer}</answer>')
        )
        self.assertTrue(solved.outcome, problem)
        asked = f'<answer>{problem.question}</answer>'
        self.assertFalse(domain.grade(problem, _completion(asked)).outcome)

  def test_defaults_are_the_small_families(self):
    self.assertEqual(
        domains.make('math').problems.entries,
        domains.make('math', families='small').problems.entries,
    )

  def test_the_form_of_a_family_reaches_the_grader(self):
    domain = domains.make('math', families='fraction_simplification:0')
    problem = domain.source('train', 0).take(0, 1)[0]
    top, bottom = problem.answer.split('/')
    same = f'<answer>{2 * int(top)}/{2 * int(bottom)}</answer>'
    self.assertEqual(
        domain.grade(problem, _completion(same)).status, 'wrong_form'
    )

  def test_a_cut_completion_rambles(self):
    domain = domains.make('math', families='gcd:0')
    problem = domain.source('train', 0).take(0, 1)[0]
    modes = {c.name: c.codes for c in domain.columns}['mode']
    for reason, mode in (('length', 'ramble'), ('stop', 'direct_unformatted')):
      grade = domain.grade(problem, _completion('Hmm, wait.', reason))
      self.assertEqual(grade.columns['mode'], modes[mode])

  def test_a_config_dict_with_empty_fields(self):
    with tempfile.TemporaryDirectory() as folder:
      path = os.path.join(folder, 'sums.jsonl')
      pathlib.Path(path).write_text(
          '\n'.join(
              json.dumps({'question': f'{i} + 1?', 'answer': i + 1})
              for i in range(100)
          )
      )
      kwargs = ml_collections.ConfigDict(
          {
              'families': '',
              'jsonl': {'train': path, 'dev': '', 'question_field': 'question'},
              'tfds': {'name': '', 'train': ''},
          }
      )
      domain = domains.make('math', **kwargs.to_dict())
    sizes = [len(domain.source(s, 0)) for s in ('train', 'dev', 'sealed')]
    self.assertEqual(sum(sizes), 100)
    problem = domain.source('dev', 0).take(0, 1)[0]
    self.assertEqual(problem.family, 'sums')

  @parameterized.parameters(
      ({'answer_format': 'xml'}, "answer_format='xml' is not one of"),
      ({'families': 'coin_flip'}, "'coin_flip' level 0 has only about"),
      ({'families': 'gcd', 'jsonl': {'train': 'x'}}, 'from one of families'),
      (
          {'jsonl': {'train': 'x'}, 'tfds': {'name': 'x'}},
          'from one of families',
      ),
      ({'weights': (1.0,)}, 'weights belong to families'),
      ({'jsonl': {'dev': 'x'}}, r"jsonl: unknown=\[\], missing=\['train'\]"),
      ({'jsonl': {'train': 'x', 'path': 'y'}}, r"unknown=\['path'\]"),
      ({'jsonl': {'train': '/no/such'}}, "'/no/such' does not exist"),
      ({'tfds': {'train': 'train'}}, r"tfds: .*missing=\['name'\]"),
      ({'tfds': {'name': 'x', 'trian': 'y'}}, r"unknown=\['trian'\]"),
  )
  def test_refuses(self, kwargs, message):
    with self.assertRaisesRegex(ValueError, message):
      domains.make('math', **kwargs)

  def test_unknown_split(self):
    domain = domains.make('math', families='gcd:0')
    with self.assertRaisesRegex(ValueError, "split='test' is not one of"):
      domain.source('test', 0)


if __name__ == '__main__':
  absltest.main()
