"""Many kinds of programs, graded and compared with judgements by hand.

The programs, their problems, and the reasons are in `programs/`.
"""

import dataclasses
import json
import pathlib
import tempfile
import tomllib

from absl.testing import absltest

from evojax.domains.coding import datasets
from evojax.domains.coding import suite
from tests.domains.coding import graded

_FOLDER = pathlib.Path(__file__).parent / 'programs'


def _load(name):
  return tomllib.loads((_FOLDER / f'{name}.toml').read_text())


def row(problem):
  """Return the row of a problem in the file of its data set."""
  name = problem.get('function', '')
  if problem['shape'] == 'taco':
    tests = f'"inputs": {problem["inputs"]}, "outputs": {problem["outputs"]}'
    call = f'"fn_name": "{name}", ' if name else ''
    fields = {
        'question': problem['statement'],
        'input_output': f'{{{call}{tests}}}',
    }
  else:
    kind = 'functional' if name else 'stdin'
    tests = [
        {'input': _text(given), 'output': _text(output), 'testtype': kind}
        for given, output in problem['tests']
    ]
    fields = {
        'question_content': problem['statement'],
        'public_test_cases': json.dumps(tests[:1]),
        'private_test_cases': json.dumps(tests[1:]),
        'metadata': json.dumps({'func_name': name}),
    }
  return {**fields, **problem.get('row', {})}


def _text(parts):
  """Return a text, possibly assembled from texts and repeated texts."""
  if isinstance(parts, str):
    return parts
  return ''.join(
      x if isinstance(x, str) else x['repeat'] * x['times'] for x in parts
  )


def read(names):
  """Return the problems with these names, from JSONL; tests take a second."""
  problems = _load('problems')
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / 'set.jsonl'
    path.write_text('\n'.join(json.dumps(row(problems[n])) for n in names))
    found = datasets.read_jsonl(str(path))
  for name, problem in zip(names, found, strict=True):
    tests = dataclasses.replace(suite.decode(problem.answer), seconds=1.0)
    yield name, dataclasses.replace(problem, answer=suite.encode(tests))


class CorpusTest(absltest.TestCase):

  def _check(self, kind):
    programs = _load(kind)['program']
    problems = dict(read(list(dict.fromkeys(p['problem'] for p in programs))))
    texts = [graded.fenced(p['code']) for p in programs]
    grades = graded.grade_many(
        [problems[p['problem']] for p in programs], texts
    )
    for program, found in zip(programs, grades, strict=True):
      with self.subTest(program['why'], problem=program['problem']):
        self.assertTrue(found.graded)
        self.assertEqual(found.outcome, program['right'], found)

  def test_programs_that_read(self):
    self._check('stdin')

  def test_functions(self):
    self._check('calls')


if __name__ == '__main__':
  absltest.main()
