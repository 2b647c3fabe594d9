"""Tests for looking into evidence from a terminal."""

import io
import os
import re
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.evidence import schema
from evojax.evidence import store
from evojax.modes import inspection
from tests import terminals

COLUMNS = schema.declare(
    (
        schema.with_codes('grade_status', {'ok': 0}),
        schema.with_codes('actions', {'none': 0, 'grep': 3}),
    )
)
IDS = ('00ff00ff00ff00ff', '12ab12ab12ab12ab', '12cd12cd12cd12cd')


def write(
    workdir,
    step,
    outcomes,
    ids=IDS,
    completion='It is 7.',
    split='dev',
    **columns,
):
  """One evaluation; outcomes [P][G] of 0 and 1; columns are of every row."""
  outcomes = np.array(outcomes, bool)
  p, g = outcomes.shape
  b = p * g
  rows = {
      'problem_id': [ids[i // g] for i in range(b)],
      'family': ['chain_sum'] * b,
      'group': np.arange(b) // g,
      'sample': np.arange(b) % g,
      'version': ['seed'] * b,
      'policy_version': [step] * b,
      'seed': [0] * b,
      'n_tokens': [2] * b,
      'n_turns': [1] * b,
      'truncated': [False] * b,
      'finish_reason': [1] * b,
      'mean_logprob': [-0.75] * b,
      'actions': [[]] * b,
      'arguments': [[]] * b,
      'action_ok': [[]] * b,
      'outcome': outcomes.ravel(),
      'partial': outcomes.ravel() * 1.0,
      'grade_status': [0] * b,
      'graded': [True] * b,
      'sandbox_tier': [0] * b,
      'grade_seconds': [0.0] * b,
      'reward': outcomes.ravel() * 1.0,
      'advantage': outcomes.ravel() * 2.0 - 1.0,
      'prompt_tokens': [[72, 105]] * b,
      'tokens': [[55, 10]] * b,
      'sampler_logprobs': [[-1.25, -0.25]] * b,
      'prompt': [f'What is {i // g} + 7?' for i in range(b)],
      'completion': [completion] * b,
  }
  rows |= {name: [value] * b for name, value in columns.items()}
  store.write_step(workdir, split, step, rows, COLUMNS)


def decode(ids):
  return ''.join(map(chr, ids))


class InspectTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    root = self.root = self.enterContext(tempfile.TemporaryDirectory())
    self.a = os.path.join(root, 'a')
    self.b = os.path.join(root, 'b')
    write(self.a, 0, [[0, 0, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]])
    write(self.a, 5, [[1, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]])
    write(self.a, 9, [[1, 1, 1, 0], [1, 1, 1, 1], [0, 0, 1, 1]])
    write(self.b, 9, [[0, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])

  def show(self, *workdirs, **kwargs):
    out = io.StringIO()
    inspection.run(list(workdirs or (self.a,)), out=out, **kwargs)
    text = out.getvalue()
    self.assertNotIn('\x1b', text)
    return [line.split() for line in text.splitlines() if line.strip()]

  def test_overview(self):
    lines = self.show()
    self.assertEqual(
        lines[1],
        ['#', 'problem', 'family', '0', '5', '9', 'question'],
    )
    shares = {line[1]: line[3:6] for line in lines[2:5]}
    self.assertEqual(
        shares,
        {
            IDS[0]: ['50%', '100%', '75%'],
            IDS[1]: ['100%', '100%', '100%'],
            IDS[2]: ['25%', '0%', '50%'],
        },
    )
    # (50 + 100 + 25) / 3, (100 + 100 + 0) / 3, (75 + 100 + 50) / 3.
    self.assertEqual(lines[5], ['mean', '58.3%', '66.7%', '75.0%'])

  def test_training_steps_count_from_one(self):
    for step in range(2):
      write(self.a, step, [[0]], split='train')
    self.assertEqual(self.show(split='train')[1][3:5], ['1', '2'])

  def test_overview_says_what_the_limit_hides(self):
    lines = self.show(limit=1)
    self.assertIn('0', lines[2])
    self.assertEqual(lines[-1][:4], ['1', 'of', '3', 'problems;'])
    self.assertEqual(lines[3][0], 'mean')

  def test_many_evaluations_are_thinned_with_both_ends(self):
    for step in range(20, 30):
      write(self.a, step, [[1]])
    heads = self.show()[1]
    self.assertEqual(heads[3], '0')
    self.assertEqual(heads[-2], '29')
    self.assertLen(heads, 4 + 8)

  def test_flips_of_a_run_compare_its_ends(self):
    lines = self.show(flips=True)
    self.assertEqual(
        ' '.join(lines[0]),
        'step 0 → step 9: 3 problems in both, solved 58.3% → 75.0%; 2 up,'
        ' 0 down, 1 unchanged',
    )
    # Equal changes are ordered by id; the unchanged problem is absent.
    self.assertEqual(
        [line[:5] for line in lines[2:]],
        [
            [IDS[0], 'chain_sum', '2/4', '3/4', '+0.25'],
            [IDS[2], 'chain_sum', '1/4', '2/4', '+0.25'],
        ],
    )

  def test_flips_of_two_runs_compare_their_last_steps(self):
    lines = self.show(self.a, self.b, flips=True)
    self.assertStartsWith(
        ' '.join(lines[0]), 'a step 9 → b step 9: 3 problems in both'
    )
    # Largest change first.
    self.assertEqual(
        [(line[0], line[4]) for line in lines[2:]],
        [(IDS[0], '-0.75'), (IDS[2], '+0.50'), (IDS[1], '-0.25')],
    )

  def test_runs_below_the_users_home(self):
    home = absltest.mock.patch.dict(os.environ, HOME=self.root)
    with home:
      shown = self.show(self.a, '~/b', problem='0')
    self.assertEqual(shown, self.show(self.a, self.b, problem='0'))

  def test_runs_of_the_same_name_are_told_apart(self):
    other = os.path.join(self.b, 'a')
    write(other, 9, [[0, 0, 0, 0]])
    text = ' '.join(self.show(self.a, other, flips=True)[0])
    top = os.path.basename(self.root)
    self.assertStartsWith(text, f'{top}/a step 9 → b/a step 9')

  def test_flipped_samples_of_a_problem(self):
    lines = self.show(problem=IDS[0], flips=True)
    samples = [line[:2] for line in lines if line[0].isdecimal()]
    # Sample 2 is solved before and after.
    self.assertEqual(
        samples,
        [
            ['0', '✗'],
            ['1', '✗'],
            ['3', '✓'],
            ['0', '✓'],
            ['1', '✓'],
            ['3', '✗'],
        ],
    )

  @parameterized.parameters(('0', 0), ('2', 2), ('12c', 2), ('00', 0))
  def test_problem_by_index_or_prefix(self, name, index):
    self.assertEqual(self.show(problem=name)[0][0], IDS[index])

  def test_problem_across_steps(self):
    lines = self.show(problem='0', limit=6)
    self.assertEqual(
        ' '.join(lines[0] + lines[1]), f'{IDS[0]} chain_sum What is 0 + 7?'
    )
    headers = [' '.join(line) for line in lines if line[0] == 'step']
    self.assertEqual(
        headers,
        [
            'step 0, policy version 0: solved 2/4',
            'step 5, policy version 5: solved 4/4',
            'step 9, policy version 9: solved 3/4',
        ],
    )
    row = next(line for line in lines if line[0] == '0')
    self.assertEqual(
        row,
        ['0', '✗', '0.000', '-1.00', '2', '-0.750', 'length', 'It', 'is', '7.'],
    )
    # Six rows over three evaluations: two each.
    self.assertLen([line for line in lines if line[1] in '✓✗'], 6)

  def test_tokens_with_mask_logprob_reward_and_advantage(self):
    lines = self.show(problem='1', tokens=True, limit=1, decode=decode)
    start = next(i for i, line in enumerate(lines) if line[0] == 't')
    self.assertEqual(lines[start], ['t', '0..1,', 'mask', '0:', 'Hi'])
    self.assertEqual(
        lines[start + 1 : start + 4],
        [
            ['t', 'token', 'mask', 'log-prob', 'reward', 'advantage'],
            ['2', '7', '1', '-1.250', '+1.00'],
            # The newline is visible; the reward stands on the last token.
            ['3', r'\n', '1', '-0.250', '1.000', '+1.00'],
        ],
    )

  def test_an_episode_turn_by_turn(self):
    turns = dict(
        tokens=[65, 66, 67, 68],
        sampler_logprobs=[-1.0, 0.0, 0.0, -2.0],
        n_turns=2,
        turn_tokens=[1, 1],
        observation_tokens=[2, 0],
        actions=[3, 0],
        arguments=[0, 0],
        action_ok=[False, True],
        turn_texts=['A [bold]', 'D'],
        observations=['B\x1b[31m C', ''],
        turn_advantages=[0.5, -0.5],
    )
    write(self.b, 10, [[1, 0]], **turns)
    lines = self.show(self.b, problem='0', tokens=True, decode=decode)
    self.assertIn(['turn', 'tool', 'policy', 'answer'], lines)
    self.assertIn(['1/2', 'grep', '✗', 'A', '[bold]', 'B\\x1b[31m', 'C'], lines)
    self.assertIn(['2/2', 'none', 'D'], lines)
    # Observations are not trained on; each turn has its own advantage.
    table = [line for line in lines if line[0].isdecimal() and len(line) > 2]
    self.assertIn(['2', 'A', '1', '-1.000', '+0.50'], table)
    self.assertIn(['3', 'B', '0'], table)
    self.assertIn(['4', 'C', '0'], table)
    self.assertIn(['5', 'D', '1', '-2.000', '0.000', '-0.50'], table)

  def test_tokens_without_a_tokenizer(self):
    lines = self.show(problem='1', tokens=True, limit=1)
    self.assertIn(['2', '<55>', '1', '-1.250', '+1.00'], lines)

  def test_sampled_text_cannot_drive_the_terminal(self):
    write(self.a, 9, [[1]], completion='a\x1b[2Jb [red]c\x07')
    lines = self.show(problem='0', limit=99)  # show() refuses a raw escape.
    self.assertEqual(lines[-1][-2:], [r'a\x1b[2Jb', r'[red]c\x07'])

  def test_names_that_look_like_markup_are_shown(self):
    runs = [os.path.join(self.root, name) for name in ('run[b]', 'run[c]')]
    for run in runs:
      write(run, 0, [[0, 1]] * 3, family='sums[easy][/b]')
    table = self.show(*runs)
    self.assertEqual(table[1][:5], '# problem family run[b] run[c]'.split())
    self.assertIn('sums[easy][/b]', table[2])
    self.assertIn('sums[easy][/b]', self.show(runs[0], problem='0')[0])
    write(runs[1], 0, [[1, 1]] * 3, family='sums[easy][/b]')
    self.assertIn('sums[easy][/b]', self.show(*runs, flips=True)[2])

  def test_colours_in_a_terminal(self):
    with absltest.mock.patch.dict(os.environ, TERM='xterm-256color'):
      with terminals.Terminal() as terminal:
        inspection.run([self.a], problem='0', limit=3, out=terminal.out)
    self.assertIn('\x1b[32m✓', terminal.text)
    self.assertIn('\x1b[31m✗', terminal.text)

  @parameterized.parameters(
      (120, '0 5 9 20 21 22 question', 6),
      (80, '0 5 9 20 21 22', 6),
      (50, '0 22', 2),
  )
  def test_no_cell_is_cut_in_a_narrow_terminal(self, columns, heads, count):
    for step in range(20, 23):
      write(self.a, step, [[1]] * 3)
    with absltest.mock.patch.dict(os.environ, COLUMNS=str(columns)):
      with terminals.Terminal() as terminal:
        inspection.run([self.a], out=terminal.out)
    plain = re.sub(r'\x1b\[[\d;]*m', '', terminal.text)
    lines = [line.split() for line in plain.splitlines() if line.strip()]
    self.assertEqual(lines[1], ['#', 'problem', 'family', *heads.split()])
    self.assertEqual([line[3] for line in lines[3:6]], ['50%', '100%', '25%'])
    self.assertEqual([line[2 + count] for line in lines[3:6]], ['100%'] * 3)
    self.assertEqual('of 6 evaluations' in plain, count < 6)
    self.assertLessEqual(max(map(len, plain.splitlines())), columns)

  @parameterized.named_parameters(
      ('no_such_problem', {'problem': 'beef'}, '--problem=beef names no'),
      ('ambiguous', {'problem': '12'}, 'names 2 problems.*12ab12ab.*12cd12cd'),
      ('index_too_large', {'problem': '3'}, r'an index 0\.\.2'),
      ('no_such_split', {'split': 'sealed'}, "'sealed' in .*there is dev"),
      ('tokens_of_everything', {'tokens': True}, '--tokens.* with --problem'),
  )
  def test_refuses(self, kwargs, message):
    with self.assertRaisesRegex(ValueError, message):
      self.show(**kwargs)

  def test_a_run_that_evolves(self):
    run = os.path.join(self.root, 'run')
    for place, split, step in (
        ('arms/v0', 'train', 3),
        ('arms/r000-t000-0', 'train', 4),
        ('rounds/000/r000-incumbent-0', 'dev', 0),
        ('rounds/001/r001-incumbent-0', 'dev', 0),
        ('rounds/001/r001-t000-0', 'dev', 0),
    ):
      write(os.path.join(run, place), step, [[1]], split=split)
    os.utime(os.path.join(run, 'arms/v0/evidence/train'), (9, 9))
    find = lambda *split: inspection.find(run, *split)
    self.assertEqual(
        find('dev')[:2],
        (
            [
                f'{run}/rounds/001/r001-incumbent-0',
                f'{run}/rounds/001/r001-t000-0',
            ],
            'dev',
        ),
    )
    self.assertEqual(find(), find('dev'))
    # The arm that is being trained.
    self.assertEqual(find('train')[0], [f'{run}/arms/r000-t000-0'])
    with self.assertRaisesRegex(ValueError, "'sealed' in .*there is dev in ro"):
      find('sealed')
    for name in ('base', 'evolved', 'math-tuned', 'reference'):
      write(os.path.join(run, 'sealed', name), 0, [[1]], split='sealed')
    write(os.path.join(run, 'arms/final'), 0, [[1]], split='train')
    others = 'base', 'reference', 'math-tuned'
    folders = [f'{run}/sealed/{name}' for name in others]
    folders.append(f'{run}/sealed/evolved')  # Flips compare it with the first.
    self.assertEqual(find()[:2], (folders, 'sealed'))
    self.assertEqual(find('train')[0], [f'{run}/arms/final'])
    lines = self.show(run)
    names = ['base', 'reference', 'math-tuned', 'evolved']
    self.assertEqual(lines[1][3:7], names)
    self.assertEqual(lines[-1][:2], ['there', 'is'])

  def test_flips_of_a_round_compare_arms_of_one_pair(self):
    run = os.path.join(self.root, 'run')
    for pair in (0, 1):
      for name, ids in (('', IDS[pair]), ('-perturbed', IDS[2])):
        for arm in ('incumbent', 't001', 't002'):
          place = f'{run}/rounds/001/r001-{arm}-{pair}{name}'
          write(place, 0, [[arm != 'incumbent']], ids=[ids])
    lines = self.show(run, flips=True)
    self.assertEqual(lines[0][:3], ['r001-incumbent-0', '→', 'r001-t002-0:'])
    self.assertEqual(lines[2][0], IDS[0])

  def test_a_directory_of_runs(self):
    os.makedirs(os.path.join(self.root, 'c'))
    open(os.path.join(self.root, 'c/config.json'), 'w').close()
    with self.assertRaisesRegex(ValueError, 'there is none, but the runs c'):
      inspection.find(self.root)

  def test_a_directory_that_is_missing_or_empty(self):
    gone = os.path.join(self.root, 'gone')
    with self.assertRaisesRegex(ValueError, 'workdir=.*/gone: .*--mode=runs'):
      inspection.find(gone)
    os.makedirs(gone)
    with self.assertRaisesRegex(ValueError, 'no evidence in .*that has begun'):
      inspection.find(gone)

  def test_flips_need_two_evaluations(self):
    with self.assertRaisesRegex(ValueError, 'is one: .*--runs.*eval.every'):
      self.show(self.b, flips=True)

  def test_flips_need_a_common_problem(self):
    write(self.b, 9, [[1]], ids=('beefbeefbeefbeef',))
    with self.assertRaisesRegex(ValueError, 'no problem in common'):
      self.show(self.a, self.b, flips=True)


if __name__ == '__main__':
  absltest.main()
