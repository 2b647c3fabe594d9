"""Problems from JSONL and TFDS files."""

import datetime
import gzip
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap

from absl.testing import absltest
from absl.testing import parameterized
import pyarrow as pa
from pyarrow import parquet

from evojax.domains import graders
from evojax.domains import splits
from evojax.domains.math import datasets


class JsonlTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.path = pathlib.Path(folder.name) / 'set.jsonl'

  def _read(self, *lines, **kwargs):
    text = [x if isinstance(x, (str, bytes)) else json.dumps(x) for x in lines]
    self.path.write_bytes(
        b'\n'.join(x if isinstance(x, bytes) else x.encode() for x in text)
    )
    return datasets.read_jsonl(str(self.path), **kwargs)

  def test_messages(self):
    messages = [
        {'role': 'system', 'content': 'Be brief.'},
        {'role': 'user', 'content': 'What is 2 + 3?'},
    ]
    (problem,) = self._read(
        {'messages': messages, 'answer': 5, 'tag': 'sums'},
        system_prompt='Ignored where the line has its own.',
    )
    self.assertEqual(problem.messages, tuple(messages))
    self.assertEqual((problem.answer, problem.family), ('5', 'sums'))
    self.assertEqual(problem.question, 'What is 2 + 3?')

  def test_gsm8k(self):
    (problem,) = self._read(
        {
            'question': 'How much?',
            'answer': 'She has 1,000 + 80 = <<1000+80=1080>>\n#### 1,080',
        },
        system_prompt='Think.',
    )
    self.assertEqual(problem.answer, '1080')
    self.assertEqual(problem.family, 'set')
    self.assertEqual(problem.messages[0]['content'], 'Think.')
    self.assertEqual(problem.problem_id, splits.problem_id('How much?'))

  @parameterized.parameters(
      ('So it is\n#### (1, 2)', '(1, 2)'),
      ('#### 1,234,567 dollars', '1234567 dollars'),
      (r'Thus \boxed{4}, so \boxed{x = \frac{1}{2}}.', r'x = \frac{1}{2}'),
      ('#### Step 1\nThus \\boxed{7}.', '7'),
      (r'Thus $\boxed 4$ and $x = \boxed -5.$', '-5.'),
      (r'Thus \fbox{\frac{1}{2}}.', r'\frac{1}{2}'),
      (r'\boxed{}', r'\boxed{}'),
  )
  def test_worked_solutions(self, solution, answer):
    (problem,) = self._read(
        {'problem': 'How many?', 'solution': solution},
        question_field='problem',
        answer_field='solution',
    )
    self.assertEqual(problem.answer, answer)
    # A grader of TRL reads the box, one of verl gets the answer.
    whole = problem.metadata[graders.ROW]
    boxed = r'\boxed{' in solution
    self.assertEqual(whole['answer'], answer)
    self.assertEqual(whole['solution'], solution if boxed else answer)

  def test_a_lone_surrogate_can_be_tokenized(self):
    for row in (
        {'question': 'How many\ud83d?', 'answer': '5'},
        {
            'messages': [{'role': 'user', 'content': 'How many\ud83d?'}],
            'answer': '5',
        },
    ):
      (problem,) = self._read(row)
      self.assertEqual(problem.question, 'How many??')

  def test_a_list_of_one_answer(self):
    (problem,) = self._read({'question': 'a', 'answer': [r'\frac{1}{2}']})
    self.assertEqual(problem.answer, r'\frac{1}{2}')
    with self.assertRaisesRegex(ValueError, 'use your own grader'):
      self._read({'question': 'a', 'answer': ['1', '2']})

  def test_rows_of_numina_math(self):
    row = {
        'problem': 'What is 2 + 3?',
        'solution': r'It is \boxed{5}.',
        'messages': [
            {'role': 'user', 'content': 'What is 2 + 3?'},
            {'role': 'assistant', 'content': r'It is \boxed{5}.'},
        ],
    }
    fields = dict(question_field='problem', answer_field='solution')
    (problem,) = self._read(row, **fields)
    self.assertEqual((problem.question, problem.answer), (row['problem'], '5'))
    # A line without the field may have messages.
    (problem,) = self._read(
        {'messages': row['messages'][:1], 'solution': '5'}, **fields
    )
    self.assertEqual(problem.question, row['problem'])

  def test_what_only_a_grader_of_the_users_own_can_compare(self):
    truth = {'target': 98, 'numbers': [44, 19, 35]}
    row = {
        'data_source': 'countdown',
        'prompt': [{'role': 'user', 'content': 'Make 98.'}],
        'reward_model': {'ground_truth': truth, 'style': 'rule'},
    }
    with self.assertRaisesRegex(ValueError, 'use your own grader'):
      self._read(row)
    (problem,) = self._read(row, own_grader=True)
    self.assertEqual(json.loads(problem.answer), truth)
    self.assertEqual(problem.metadata[graders.TRUTH], truth)
    row = {'question': 'Why?', 'answer': 'because ' * 200}
    with self.assertRaisesRegex(ValueError, 'has 1599 characters'):
      self._read(row)
    (problem,) = self._read(row, own_grader=True)
    self.assertEqual(problem.answer, row['answer'].strip())

  def test_numbers_stay_as_written(self):
    read = self._read(
        '{"question": "a", "answer": 7.140}',
        '{"question": "b", "answer": 12345678901234567890123}',
        '{"question": "c", "answer": -3}',
    )
    self.assertEqual(
        [p.answer for p in read], ['7.140', '12345678901234567890123', '-3']
    )

  def test_fields_by_name_blank_lines_and_byte_order_mark(self):
    (problem,) = self._read(
        b'\xef\xbb\xbf{"problem": "a", "solution": "b"}',
        '',
        '  ',
        question_field='problem',
        answer_field='solution',
    )
    self.assertEqual((problem.question, problem.answer), ('a', 'b'))

  def test_a_question_of_messages_as_in_trl(self):
    prompt = [{'role': 'user', 'content': 'What is 2 + 3?'}]
    (problem,) = self._read(
        {'prompt': prompt, 'solution': '5'},
        question_field='prompt',
        answer_field='solution',
    )
    self.assertEqual(problem.messages, tuple(prompt))
    self.assertEqual(problem.question, 'What is 2 + 3?')
    self.assertEqual(problem.answer, '5')

  def test_a_repeated_problem_is_kept_once(self):
    read = self._read(
        {'question': 'What is 2?', 'answer': '2'},
        {'question': 'what  IS 2?', 'answer': '2'},
    )
    self.assertLen(read, 1)

  @parameterized.named_parameters(
      ('empty_file', [''], 'set.jsonl holds no problem'),
      (
          'bad_json',
          [{'question': 'a', 'answer': 'b'}, '{"question": '],
          r'set.jsonl:2: not JSON',
      ),
      ('not_utf8', [b'{"question": "\xff", "answer": "b"}'], ':1: not JSON'),
      ('not_an_object', ['[1]'], ':1: a list, not an object'),
      (
          'no_question',
          [{'answer': 'b'}],
          r":1: no field 'question'; .*'answer'.*next to the path: {'train': ",
      ),
      ('no_answer', [{'question': 'a'}], ":1: no field 'answer'"),
      ('empty_answer', [{'question': 'a', 'answer': ' '}], 'answer=. .* must'),
      ('bool_answer', [{'question': 'a', 'answer': True}], 'answer=True must'),
      ('null_answer', [{'question': 'a', 'answer': None}], 'answer=None must'),
      (
          'nothing_after_hash',
          [{'question': 'a', 'answer': 'x ####'}],
          'nothing follows ####',
      ),
      ('empty_messages', [{'messages': [], 'answer': 'b'}], 'messages must'),
      (
          'question_of_texts',
          [{'question': ['a'], 'answer': 'b'}],
          'question must',
      ),
      ('messages_text', [{'messages': 'a', 'answer': 'b'}], 'messages must'),
      (
          'bad_role',
          [{'messages': [{'role': 'me', 'content': 'a'}], 'answer': 'b'}],
          'messages must',
      ),
      (
          'ends_with_assistant',
          [
              {
                  'messages': [
                      {'role': 'user', 'content': 'a'},
                      {'role': 'assistant', 'content': 'a'},
                  ],
                  'answer': 'b',
              },
          ],
          'ends with the user',
      ),
      ('bad_tag', [{'question': 'a', 'answer': 'b', 'tag': ''}], "tag=''"),
      (
          'two_answers',
          [{'question': 'a', 'answer': '1'}, {'question': 'A', 'answer': '2'}],
          ":2: the question 'A' has the answers '1' and '2'",
      ),
  )
  def test_refuses(self, lines, message):
    with self.assertRaisesRegex(ValueError, message):
      self._read(*lines)

  def test_missing_file(self):
    with self.assertRaisesRegex(ValueError, "'/no/such.jsonl' does not exist"):
      datasets.read_jsonl('/no/such.jsonl')
    folder = self.enterContext(tempfile.TemporaryDirectory())
    with self.assertRaisesRegex(ValueError, f'a directory.*{folder}/train-.*'):
      datasets.read_jsonl(folder)

  @parameterized.parameters('.gz', '.bz2', '.zst')
  def test_compressed_files(self, ending):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    file = folder / f'sums.jsonl{ending}'
    line = json.dumps({'question': 'Größe', 'answer': 7}).encode() + b'\n'
    with pa.output_stream(str(file), compression='detect') as stream:
      stream.write(line)
    (problem,) = datasets.read_jsonl(str(file))
    found = (problem.question, problem.answer, problem.family)
    self.assertEqual(found, ('Größe', '7', 'sums'))
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    # A file that is cut may decompress to a part of its lines.
    with self.assertRaisesRegex(ValueError, 'cannot be read|holds no problem'):
      datasets.read_jsonl(str(file))

  @parameterized.parameters(
      ('{}'.encode('utf-16'), 'is UTF-16 text; write it as UTF-8'),
      (gzip.compress(b'{}'), 'compressed by gzip; let its name end in .gz'),
      (b'PAR1\x15', 'a Parquet file; name it in domain.kwargs.parquet'),
  )
  def test_a_file_of_another_form_is_one_error(self, data, message):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    file = folder / 'set.jsonl'
    file.write_bytes(data)
    message = f"kwargs.jsonl: '{file}' .*{message}"
    with self.assertRaisesRegex(ValueError, message):
      datasets.read_jsonl(str(file))

  def test_a_pattern_names_several_files(self):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    for part in (1, 0):
      row = {'question': f'q {part}', 'answer': part}
      file = folder / f'train-{part:05}-of-00002.jsonl'
      file.write_text(json.dumps(row) + '\n')
    read = datasets.read_jsonl(f'{folder}/train-*.jsonl')
    self.assertEqual([p.question for p in read], ['q 0', 'q 1'])
    (folder / 'train-00001-of-00002.jsonl').write_text('{}\n')
    with self.assertRaisesRegex(ValueError, 'train-00001-of-00002.jsonl:1: no'):
      datasets.read_jsonl(f'{folder}/train-*.jsonl')
    with self.assertRaisesRegex(ValueError, r'dev-\*.jsonl. does not exist'):
      datasets.read_jsonl(f'{folder}/dev-*.jsonl')


class ParquetTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.path = str(self.folder / 'train.parquet')

  def _read(self, *rows, **options):
    parquet.write_table(pa.Table.from_pylist(list(rows)), self.path)
    return datasets.read_parquet(self.path, **options)

  def test_rows_of_verl(self):
    row = {
        'data_source': 'openai/gsm8k',
        'prompt': [{'role': 'user', 'content': 'What is 2 + 3?'}],
        'ability': 'math',
        'reward_model': {'ground_truth': '5', 'style': 'rule'},
        'extra_info': {'answer': 'Five.\n#### 5', 'index': 0, 'split': 'train'},
    }
    (problem,) = self._read(row, system_prompt='Think.')
    self.assertEqual(
        problem.messages,
        ({'role': 'system', 'content': 'Think.'}, row['prompt'][0]),
    )
    self.assertEqual((problem.answer, problem.family), ('5', 'openai/gsm8k'))
    # A user's own grader gets what verl passes to compute_score.
    whole = problem.metadata[graders.ROW]
    self.assertEqual(whole, whole | row)
    # JSONL may have the same rows; a row's own tag is used.
    jsonl = self.folder / 'train.jsonl'
    jsonl.write_text(json.dumps(row | {'tag': 'sums'}))
    (same,) = datasets.read_jsonl(str(jsonl))
    self.assertEqual((same.answer, same.family), ('5', 'sums'))
    self.assertEqual(same.problem_id, problem.problem_id)

  def test_plain_columns(self):
    read = self._read(
        {'problem': 'a', 'solution': 7.5, 'on': datetime.date(2024, 7, 26)},
        {'problem': 'b', 'solution': 8.0, 'on': None},
        question_field='problem',
        answer_field='solution',
    )
    self.assertEqual([p.answer for p in read], ['7.5', '8.0'])
    self.assertEqual(read[0].family, 'train')

  def test_bytes_are_text(self):
    rows = [
        {'question': f'Größe {i}'.encode(), 'answer': b'7', 'image': b'\xff'}
        for i in range(2)
    ]
    first, _ = self._read(*rows)
    self.assertEqual((first.question, first.answer), ('Größe 0', '7'))
    self.assertIsNone(first.metadata[graders.ROW]['image'])
    rows[1]['question'] = b'\xff'
    with self.assertRaisesRegex(ValueError, r'\[1\]: question=None must be'):
      self._read(*rows)

  def test_float32_has_its_own_digits(self):
    table = pa.table({
        'question': ['a', 'b', 'c'],
        'answer': pa.array([0.1, 1e-7, 3.0], pa.float32()),
    })
    parquet.write_table(table, self.path)
    found = [p.answer for p in datasets.read_parquet(self.path)]
    self.assertEqual(found, ['0.1', '1e-07', '3.0'])

  def test_nan_is_no_answer(self):
    with self.assertRaisesRegex(ValueError, r"\[1\]: answer='NaN' must be"):
      self._read(
          {'question': 'a', 'answer': 1.0},
          {'question': 'b', 'answer': float('nan')},
      )

  def test_broken_rows_are_named_by_index(self):
    good = {'question': 'a', 'answer': '1'}
    with self.assertRaisesRegex(ValueError, r'train.parquet\[1\]: answer=None'):
      self._read(good, {'question': 'b', 'answer': None})
    rows = good, {'question': 'b', 'answer': None}
    self.assertLen(self._read(*rows, skip_broken=True), 1)
    verl = {'reward_model': {'ground_truth': '1'}, 'prompt': 'a'}
    with self.assertRaisesRegex(ValueError, 'messages must be a list'):
      self._read(verl)

  def test_a_pattern_names_several_files(self):
    for part in (1, 0):
      table = pa.table({'question': [f'q {part}'], 'answer': [f'{part}']})
      parquet.write_table(table, self.folder / f'train-{part}-of-2.parquet')
    read = datasets.read_parquet(f'{self.folder}/train-*.parquet')
    self.assertEqual([p.question for p in read], ['q 0', 'q 1'])

  def test_a_file_that_is_none(self):
    pathlib.Path(self.path).write_text('{}')
    with self.assertRaisesRegex(ValueError, 'train.parquet. is not a Parquet'):
      datasets.read_parquet(self.path)
    table = pa.table({'question': [f'q {i}' for i in range(99)]})
    parquet.write_table(table, self.path)
    data = pathlib.Path(self.path).read_bytes()
    pathlib.Path(self.path).write_bytes(data[:4] + bytes(40) + data[44:])
    with self.assertRaisesRegex(ValueError, 'train.parquet. .* is damaged'):
      datasets.read_parquet(self.path)
    with self.assertRaisesRegex(ValueError, "parquet: '/no' does not exist"):
      datasets.read_parquet('/no')


_BUILDER = """
import numpy as np
import tensorflow_datasets as tfds


class TinySums(tfds.core.GeneratorBasedBuilder):
  VERSION = tfds.core.Version('1.0.0')

  def _info(self):
    return self.dataset_info_from_configs(
        features=tfds.features.FeaturesDict({
            'problem': tfds.features.Text(),
            'solution': tfds.features.Text(),
            'value': np.int64,
        })
    )

  def _split_generators(self, dl_manager):
    return {
        'train': self._generate_examples(0, 50),
        'test': self._generate_examples(50, 60),
    }

  def _generate_examples(self, first, last):
    for i in range(first, last):
      yield i, {
          'problem': f'What is {i} + 1?',
          'solution': f'{i} + 1 = {i + 1}\\n#### {i + 1}',
          'value': i + 1,
      }
"""
_SCRIPT = """
import sys
from evojax import domains
from evojax.domains.math import datasets

ROOT = sys.argv[1]
SET = dict(name='tiny_sums', data_dir=ROOT + '/data',
           module='users_package.tiny_sums', question_field='problem')
given = dict(SET, train='train', sealed='test', answer_field='solution')
domain = domains.make('math', tfds=given)
sealed = domain.source('sealed', 0).take(0, 10)
assert sorted(int(p.answer) for p in sealed) == list(range(51, 61)), sealed
for problem in sealed:
  assert problem.question == f'What is {int(problem.answer) - 1} + 1?'
  assert problem.family == 'tiny_sums'
both = datasets.read_tfds(split='train[:20]+test', answer_field='value', **SET)
assert len(both) == 30 and both[0].answer.isdigit(), both
for change, message in (
    (dict(split='validation'), "Unknown split 'validation'"),
    (dict(name='no_such_set'), "no data set 'no_such_set'"),
    (dict(module='no_such_module'), 'domain.kwargs.tfds.module'),
    (dict(question_field='text'), "tiny_sums:train[0]: no field 'text'"),
):
  try:
    datasets.read_tfds(**{**SET, 'split': 'train', **change})
  except ValueError as error:
    assert message in str(error), error
  else:
    raise AssertionError(change)
heavy = {'tensorflow', 'jax', 'torch'} & set(sys.modules)
assert not heavy, heavy
print('passed')
"""


class TfdsTest(absltest.TestCase):

  def test_a_builder_of_the_users_own_without_tensorflow(self):
    with tempfile.TemporaryDirectory() as root:
      package = pathlib.Path(root) / 'users_package'
      package.mkdir()
      (package / '__init__.py').touch()
      (package / 'tiny_sums.py').write_text(textwrap.dedent(_BUILDER))
      # In a new process, where sys.modules shows what was imported.
      result = subprocess.run(
          [sys.executable, '-c', _SCRIPT, root],
          env={**os.environ, 'PYTHONPATH': os.pathsep.join(('.', root))},
          capture_output=True,
          text=True,
      )
    self.assertEqual(result.stdout.splitlines()[-1:], ['passed'], result.stderr)


if __name__ == '__main__':
  absltest.main()
