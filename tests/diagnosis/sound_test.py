"""Sound runs of unusual kinds, which must raise no critical finding.

Each differs from a usual run in one way that a check once took for a fault.
"""

import dataclasses
import json
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pandas as pd

from evojax.diagnosis import examine
from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis import meanings
from evojax.diagnosis import names
from evojax.diagnosis import readers
from evojax.diagnosis.checks import data
from tests.diagnosis import made
from tests.diagnosis import parts_made

_N = np.arange(parts_made.STEPS)
_noise = parts_made.noise


def _found(run: form.Run) -> dict[str, findings.Finding]:
  return {f.check: f for f in examine.examine(run).findings}


def _severity(run: form.Run, check: str) -> str:
  """Return how severe a finding is; '' without it."""
  found = _found(run).get(check)
  return found.severity if found else ''


def _reference_in(rows: pd.DataFrame, text: str) -> form.Run:
  """Return a run whose prompts are a text with the answer and three others."""
  rng = np.random.default_rng(0)
  others = rng.integers(1000, 9999, (len(rows), 4)).astype(str)
  place = rng.integers(0, 4, len(rows))
  # The prompts of one problem are equal.
  key = rows['reference'].astype(int).to_numpy() % len(rows)
  others, place = others[key], place[key]
  others[np.arange(len(rows)), place] = rows['reference']
  return made.run(
      rows.assign(
          prompt=[
              f'{prompt} {text.format(*choice, answer=answer)}'
              for prompt, choice, answer in zip(
                  rows['prompt'], others, rows['reference'], strict=True
              )
          ]
      )
  )


class RolloutsTest(parameterized.TestCase):

  @parameterized.parameters(
      ('Is it 1) {0}, 2) {1}, 3) {2} or 4) {3}?', 'note'),
      ('(answer: {answer})', 'critical'),
  )
  def test_an_answer_among_others_is_no_leak(self, text, wanted):
    run = _reference_in(made.rollouts(), text)
    self.assertEqual(_severity(run, 'answer_in_prompt'), wanted)

  @parameterized.parameters(
      ('so <{}>', True, 'critical'),
      ('so <{}>', False, 'critical'),
      ('<answer>(4 + 9) * 6 - {} * 3</answer>', True, 'note'),
      ('<answer>(4 + 9) * 6 - {} * 3</answer>', False, 'note'),
  )
  def test_a_number_that_is_to_be_made_is_no_leak(self, says, known, wanted):
    rows = made.rollouts()
    rows['prompt'] += ' Make ' + rows['reference'] + '.'
    right = rows['outcome'] > 0.5
    texts = [says.format(answer) for answer in rows['reference']]
    rows['completion'] = np.where(right, texts, rows['completion'])
    run = made.run(rows, drop=() if known else ('outcome',))
    self.assertEqual(_severity(run, 'answer_in_prompt'), wanted)

  @parameterized.parameters(
      (1.0, 'note'),
      (0.8, 'critical'),  # Wrong answers may be 18, too, but not so often.
  )
  def test_a_name_that_wrong_programs_have_too_is_no_leak(self, share, wanted):
    rows = made.rollouts()
    names_ = [f'solve{n}' for n in rows['reference'].astype(int) % 7]
    rows['prompt'] += [f' Write def {name}.' for name in names_]
    has = np.random.default_rng(0).random(len(rows)) < share
    rows['completion'] += np.where(has, [f' def {n}()' for n in names_], '')
    run = made.run(rows.assign(reference=names_))
    self.assertEqual(_severity(run, 'answer_in_prompt'), wanted)

  @parameterized.parameters(
      (0.85, 0.6, ''),  # What has no tags is solved as often.
      (0.85, 1.0, 'critical'),  # A grader that accepts what it cannot read.
  )
  def test_a_reward_for_the_form(self, readable, solved, wanted):
    rng = np.random.default_rng(0)
    rows = made.rollouts()
    rows['format_ok'] = (rng.random(len(rows)) < readable).astype(float)
    unread = rows['format_ok'] < 0.5
    luck = (rng.random(len(rows)) < solved).astype(float)
    rows.loc[unread, 'outcome'] = luck[unread]
    rows['part_correct'] = rows['outcome']
    rows = rows.drop(columns=['completion', 'reference'])
    run = made.run(rows)
    self.assertEqual(_severity(run, 'grader_open'), wanted)
    # A grader of one's own may read an answer where evojax's reads none.
    run = dataclasses.replace(run, format='evojax')
    self.assertEqual(_severity(run, 'grader_open'), 'critical')
    config = {'domain.kwargs.grader': 'my_score.compute_score'}
    run = dataclasses.replace(run, config=config)
    self.assertEqual(_severity(run, 'grader_open'), wanted)

  @parameterized.parameters(
      ('-7', 'so \N{MINUS SIGN}7', True),
      ('18', 'it is 18cm long', True),
      ('18', '\N{CJK UNIFIED IDEOGRAPH-662F}18', True),
      ('1234', r'1{,}234', True),
      ('1234', '1,234.00', True),
      ('1,234', 'it is 1,234', True),
      ('\N{MINUS SIGN}7', 'so \N{MINUS SIGN}7', True),
      ('18', 'it is 180', False),
      ('18', 'it is 18.5', False),
      ('car', 'carpet', False),
  )
  def test_how_numbers_are_written(self, answer, text, wanted):
    self.assertEqual(data.stands(answer, text), wanted)

  @parameterized.parameters(
      (True, False, False), (False, True, False), (False, False, True)
  )
  def test_games_that_begin_with_one_text(self, keyed, turns, wanted):
    rows = made.rollouts().assign(prompt='Guess the word.')
    if not keyed:
      rows = rows.drop(columns='reference')
    if turns:
      rows['n_turns'] = 3.0
    self.assertEqual('narrow_data' in _found(made.run(rows)), wanted)

  @parameterized.parameters(
      ('longer', 'warning', ', as problems get harder'),
      ('the same', 'warning', ', as problems get harder'),
      # Nothing tells whether they do.
      ('other', 'warning', 'nothing logged tells'),
      # The policy gets worse.
      ('few', 'critical', ''),
      ('form', 'critical', ''),
      ('evaluated', 'critical', ''),
  )
  def test_problems_that_get_harder(self, kind, wanted, said):
    problems = 100 if kind == 'few' else 5000
    rows = made.rollouts(rise=-2.5, start=2.0, problems=problems)
    rng = np.random.default_rng(0)
    luck = rng.random(len(rows))
    late = rows['step'] / 40 * (kind == 'form')
    rows['format_ok'] = (luck > 0.5 * late).astype(float)
    if kind == 'longer':
      rows['prompt'] += rows['step'].map(lambda step: ' and so on' * step)
    if kind == 'the same':  # Half of the problems come again, as easy as ever.
      again = rows['group'] < 4
      problem = rows['group'] + 4 * (rows['step'] % 8)
      rows.loc[again, 'prompt'] = problem[again].map('Easy {}?'.format)
      rows.loc[again, 'outcome'] = (luck < 0.8).astype(float)[again]
    rows['part_correct'] = rows['outcome']
    rows = rows.drop(columns=['completion', 'reference'])
    scores = np.linspace(0.5, 0.3, 40) if kind == 'evaluated' else np.nan
    found = _found(made.run(rows, eval_outcome=scores))['outcome_falling']
    self.assertEqual(found.severity, wanted)
    if said:
      self.assertIn(said, found.text)
    else:
      self.assertEndsWith(found.text, '%')

  def test_problems_that_are_nearly_all_solved(self):
    run = made.run(made.rollouts(start=7.0, rise=1.0))
    self.assertEqual(_severity(run, 'too_easy'), 'warning')

  def test_a_reward_that_rises_where_all_is_solved(self):
    rows = made.rollouts().assign(outcome=1.0)
    run = made.run(rows, reward=lambda rows: rows['step'] / 10)
    self.assertNotIn('reward_hacking', _found(run))

  def test_a_late_start(self):
    rows = made.rollouts(start=-9.0, rise=0.0, steps=20)
    late = made.rollouts(seed=1, start=-3.0, rise=6.0)
    late['step'] += 20
    both = pd.concat([rows, late], ignore_index=True)
    solved = lambda e: e['part_correct']
    only = made.run(rows, reward=solved)
    self.assertEqual(_severity(only, 'too_hard'), 'critical')
    learned = made.run(both, reward=solved)
    self.assertEqual(_severity(learned, 'too_hard'), 'warning')

  def test_no_gradient_where_all_is_solved(self):
    rows = made.rollouts(start=0.0, rise=6.0)
    rows.loc[rows['step'] > 12, ['outcome', 'part_correct']] = 1.0
    none = np.where(_N > 12, 0.0, 0.5)
    self.assertNotIn('gradient_zero', _found(made.run(rows, grad_norm=none)))
    unsolved = made.rollouts(rise=0.5)
    self.assertIn('gradient_zero', _found(made.run(unsolved, grad_norm=none)))


  @parameterized.parameters(
      (-4.5, 0.0, 'warning', 'near 0'),  # Partial credit comes first.
      (-0.5, 0.0, 'critical', 'is flat'),
      (-3.0, -4.0, 'critical', 'falls'),  # Few solutions become none.
  )
  def test_a_dense_reward_before_anything_is_solved(
      self, start, rise, wanted, said
  ):
    rows = made.rollouts(start=start, rise=rise, problems=5000, groups=16)
    dense = lambda e: e['outcome'] + e['step'] / 50 * (1 + e['n_tokens'] / 640)
    found = _found(made.run(rows, reward=dense))['reward_hacking']
    self.assertEqual(found.severity, wanted)
    self.assertIn(said, found.text)
    self.assertEqual('train_dataset: ' in found.change, said == 'near 0')

  @parameterized.parameters(
      # Share of the label, as the key has it and among what is solved.
      (0.93, True, 'warning'),
      (0.93, None, 'warning'),
      (1.0, None, 'critical'),
      (0.93, False, 'critical'),  # The grader takes it for right.
  )
  def test_a_label_of_most_problems(self, share, keyed, wanted):
    rows = made.rollouts()
    problem = rows['prompt'].str.extract(r'(\d+)')[0].astype(int)
    label = np.where(problem % 100 < 100 * share, '1', '0')
    right = rows['outcome'] > 0.5
    rows['completion'] = [
        f'so <{x if r else 7}>' for x, r in zip(label, right, strict=True)
    ]
    if keyed:
      rows['reference'] = label
    elif keyed is None:
      rows = rows.drop(columns='reference')
    found = _found(made.run(rows))['one_answer']
    self.assertEqual(found.severity, wanted)


class MetricsTest(parameterized.TestCase):

  @parameterized.parameters(
      (_noise(0.02, 0.03), np.linspace(0.2, 0.7, 40), False),
      (_noise(0.02, 0.03), np.full(40, 0.3), True),
      (np.where(_N < 9, 0.5, 0.01), np.linspace(0.2, 0.4, 40), True),
  )
  def test_a_small_vocabulary(self, entropy, reward, wanted):
    run = parts_made.metrics(
        entropy=entropy, reward=reward + _noise(0, 0.02, 4)
    )
    found = _found(run)
    self.assertEqual('entropy_collapse' in found, wanted)
    if wanted:  # Nothing is known of what is solved.
      self.assertNotIn('solved', found['entropy_collapse'].text)

  @parameterized.parameters(
      (('learning_rate', 'clip', 'kl', 'entropy'), 'warning'),
      ((), 'critical'),
  )
  def test_rollouts_ahead_of_the_trainer(self, ends, wanted):
    usual = parts_made.metrics().steps
    ends = ('loss', 'grad_norm', *ends)
    steps = {name: usual[name].where(_N < 35) for name in ends}
    run = parts_made.metrics(**steps)
    self.assertEqual(_severity(run, 'not_finite'), wanted)

  @parameterized.parameters((0.0, False), (2.4, True))
  def test_advantages_of_rare_successes(self, usual, wanted):
    # Rewards up to 100 that most groups do not get.
    high = np.where(_N % 4 == 1, 87.5, usual)
    run = parts_made.metrics(advantage_low=-high / 7, advantage_high=high)
    self.assertEqual('advantage_spikes' in _found(run), wanted)

  @parameterized.parameters(
      (0.3, {}, 'warning'),  # A curriculum has no other sign than this.
      (0.3, {'eval_outcome': np.linspace(0.3, 0.5, 40)}, 'warning'),
      (0.3, {'eval_outcome': np.linspace(0.5, 0.3, 40)}, 'critical'),
      (0.3, {'part_format': np.linspace(0.9, 0.4, 40)}, 'critical'),
      (0.0, {}, 'critical'),  # Nothing is learned where nothing is paid.
      (-0.9, {}, 'warning'),  # On a scale from -1 to 1.
  )
  def test_rewards_that_fall(self, end, changed, wanted):
    reward = np.linspace(0.8, end, 40)
    if end == 0:
      reward = np.maximum(reward, 0.4) * (_N < 20)
    run = parts_made.metrics(
        drop=('gap', 'part_correct', 'part_format')[: 3 - len(changed)],
        reward=reward + _noise(0, 0.02),
        **changed,
    )
    self.assertEqual(_severity(run, 'reward_falling'), wanted)

  def test_the_form_is_learned_while_problems_get_harder(self):
    small = _noise(-0.01, 0.01)
    right, shape = np.linspace(0.6, 0.2, 40), np.linspace(0.2, 0.9, 40)
    known = dict(
        drop=('gap', 'part_correct'),
        part_accuracy=right + small,
        part_format=shape + small,
        reward=right + shape,
    )
    falls = np.linspace(0.5, 0.3, 40)
    for scores, wanted in ((np.nan, 'warning'), (falls, 'critical')):
      run = parts_made.metrics(**known, eval_outcome=scores)
      self.assertEqual(_severity(run, 'form_wins'), wanted)

  @parameterized.parameters((0.97, 'warning'), (0.1, 'critical'))
  def test_dead_groups_of_solved_problems(self, reward, wanted):
    run = parts_made.metrics(
        drop=('gap', 'part_correct', 'part_format'),
        reward=_noise(reward - 0.02, reward + 0.02),
        dead=_noise(0.84, 0.86),
    )
    self.assertEqual(_severity(run, 'dead_groups'), wanted)

  @parameterized.parameters(
      ('objective/kl', ''), ('objective/entropy', ''), ('train/kl', 'kl')
  )
  def test_sums_over_a_completion(self, name, wanted):
    self.assertEqual(meanings.of(name), wanted)

  @parameterized.parameters((1.0, True), (2.0, False), (-1.0, False))
  def test_scores_on_another_scale(self, scale, wanted):
    log = pd.DataFrame(
        {
            'step': _N,
            'rewards/accuracy_reward/mean': scale * np.linspace(0.1, 0.9, 40),
        }
    )
    self.assertEqual('outcome' in names.common(log), wanted)

  @parameterized.parameters('accuracy', 'outcome')
  def test_a_share_in_percent_is_named(self, name):
    notes = []
    log = pd.DataFrame({'step': _N, name: np.linspace(10, 90, 40)})
    self.assertNotIn('outcome', names.common(log, notes, ['outcome']))
    note = f"'{name}' is not a share: it has values outside [0, 1]"
    self.assertEqual(notes, [note])


class ColumnsTest(parameterized.TestCase):

  @parameterized.parameters(
      ('acc', True),
      ('is_correct', True),
      ('correctness_reward_func', True),
      ('exact_answer_reward', True),
      ('all_passed', True),
      ('incorrect', False),
      ('not_correct', False),
      ('format_correct', False),
      ('accelerated', False),
      ('bypassed', False),
  )
  def test_which_column_says_what_is_solved(self, name, wanted):
    rows = pd.DataFrame({name: [0.0, 1.0], 'score': [0.0, 0.5]})
    taken = {}
    names.guess_outcome(rows, [], taken, [])
    self.assertEqual(taken, {'outcome': name} if wanted else {})

  @parameterized.parameters(
      ('correctness_reward_func', (0, 2), ', where it is 2 '),
      ('correct', (-1, 1), ', where it is 1 '),
      ('score', (0, 100), ', where it is 100 '),
      ('score', (-1,), ' '),
      ('score', (0, 1, np.inf), ' '),
      # The higher one may be for the form alone, or none for what is wrong.
      ('score', (0, 0.1), None),
      ('score', (-1, -0.5), None),
      ('correct', (0.5, 2), None),
      ('correct', (-1, -0.5, 1), None),
  )
  def test_scores_that_are_all_or_nothing(self, name, values, said):
    notes, taken = [], {}
    rows = pd.DataFrame({name: np.resize(values, 12)})
    parts = ['score'] if name == 'score' else []
    names.guess_outcome(rows, parts, taken, notes)
    self.assertEqual(taken, {} if said is None else {'outcome': name})
    if said is not None:
      taken_for = f'{name!r} is taken to say what is solved{said}(--'
      self.assertIn(taken_for, notes[0])

  def test_shares_come_before_scores_on_another_scale(self):
    rows = pd.DataFrame({'correct': [-1.0, 1.0], 'acc': [0.0, 1.0]})
    taken = {}
    names.guess_outcome(rows, [], taken, [])
    self.assertEqual(taken, {'outcome': 'acc'})


class FilesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.enter_context(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(folder)

  def _verl(self, folder, steps, output='so 1'):
    (self.path / folder).mkdir(exist_ok=True)
    for step in steps:
      row = dict(input='1 + 0?', output=output, score=1.0, step=step)
      file = self.path / folder / f'{step}.jsonl'
      file.write_text(json.dumps(row) + '\n')

  def test_validations_of_verl_are_left_out(self):
    self._verl('rollouts', (1, 2, 3))
    self._verl('validation', (0, 2))
    rows = readers.read(self.path).rollouts
    self.assertEqual(rows['step'].tolist(), [1, 2, 3])

  def test_validations_below_the_rollouts_of_verl_are_left_out(self):
    self._verl('.', (1, 2))
    self._verl('val', (0, 2))
    rows = readers.read(self.path).rollouts
    self.assertEqual(rows['step'].tolist(), [1, 2])
    only = readers.read(self.path / 'val').rollouts
    self.assertEqual(only['step'].tolist(), [0, 2])

  def test_a_completion_that_is_not_logged_is_not_empty(self):
    self._verl('rollouts', range(1, 30), output=None)
    run = readers.read(self.path)
    self.assertNotIn('completion', run.rollouts)
    self.assertNotIn('grader_open', _found(run))

  def _trl(self, log, **columns):
    (self.path / 'completions').mkdir()
    for step in (1, 2, 3):
      row = dict(step=step, prompt='1 + 0?', completion='1', correct=1.0)
      table = pd.DataFrame([{**row, 'prompt': f'{step} + 0?'}] * 2)
      table = table.drop(columns=columns.get('drop', []))
      name = f'completions_{step:05}.parquet'
      table.to_parquet(self.path / 'completions' / name)
    state = {'log_history': log}
    (self.path / 'trainer_state.json').write_text(json.dumps(state))

  def test_evaluations_of_trl_are_left_out(self):
    log = [{'step': step, 'rewards/correct/mean': 1.0} for step in (1, 2, 3)]
    self._trl([*log, {'step': 2, 'eval_reward': 1.0}])
    run = readers.read(self.path)
    self.assertEqual(run.rollouts['step'].unique().tolist(), [1, 3])
    self.assertIn('left out 1 step with the', ' '.join(run.notes))

  @parameterized.parameters((1.6, True), (0.9, False))
  def test_evaluations_of_trl_on_another_scale(self, most, wanted):
    scores = np.linspace(0.3, most, 12)
    log = [
        {'step': i + 1, 'rewards/correct/mean': 0.5, 'eval_reward': score}
        for i, score in enumerate(scores.tolist())
    ]
    state = {'log_history': log}
    (self.path / 'trainer_state.json').write_text(json.dumps(state))
    run = readers.read(self.path)
    found = examine.examine(run)
    unknown = {u.check: u.why for u in found.unknown}
    said = 'scores of the evaluation lie outside [0, 1]' in unknown.get(
        'train_eval_gap', ''
    )
    noted = "'eval_reward' is not a share" in ' '.join(run.notes)
    checks = [f.check for f in found.findings]
    self.assertEqual((said, noted), (wanted, wanted))
    self.assertEqual('eval_scale' in checks, wanted)

  def test_a_state_without_a_log(self):
    self._trl(None, drop=['completion'])
    run = readers.read(self.path)
    self.assertLen(run.rollouts, 6)
    examine.examine(run)  # No check needs a length.

  def test_lengths_without_a_share_of_cut_ones(self):
    self._trl([{'step': 1, 'completions/max_length': 9.0}])
    self.assertNotIn('max_tokens', readers.read(self.path).settings)

  def test_what_is_missing_is_said(self):
    self._trl([], drop=['step'])
    with self.assertRaisesRegex(form.FormatError, 'have no step'):
      readers.read(self.path)
    table = self.path / 'table.csv'
    pd.DataFrame({'iteration': [1], 'score': ['yes']}).to_csv(table)
    with self.assertRaisesRegex(form.FormatError, 'iteration, score'):
      readers.read(table)
    columns = {'step': 'iteration', 'reward': 'score', 'group': 'iteration'}
    run = readers.read(table, columns=columns)
    self.assertEqual(run.rollouts['reward'].tolist(), [1.0])
    pd.DataFrame({'iteration': [1], 'score': ['A+']}).to_csv(table)
    notes = ' '.join(readers.read(table, columns=columns).notes)
    self.assertIn("no reward of a rollout is a number: one is 'A+'", notes)

  @parameterized.parameters(10**18, 10**30, '2026-01-')
  def test_steps_that_are_no_numbers(self, start):
    table = self.path / 'table.jsonl'
    rows = [{'step': start + type(start)(i), 'kl': i} for i in range(20)]
    table.write_text('\n'.join(map(json.dumps, rows)))
    with self.assertRaisesRegex(form.FormatError, 'no step is a number'):
      readers.read(table)
    rows = [{'completion': 'x', **row} for row in rows]
    table.write_text('\n'.join(map(json.dumps, rows)))
    with self.assertRaisesRegex(form.FormatError, 'no step of a rollout'):
      readers.read(table)

  def test_numbers_beyond_a_float(self):
    rows = [{'_step': i, 'reward': 0.5, 'kl': 0.01} for i in range(20)]
    rows[3]['reward'] = 10**400
    rows[4]['kl'] = '1e999'
    (self.path / 'log.jsonl').write_text('\n'.join(map(json.dumps, rows)))
    run = readers.read(self.path)
    for name, place in (('reward', 3), ('kl', 4)):
      self.assertEqual(list(np.flatnonzero(run.steps[name].isna())), [place])
    examine.examine(run)

  @parameterized.parameters(
      ([1, 2], False), ('x', False), ('NaN', True), (float('inf'), True)
  )
  def test_what_is_no_number_is_not_infinite(self, value, wanted):
    log = [{'step': i, 'reward': 0.1, 'loss': value} for i in range(20)]
    self._trl(log)
    run = readers.read(self.path)
    self.assertEqual('not_finite' in _found(run), wanted)
    noted = 'no loss of a step is a number: one is' in ' '.join(run.notes)
    self.assertEqual(noted, not wanted)

  def test_half_a_character(self):
    self._verl('rollouts', (1, 2, 3), output='\ud83d, so 1 \U0001f600')
    rows = readers.read(self.path).rollouts
    self.assertEqual(set(rows['completion']), {'?, so 1 \U0001f600'})

  def test_columns_of_metrics_may_be_named(self):
    table = self.path / 'table.csv'
    pd.DataFrame({'epoch': [1, 2], 'gain': [0.5, 0.7]}).to_csv(table)
    for name in ('reward', 'outcome'):
      columns = {'step': 'epoch', name: 'gain'}
      run = readers.read(table, columns=columns)
      self.assertEqual(run.steps[name].tolist(), [0.5, 0.7])
    with self.assertRaisesRegex(form.FormatError, 'no table .* has lost'):
      readers.read(table, columns=columns | {'kl': 'lost'})
    empty = self.path / 'log.jsonl'
    empty.write_text('')
    with self.assertRaisesRegex(form.FormatError, '(?s)^(?!.*columns )'):
      readers.read(empty)

  def test_episodes_of_another_form(self):
    file = self.path / 'rollouts/step_1/train/effective/traces.jsonl'
    file.parent.mkdir(parents=True)
    task = {'data': {'prompt': 'hi'}}
    rows = [{'task': task}, {'task': task, 'group': 'x'}, {'task': 'x'}]
    file.write_text('\n'.join(map(json.dumps, rows)))
    run = readers.read(self.path)
    self.assertLen(run.rollouts, 1)
    self.assertIn('left out 2 episodes', ' '.join(run.notes))


if __name__ == '__main__':
  absltest.main()
