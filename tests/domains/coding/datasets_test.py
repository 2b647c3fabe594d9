"""Problems from JSONL in two published formats; hostile files are refused."""

import base64
import json
import pathlib
import pickle
import tempfile
from unittest import mock
import zlib

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.domains import datasets as data
from evojax.domains import splits
from evojax.domains.coding import comparison
from evojax.domains.coding import datasets
from evojax.domains.coding import suite


def _livecodebench(**changes):
  """Return a row in the format of livecodebench/code_generation_lite."""
  return {
      'question_title': 'A. Sum',
      'question_content': 'Print a + b.',
      'platform': 'atcoder',
      'question_id': 'abc001_a',
      'contest_id': 'abc001',
      'contest_date': '2023-01-01T00:00:00',
      'starter_code': '',
      'difficulty': 'hard',
      'public_test_cases': json.dumps([_stdin('1 2\n', '3\n')]),
      'private_test_cases': json.dumps([_stdin('-1 1\n', '0\n')]),
      'metadata': '{}',
      **changes,
  }


def _stdin(given, output):
  return {'input': given, 'output': output, 'testtype': 'stdin'}


def _call(given, output):
  return {'input': given, 'output': output, 'testtype': 'functional'}


def _functional(**changes):
  return _livecodebench(
      **{
          'starter_code': 'class Solution:\n    def add(self, a, b):\n        ',
          'public_test_cases': json.dumps([_call('[1]\n2', '[1, 2]')]),
          'private_test_cases': json.dumps([_call('[]\n0', '[0]')]),
          'metadata': json.dumps({'func_name': 'add'}),
          **changes,
      }
  )


def _taco(tests_of, **changes):
  """Return a row in the format of BAAI/TACO."""
  return {
      'question': 'Print a + b.',
      'solutions': '["print(3)"]',
      'starter_code': '',
      'input_output': json.dumps(tests_of),
      'difficulty': 'MEDIUM_HARD',
      'time_limit': '2.0 seconds',
      **changes,
  }


class JsonlTest(parameterized.TestCase):

  def _read(self, *rows, **kwargs):
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    path = pathlib.Path(folder.name) / 'set.jsonl'
    path.write_text(
        '\n'.join(r if isinstance(r, str) else json.dumps(r) for r in rows)
    )
    return datasets.read_jsonl(str(path), **kwargs)

  def test_livecodebench_stdin(self):
    (problem,) = self._read(_livecodebench(), system_prompt='Write Python.')
    self.assertEqual(problem.messages[0]['content'], 'Write Python.')
    self.assertEqual(problem.question, 'Print a + b.')
    self.assertEqual(problem.problem_id, splits.problem_id('Print a + b.'))
    self.assertEqual((problem.family, problem.difficulty), ('set', 3))
    self.assertEqual(
        suite.decode(problem.answer),
        suite.Suite(
            (
                suite.Case('1 2\n', '3\n', True),
                suite.Case('-1 1\n', '0\n', False),
            ),
            comparison.Comparison('decimals'),
            seconds=6.0,
        ),
    )

  def test_livecodebench_calls(self):
    (problem,) = self._read(_functional(tag='calls'))
    given = suite.decode(problem.answer)
    self.assertEqual(given.function, 'add')
    self.assertEqual(given.cases[0], suite.Case('[1]\n2', '[1, 2]', True))
    self.assertEqual(problem.family, 'calls')
    # The code to complete is part of the statement.
    self.assertTrue(
        problem.question.endswith(
            'Complete this code:\n```python\nclass Solution:\n'
            '    def add(self, a, b):\n```'
        )
    )

  def test_arguments_are_lines_as_they_are_read(self):
    """Only a '\n' ends one, and what is blank is none."""
    given = '"a\u2028b\x85"\n\n[2]\n'
    (problem,) = self._read(
        _functional(private_test_cases=json.dumps([_call(given, '0')]))
    )
    self.assertEqual(suite.decode(problem.answer).cases[1].stdin, given)

  def test_taco_stdin(self):
    (problem,) = self._read(
        _taco(
            {
                'inputs': ['1 2\n', ['1', '2'], [1, '2'], 5],
                'outputs': ['3\n', ['3', ''], 3, 7.140],
            }
        )
    )
    self.assertEqual(problem.difficulty, 2)
    self.assertEqual(
        suite.decode(problem.answer),
        suite.Suite(
            (
                suite.Case('1 2\n', '3\n', False),
                suite.Case('1\n2', '3\n', False),
                suite.Case('1\n2', '3', False),
                suite.Case('5', '7.14', False),
            ),
            seconds=6.0,
        ),
    )

  def test_taco_calls(self):
    wrapped, bare = self._read(
        _taco({'fn_name': 'f', 'inputs': [['a', [1]]], 'outputs': [[True]]}),
        _taco(
            {'fn_name': 'f', 'inputs': [[1], [2]], 'outputs': [[1], [1, 2]]},
            question='List them.',
        ),
    )
    self.assertEqual(
        suite.decode(wrapped.answer),
        suite.Suite(
            (suite.Case('"a"\n[1]', '[true]', False),),
            comparison.Comparison(wrapped=True),
            function='f',
            integer_keys=True,
            seconds=6.0,
        ),
    )
    self.assertEqual(
        [c.expected for c in suite.decode(bare.answer).cases], ['[1]', '[1, 2]']
    )
    self.assertFalse(suite.decode(bare.answer).comparison.wrapped)

  def test_numbers_stay_as_they_are_written(self):
    digits = '7' * 5000  # More than Python parses by default.
    text = (
        f'{{"fn_name": "f", "outputs": [{digits}], "inputs": [[{digits}, 1.50,'
        ' {"1": [2, "2"]}, NaN, "é"]]}'
    )
    (problem,) = self._read(_taco({}, input_output=text))
    (case,) = suite.decode(problem.answer).cases
    self.assertEqual(
        case.stdin.split('\n'),
        [digits, '1.50', '{"1": [2, "2"]}', 'NaN', r'"\u00e9"'],
    )
    self.assertEqual(case.expected, digits)
    (problem,) = self._read(
        _livecodebench(
            public_test_cases=f'[{{"input": 1.50, "output": {digits},'
            ' "testtype": "stdin"}]'
        )
    )
    case = suite.decode(problem.answer).cases[0]
    self.assertEqual((case.stdin, case.expected), ('1.50', digits))

  @parameterized.parameters(
      ('an absolute or relative error of at most 10^{-6}.', 1e-6, 1e-6),
      ('relative or absolute error not exceed 10^-9', 1e-9, 1e-9),
      ('The absolute error must be below 1e-4.', 1e-4, 0),
      ('the relative error is at most 10^(-6).', 0, 1e-6),
      ('The relative error is at most 10**-9', 0, 1e-9),
      ('an absolute error of 0.000001 or less', 1e-6, 0),
      ('an absolute error of 0.01.', 1e-2, 0),
      ('an absolute error of $10^{ – 6}$', 1e-6, 0),
      ('an absolute error of 1e-06', 1e-6, 0),
      ('an absolute error of 1e-6 or a relative one', 1e-6, 1e-6),
      ('an absolute error of 1e-6. Relative errors', 1e-6, 0),
      ('if its error (absolute or relative) is below 10^{-6}', 1e-6, 1e-6),
      ('Answers within 10^-5 of the actual value are accepted.', 1e-5, 0),
      ('Stay within 10^-5 of the wall.', 0, 0),
      ('an absolute error of 0.0012', 0, 0),
      ('The error is 10^{-6}.', 0, 0),
      ('Avoid absolute values. An error of 10^{-6}.', 0, 0),
  )
  def test_tolerance_only_where_the_statement_says_so(self, text, *expected):
    (problem,) = self._read(_livecodebench(question_content=text))
    found = suite.decode(problem.answer).comparison
    np.testing.assert_allclose(
        (found.absolute, found.relative), expected, rtol=1e-12
    )

  @parameterized.parameters(
      ({'comparison': 'exact'}, ('exact', 0.0, 0.0)),
      ({'comparison': 'tokens'}, ('tokens', 0.25, 0.0)),
      ({'tolerance': 0}, ('decimals', 0.0, 0.0)),
      ({'tolerance': 1e-3}, ('decimals', 1e-3, 1e-3)),
      ({'tolerance': '1e-3'}, ('decimals', 1e-3, 1e-3)),
      ({'tolerance': {'relative': 1e-3}}, ('decimals', 0.0, 1e-3)),
      ({'comparison': 'tokens', 'tolerance': 1}, ('tokens', 1.0, 1.0)),
  )
  def test_a_row_says_how_outputs_are_compared(self, fields, expected):
    text = 'An absolute error of 0.25 is allowed.'
    expected = comparison.Comparison(*expected)
    with mock.patch.object(
        datasets, '_tolerance', lambda _: {'absolute': 0.25}
    ):
      for row in (
          _livecodebench(question_content=text, **fields),
          _functional(question_content=text, **fields),
      ):
        (problem,) = self._read(row)
        self.assertEqual(suite.decode(problem.answer).comparison, expected)

  @parameterized.parameters(range(2, pickle.HIGHEST_PROTOCOL + 1))
  def test_private_tests_as_published(self, protocol):
    cases = [_stdin('é' * 300, '3\n'), _stdin('-1 1\n', '0\n')]
    packed = pickle.dumps(json.dumps(cases, ensure_ascii=False), protocol)
    packed = base64.b64encode(zlib.compress(packed)).decode()
    (problem,) = self._read(_livecodebench(private_test_cases=packed))
    (same,) = self._read(_livecodebench(private_test_cases=cases))
    self.assertEqual(problem.answer, same.answer)

  @parameterized.parameters(['a', 'b'], b'[]', 3, '[')
  def test_pickles_of_something_else(self, *value):
    packed = pickle.dumps(value if len(value) > 1 else value[0])
    packed = base64.b64encode(zlib.compress(packed)).decode()
    with self.assertRaisesRegex(ValueError, 'private_test_cases is not JSON'):
      self._read(_livecodebench(private_test_cases=packed))

  def test_nothing_is_unpickled(self):
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    marker = pathlib.Path(folder.name) / 'ran'

    class Bomb:

      def __reduce__(self):
        return (pathlib.Path.touch, (marker,))

    data = base64.b64encode(zlib.compress(pickle.dumps(Bomb()))).decode()
    with self.assertRaisesRegex(
        ValueError, 'set.jsonl:1: private_test_cases is not JSON'
    ):
      self._read(_livecodebench(private_test_cases=data))
    self.assertFalse(marker.exists())

  def test_repetitions_are_kept_once(self):
    self.assertLen(self._read(_livecodebench(), _livecodebench()), 1)
    with self.assertRaisesRegex(ValueError, ':2: .* the answers .*; keep one'):
      self._read(_livecodebench(), _livecodebench(private_test_cases='[]'))

  @parameterized.parameters(
      ({'answer': 3}, 'neither LiveCodeBench .* nor TACO'),
      (_livecodebench(question_content=None), 'question_content=None must'),
      (_livecodebench(question_content=' \n'), 'the question is empty'),
      (_livecodebench(public_test_cases='{}'), 'public_test_cases={} must'),
      (_livecodebench(public_test_cases=None), 'cases=None must be a JSON'),
      (
          _livecodebench(public_test_cases='[' * 100_000),
          'public_test_cases is not JSON',
      ),
      (_livecodebench(public_test_cases='[3]'), r'public_test_cases\[0\] must'),
      (
          _livecodebench(private_test_cases=[{'input': '', 'output': ''}]),
          r'private_test_cases\[0\] must',
      ),
      (
          _livecodebench(private_test_cases=[_stdin(None, '')]),
          'input=None must be a text',
      ),
      (
          _livecodebench(private_test_cases=[_stdin('\ud800', '')]),
          'input=.*surrogates not allowed',
      ),
      (_livecodebench(tag='\ud800'), 'tag=.*surrogates not allowed'),
      (
          _livecodebench(question_content='\ud800'),
          'question_content=.*surrogates not allowed',
      ),
      (_functional(starter_code='\ud800'), 'starter_code=.*surrogates'),
      (_functional(metadata={'func_name': 'class'}), "function='class'"),
      (
          _functional(public_test_cases=[_call('1\n \n2', '1')]),
          'functional test is not JSON',
      ),
      (
          _livecodebench(public_test_cases=[], private_test_cases=[]),
          'at least one case',
      ),
      (
          _livecodebench(public_test_cases=[_call('1', '1')]),
          'stdin and functional in one problem',
      ),
      (_functional(metadata='{}'), 'need metadata.func_name'),
      (_functional(metadata='[]'), 'need metadata.func_name'),
      (_functional(metadata='x'), 'metadata is not JSON'),
      (_functional(metadata={'func_name': 'a b'}), "function='a b'"),
      (
          _functional(public_test_cases=[_call('a', '1')]),
          'functional test is not JSON',
      ),
      (_livecodebench(starter_code=['x']), 'starter_code='),
      (_livecodebench(tag=''), "tag='' must"),
      (
          _livecodebench(
              public_test_cases=[_stdin('1', '')],
              private_test_cases=[_stdin('2', '\n')],
          ),
          'a program that does nothing',
      ),
      (
          _taco({'fn_name': 'f', 'inputs': [[1]], 'outputs': [[None]]}),
          'a program that does nothing',
      ),
      (_taco({'inputs': ['']}), 'equal lengths'),
      (_taco({'inputs': [''], 'outputs': []}), 'equal lengths'),
      (_taco([]), 'equal lengths'),
      (_taco({'inputs': [], 'outputs': []}), 'at least one case'),
      (_taco({'inputs': [True], 'outputs': ['3']}), 'True must be a text'),
      (_taco({'inputs': [['1', [2]]], 'outputs': ['3']}), 'must be a text'),
      (_taco({'inputs': [{'a': 1}], 'outputs': ['3']}), 'must be a text'),
      (_taco({'inputs': ['\ud800'], 'outputs': ['3']}), 'surrogates'),
      (
          _taco({'fn_name': 'f', 'inputs': ['3'], 'outputs': ['3']}),
          r'inputs\[0\] must be the list of arguments of f',
      ),
      (
          _taco({'fn_name': 3, 'inputs': [[3]], 'outputs': ['3']}),
          "function='3' must be empty or the name",
      ),
      (_taco({}, input_output={'inputs': []}), 'must be a text.*json.dumps'),
      (_taco({}, input_output=None), 'input_output=None must be a text'),
      (_taco({}, input_output='x'), 'input_output is not JSON'),
      (
          _taco(
              {},
              input_output='{"fn_name": "f", "outputs": [1], "inputs": [['
              + '[' * 600
              + ']' * 600
              + ']]}',
          ),
          'nested too deep',
      ),
      (_livecodebench(comparison='equal'), "comparison='equal' is not one of"),
      (_livecodebench(comparison=3), "comparison='3' is not one of"),
      (_livecodebench(comparison=None), 'comparison=None must be a text'),
      (
          _livecodebench(tolerance='near'),
          "tolerance={.*'near'.* must be a number",
      ),
      (_livecodebench(tolerance=[1]), 'tolerance=.* must be a number'),
      (_livecodebench(tolerance={'max': 1}), 'tolerance=.* must be a number'),
      (_livecodebench(tolerance={'absolute': []}), 'tolerance=.* must be a nu'),
      (_livecodebench(tolerance=-1), 'absolute=-1.0 must be a number >= 0'),
      (_livecodebench(tolerance='nan'), 'absolute=nan must be a number >= 0'),
      (
          _livecodebench(comparison='exact', tolerance=1),
          "comparison='exact' has no tolerance",
      ),
  )
  def test_refuses(self, row, message):
    with self.assertRaisesRegex(ValueError, f'set.jsonl:2: .*{message}'):
      self._read(_livecodebench(question_content='Fine.'), row)

  @parameterized.parameters(
      ('', 'holds no problem'),
      ('{"question', 'set.jsonl:1: not JSON'),
      ('[1]', 'set.jsonl:1: a list, not an object'),
      ('[' * 100_000, 'set.jsonl:1: not JSON'),
  )
  def test_refuses_lines(self, line, message):
    with self.assertRaisesRegex(ValueError, message):
      self._read(line)

  def test_all_broken_lines_are_counted(self):
    rows = [
        _livecodebench(question_content=f'{i}') if i % 3 else {'answer': i}
        for i in range(24)
    ]
    rows[3] = '{"question'
    rows[4] = _livecodebench(question_content='1', private_test_cases='[]')
    with self.assertRaisesRegex(
        ValueError,
        r'set.jsonl:1: fields .* \(9 broken rows; also .*set.jsonl:4, .*:5,'
        r" .*:7, .*:10, ...\). .*'skip_broken': True beside",
    ):
      self._read(*rows)
    with self.assertLogs(level='WARNING') as logs:
      self.assertLen(self._read(*rows, skip_broken=True), 15)
    self.assertIn('(9 broken rows;', logs.output[0])
    with self.assertRaisesRegex(ValueError, 'holds no problem'):
      self._read('{', skip_broken=True)

  def test_splits_are_disjoint_by_statement(self):
    members = self._read(
        *(_livecodebench(question_content=f'Add {i}.') for i in range(300))
    )
    divided = data.divide({'train': members})
    self.assertEqual(sum(map(len, divided.values())), 300)
    for split, problems in divided.items():
      for problem in problems:
        self.assertEqual(splits.split_of(problem.problem_id), split)
    with self.assertRaisesRegex(ValueError, 'also in'):
      # The same statement with other spacing and other tests.
      other = self._read(
          _livecodebench(question_content='add  1.', private_test_cases='[]')
      )
      data.divide({'train': members, 'sealed': other})


if __name__ == '__main__':
  absltest.main()
