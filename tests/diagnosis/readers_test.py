"""Tests for the readers, on files written by the trainers' own code.

data/trl: the first 12 steps of a training by TRL 1.16 (benchmarks/
diagnose_logs.py), with its arguments as a checkpoint holds them; data/verl: its
rollouts by the writing function of verl 0.9.1; data/wandb: an offline run of
wandb 0.31, of 12 steps.
"""

import json
import pathlib
import shutil
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pandas as pd

from evojax.diagnosis import form
from evojax.diagnosis import readers
from evojax.evidence import store
from evojax.ledger import records
from tests.diagnosis import made
from tests.ledger import samples

_DATA = pathlib.Path(__file__).parent / 'data'
_FROZEN = pathlib.Path(__file__).parents[1] / 'frozen'


class ReadersTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.path = pathlib.Path(
        self.enter_context(tempfile.TemporaryDirectory()), 'run'
    )

  @parameterized.parameters('trl', 'verl', 'wandb')
  def test_format_is_found(self, name):
    self.assertEqual(readers.read(_DATA / name).format, name)

  @parameterized.parameters(('a', [0.0, 0.1, 0.2, 0.3]), ('b', [0.1, 0.2, 0.3]))
  def test_the_arms_under_the_newest_harness_are_read(self, newest, wanted):
    first = dict(version='v0', folder='arms/v0', harness='a')
    rows = [samples.record(records.Train, **first)]
    # The last arm of the chain represents the version; all arms trained it.
    sources = [
        samples.record(records.Source, folder=f'arms/i{n}', weight=weight)
        for n, weight in enumerate((0.0, 0.0, 1.0))
    ]
    arms = [
        samples.record(records.RacedArm, folder=s.folder, harness=newest)
        for s in sources
    ]
    rows.append(samples.record(records.Race, arms=tuple(arms)))
    rows.append(
        samples.record(
            records.Promote,
            version='v1',
            folder='arms/i2',
            harness=newest,
            sources=tuple(sources),
        )
    )
    self.path.mkdir()
    samples.write(self.path, *rows)
    (self.path / 'manifest.json').write_text('{}')
    names = ['v0', 'i0', 'i1', 'i2']
    for number, name in enumerate(names):
      folder = self.path / 'arms' / name
      folder.mkdir(parents=True)
      line = {'step': 1, 'entropy': number / 10}
      (folder / 'metrics.jsonl').write_text(json.dumps(line))
    run = readers.read(self.path)
    self.assertEqual(run.steps['step'].tolist(), [*range(1, 1 + len(wanted))])
    np.testing.assert_allclose(run.steps['entropy'], wanted)
    *left, read = run.notes
    self.assertIn(f'{len(wanted)} arms that trained the policy', read)
    self.assertEqual(len(left), newest == 'b')
    self.assertStartsWith(''.join(left) or 'not read: 1', 'not read: 1')

  def test_trl(self):
    run = readers.read(_DATA / 'trl')
    self.assertEqual(run.n_steps, 12)
    self.assertLen(run.rollouts, 12 * 64)
    # Steps have 8 prompts with 8 completions each.
    self.assertEqual(set(run.rollouts.groupby('group').size()), {8})
    # TRL logs the mean of the same rollouts.
    _, mean = run.series('outcome')
    np.testing.assert_allclose(mean, run.steps['outcome'], atol=1e-6)
    self.assertEqual(run.settings['weights'], {'correct': 1.0})
    self.assertEqual(run.rollouts['reference'][0], '13')
    self.assertContainsSubset(
        {'entropy', 'grad_norm', 'learning_rate', 'truncated', 'dead'},
        run.steps,
    )

  def test_trl_weights_come_from_the_logged_reward(self):
    shutil.copytree(_DATA / 'trl', self.path)
    state = json.loads((self.path / 'trainer_state.json').read_text())
    rng = np.random.default_rng(0)
    for row in state['log_history']:
      row['rewards/format/mean'] = rng.random()
      row['reward'] = (
          0.5 * row['rewards/correct/mean'] + 2 * row['rewards/format/mean']
      )
    (self.path / 'trainer_state.json').write_text(json.dumps(state))
    run = readers.read(self.path)
    self.assertEqual(run.settings['weights'], {'correct': 0.5, 'format': 2.0})

  def test_trl_weights_where_a_function_has_no_reward_for_some(self):
    shutil.copytree(_DATA / 'trl', self.path)
    state = json.loads((self.path / 'trainer_state.json').read_text())
    logged = {row['step']: row for row in state['log_history']}
    rng = np.random.default_rng(0)
    for file in (self.path / 'completions').iterdir():
      rows = pd.read_parquet(file)
      # Half of the problems are of another task, as many as there happen to be.
      other = rng.random(len(rows)) < rng.random()
      rows['other_task'] = np.where(other, rng.random(len(rows)), np.nan)
      rows['correct'] = np.where(other, np.nan, rows['correct'])
      row = logged[int(rows['step'][0])]
      for name in ('correct', 'other_task'):  # TRL takes means of what it has.
        row[f'rewards/{name}/mean'] = float(rows[name].mean())
      parts = rows['correct'].fillna(0), rows['other_task'].fillna(0)
      row['reward'] = float((0.5 * parts[0] + 2 * parts[1]).mean())
      rows.to_parquet(file)
    (self.path / 'trainer_state.json').write_text(json.dumps(state))
    run = readers.read(self.path)
    wanted = {'correct': 0.5, 'other_task': 2.0}
    self.assertEqual(run.settings['weights'], wanted)

  def test_trl_batches_that_were_used_twice_count_once(self):
    shutil.copytree(_DATA / 'trl', self.path)
    folder = self.path / 'completions'
    again = pd.read_parquet(folder / 'completions_00012.parquet')
    again['step'] = 13
    again.to_parquet(folder / 'completions_00013.parquet')
    self.assertLen(readers.read(self.path).rollouts, 12 * 64)

  @parameterized.parameters(int, str)
  def test_trl_updates_of_one_batch(self, kind):
    # TRL writes steps as texts, whose order is 1, 10, 11, 12, 2.
    shutil.copytree(_DATA / 'trl', self.path)
    for file in (self.path / 'completions').iterdir():
      number = int(file.stem.rpartition('_')[2])
      source = f'completions_{number - (number - 1) % 4:05d}.parquet'
      rows = pd.read_parquet(_DATA / 'trl' / 'completions' / source)
      rows.assign(step=kind(number)).to_parquet(file)
    rows = readers.read(self.path).rollouts
    self.assertEqual(rows['step'].unique().tolist(), [1, 5, 9])

  @parameterized.parameters(8, None)
  def test_trl_groups_where_one_is_incomplete(self, size):
    shutil.copytree(_DATA / 'trl', self.path)
    file = self.path / 'completions' / 'completions_00003.parquet'
    pd.read_parquet(file).iloc[:-7].to_parquet(file)
    # Two groups of one prompt, one after the other.
    file = self.path / 'completions' / 'completions_00004.parquet'
    rows = pd.read_parquet(file)
    rows['prompt'] = [rows['prompt'][i // 16 * 16] for i in range(len(rows))]
    rows.to_parquet(file)
    if size is None:
      (self.path / 'training_args.bin').unlink()
    sizes = readers.read(self.path).rollouts.groupby('group').size()
    self.assertEqual(sizes.value_counts().to_dict(), {8: 95, 1: 1})

  def test_trl_state_of_a_training_that_was_continued(self):
    shutil.copytree(_DATA / 'trl', self.path)
    newer = self.path / 'checkpoint-12'
    newer.mkdir()
    whole = json.loads((self.path / 'trainer_state.json').read_text())
    (newer / 'trainer_state.json').write_text(
        json.dumps(whole | {'max_steps': 30, 'global_step': 12})
    )
    for step, wanted in ((8, 12), (12, 8), (20, 8)):
      older = whole | {'global_step': step}
      older['log_history'] = whole['log_history'][:8]
      text = json.dumps(older)
      (self.path / 'trainer_state.json').write_text(text)
      run = readers.read(self.path)
      self.assertLen(run.steps, wanted)
      read = any('read checkpoint-12/' in note for note in run.notes)
      self.assertEqual(read, wanted == 12)

  def test_verl(self):
    run = readers.read(_DATA / 'verl')
    trl = readers.read(_DATA / 'trl')
    self.assertEqual(run.timeline.tolist(), list(range(1, 13)))
    np.testing.assert_array_equal(
        run.rollouts['outcome'], trl.rollouts['outcome']
    )
    self.assertEqual(
        run.rollouts['completion'].tolist(), trl.rollouts['completion'].tolist()
    )

  def test_wandb_offline(self):
    run = readers.read(_DATA / 'wandb')
    np.testing.assert_allclose(
        run.steps['reward'], 0.1 * np.arange(12), atol=1e-9
    )
    self.assertEqual(run.steps['entropy'][3], 0.47)
    self.assertEmpty(run.notes)

  def test_wandb_torn(self):
    self.path.mkdir()
    whole = (_DATA / 'wandb' / 'run-offline.wandb').read_bytes()
    (self.path / 'run-offline.wandb').write_bytes(whole[:20_000])
    run = readers.read(self.path)
    self.assertBetween(run.n_steps, 2, 11)
    self.assertIn('damaged', run.notes[0])

  def test_wandb_charts(self):
    self.path.mkdir(parents=True, exist_ok=True)
    for name, metric in (('a', 'train/reward'), ('b', 'train/entropy')):
      column = f'sunny - 7 - {metric}'
      table = pd.DataFrame({'Step': range(20), column: [0.25] * 20})
      for end in ('__MIN', '__MAX'):
        table[column + end] = table[column]
      table.to_csv(self.path / f'{name}.csv', index=False)
    run = readers.read(self.path)
    self.assertEqual((run.format, run.n_steps), ('wandb', 20))
    self.assertContainsSubset(('reward', 'entropy'), run.steps.columns)
    text = (self.path / 'a.csv').read_text()
    (self.path / 'b.csv').write_text(text.replace('sunny', 'rainy'))
    notes = readers.read(self.path).notes
    self.assertTrue(any('curves of 2 runs' in note for note in notes))

  def test_columns_have_known_names(self):
    self.path.mkdir(parents=True, exist_ok=True)
    pd.DataFrame({'step': [1], 'score': [1.0]}).to_csv(self.path / 'a.csv')
    with self.assertRaisesRegex(form.FormatError, 'rewards=.*reward, outcome'):
      readers.read(self.path, columns={'rewards': 'score'})
    with self.assertRaisesRegex(form.FormatError, 'they have .*score, step'):
      readers.read(self.path, columns={'reward': 'scores'})

  def test_wandb_export(self):
    self.path.mkdir()
    made.metrics(made.rollouts()).rename(
        columns={'step': '_step', 'entropy': 'train/entropy'}
    ).to_csv(self.path / 'export.csv')
    run = readers.read(self.path)
    self.assertEqual((run.format, run.n_steps), ('wandb', 40))
    self.assertIn('entropy', run.steps)

  def test_evojax_that_evolves(self):
    run = readers.read(_FROZEN / 'tree_2026_11_22_math')
    self.assertEqual(run.format, 'evojax')
    self.assertEqual(run.settings['temperature'], 1.0)
    self.assertIn('outcome', run.settings['weights'])
    self.assertTrue((run.rollouts['reward'] == run.rollouts['outcome']).all())
    # The first version trained under a harness that was changed afterwards.
    self.assertStartsWith(run.notes[0], 'not read: 1 of the arms')

  def test_evojax_before_its_first_version(self):
    evolved = self.path / 'evolved'
    shutil.copytree(_FROZEN / 'tree_2026_11_22_math', evolved)
    first, *_ = (evolved / 'ledger.jsonl').read_text().splitlines()
    (evolved / 'ledger.jsonl').write_text(f'{first}\n')
    for folder in (evolved / 'arms').iterdir():
      if folder.name != 'v0':
        shutil.rmtree(folder)
    read = readers.read(evolved).rollouts
    alone = readers.read(evolved / 'arms' / 'v0').rollouts
    self.assertEqual(len(read), len(alone))
    self.assertGreater(len(read), 0)

  def test_evojax_with_programs(self):
    rows = pd.DataFrame(
        {
            'step': 0,
            'group': 0,
            'completion': 'print(1)',
            'outcome': [True, False, False, False],
            'timeouts': [0, 9, 2, 1],
            'tests_passed': [9, 0, 7, 0],
        }
    )
    path = store.path_of(self.path, 'train', 0)
    path.parent.mkdir(parents=True)
    rows.to_parquet(path)
    run = readers.read(self.path)
    self.assertEqual(run.rollouts['timed_out'].tolist(), [0, 1, 0, 1])

  def test_evojax_with_turns(self):
    call = '<tool_call>{"name": "git", "arguments": {"command": "log"}}'
    rows = pd.DataFrame(
        {
            'step': [0, 0],
            'group': [0, 0],
            'prompt': 'Repair it.',
            'completion': ['', 'no idea'],
            'outcome': [True, False],
            'n_turns': [2, 1],
            'finish_reason': [3, 0],
            'turn_texts': [[f'{call}</tool_call>', call], None],
            'observations': [['a1b2 the fix', 'not closed'], None],
            'actions': [[6, 0], []],
            'action_ok': [[True, False], []],
            'first_edit_turn': [-1, -1],
            'files_edited': [2, 0],
            'turn_advantages': [[-0.5, 0.0], []],
            'turn_tokens': [[5, 20], []],
            'f2p_passed': [1.0, 1.0],
            'p2p_passed': [0.75, 1.0],
        }
    )
    path = store.path_of(self.path, 'train', 0)
    path.parent.mkdir(parents=True)
    rows.to_parquet(path)
    run = readers.read(self.path)
    self.assertEqual(run.format, 'evojax')
    first, last = run.rollouts.to_dict('records')
    self.assertEqual(
        {
            name: first[name]
            for name in (
                'history',
                'calls_failed',
                'out_of_turns',
                'edited',
                'changed',
                'turns_credited',
                'longest_turn',
            )
        },
        {
            'history': 1,
            'calls_failed': 0.5,
            'out_of_turns': 1,
            'edited': 0,
            'changed': 1,
            'turns_credited': 0.5,
            'longest_turn': 20,
        },
    )
    self.assertEqual(run.rollouts['failing'].tolist(), [1, 0])
    # A turn alone has no credit of its own to compare.
    self.assertTrue(np.isnan(last['turns_credited']))
    self.assertIn('a1b2 the fix</tool_response>', first['completion'])
    self.assertEqual((last['completion'], last['n_calls']), ('no idea', 0))

  def test_evojax_tokens_that_are_left_out(self):
    (self.path / 'evidence' / 'train').mkdir(parents=True)
    lines = [
        {'step': 1, 'tis_masked': 0.25, 'clip_low': 0.5, 'clip_high': 0.25},
        # Both may leave out the same tokens, so the larger share counts.
        {'step': 2, 'tis_masked': 0.5, 'rejected_tokens': 0.75},
    ]
    text = '\n'.join(map(json.dumps, lines))
    (self.path / 'metrics.jsonl').write_text(text)
    steps = readers.read(self.path).steps
    self.assertEqual(steps['left_out'].tolist(), [0.25, 0.75])
    # The bounds of the ratio leave out different tokens.
    np.testing.assert_array_equal(steps['clip'], [0.75, np.nan])

  def test_prime_rl_with_tools(self):
    folder = self.path / 'rollouts' / 'step_1' / 'train' / 'all'
    folder.mkdir(parents=True)
    ask = {'function': {'name': 'search', 'arguments': '{"q": "x"}'}}
    nodes = [
        {'message': {'role': 'user', 'content': 'x?'}},
        {
            'message': {'role': 'assistant', 'tool_calls': [ask]},
            'sampled': True,
        },
        {'message': {'role': 'tool', 'content': 'Error: no index'}},
        {'message': {'role': 'assistant', 'content': '4'}, 'sampled': True},
    ]
    trace = {'nodes': nodes, 'stop_condition': 'max_turns_reached'}
    text = json.dumps({'group': {'id': 'a'}, 'traces': [trace]})
    (folder / 'traces.jsonl').write_text(text)
    row = readers.read(self.path).rollouts.iloc[0]
    self.assertEqual((row['n_turns'], row['n_calls']), (2, 1))
    self.assertEqual((row['calls_failed'], row['out_of_turns']), (1, 1))
    self.assertIn('"name": "search"', row['completion'])

  def test_prime_rl(self):
    folder = self.path / 'rollouts' / 'step_3' / 'train' / 'effective'
    folder.mkdir(parents=True)
    node = {
        'message': {'role': 'assistant', 'content': 'so 4'},
        'sampled': True,
        'logprobs': [-0.5, -1.5],
        'advantages': [0.7, 0.7],
    }
    trace = {
        'nodes': [
            {'message': {'role': 'user', 'content': '2 + 2?'}},
            node,
        ],
        'rewards': {
            'correct': {'score': 1.0, 'weight': 1.0},
            'format': {'score': 0.5, 'weight': 0.2},
        },
        'stop_condition': 'max_tokens',
    }
    episode = {
        'group': {'id': 'a'},
        'task': {'data': {'prompt': '2 + 2?', 'answer': '4'}},
        'traces': [trace],
    }
    lines = '\n'.join([json.dumps(episode)] * 4 + ['{"torn'])
    (folder / 'traces.jsonl').write_text(lines)
    run = readers.read(self.path)
    row = run.rollouts.iloc[0]
    self.assertEqual(run.format, 'prime-rl')
    self.assertEqual((row['step'], row['n_tokens']), (3, 2))
    self.assertAlmostEqual(row['reward'], 1.1)
    self.assertAlmostEqual(row['mean_logprob'], -1.0)
    self.assertEqual(row['completion'], 'so 4')
    self.assertEqual((row['outcome'], row['truncated']), (1.0, 1.0))
    self.assertIn('1 line without a JSON', run.notes[0])

  def test_columns_of_a_table(self):
    self.path.mkdir()
    rows = made.rollouts(steps=10).rename(
        columns={'outcome': 'won', 'completion': 'text', 'step': 'iteration'}
    )
    rows.to_json(self.path / 'log.jsonl', orient='records', lines=True)
    columns = {'outcome': 'won', 'completion': 'text', 'step': 'iteration'}
    run = readers.read(self.path, columns=columns)
    self.assertEqual((run.format, run.n_steps), ('table', 10))
    self.assertIn('outcome', run.rollouts)
    with self.assertRaisesRegex(form.FormatError, 'no table .* has lost'):
      readers.read(self.path, columns=columns | {'reward': 'lost'})

  def test_damaged_files_are_left_out_and_named(self):
    shutil.copytree(_DATA / 'trl', self.path)
    files = sorted((self.path / 'completions').iterdir())
    files[0].write_bytes(files[0].read_bytes()[:500])
    files[1].write_bytes(b'')
    run = readers.read(self.path)
    self.assertLen(run.rollouts, 10 * 64)
    self.assertLen([n for n in run.notes if 'cannot be read' in n], 2)

  def test_a_torn_state_leaves_the_rollouts(self):
    shutil.copytree(_DATA / 'trl', self.path)
    state = self.path / 'trainer_state.json'
    state.write_text(state.read_text()[:1000])
    run = readers.read(self.path)
    self.assertLen(run.rollouts, 12 * 64)
    self.assertIn('damaged', run.notes[0])

  def _with_memory(self, path: pathlib.Path, share: float) -> form.Run:
    """Read a log with a share of the memory that all of it would take."""
    files = [path] if path.is_file() else list(path.rglob('*.parquet'))
    memory = int(share * readers.memory(files))
    with absltest.mock.patch.object(readers, 'MOST_MEMORY', memory):
      return readers.read(path)

  def test_large_logs_are_thinned(self):
    run = self._with_memory(_DATA / 'trl', 0.3)
    self.assertLen(run.rollouts, 3 * 64)
    self.assertIn('one in 4 rollout files', run.notes[0])

  @parameterized.parameters('csv', 'jsonl', 'parquet')
  def test_a_large_table_is_thinned(self, suffix):
    self.path.mkdir()
    rows = made.rollouts().assign(reward=lambda rows: rows['outcome'])
    path = self.path / f'all.{suffix}'
    if suffix == 'csv':
      rows.to_csv(path, index=False)
    elif suffix == 'jsonl':
      rows.to_json(path, orient='records', lines=True)
    else:
      rows.to_parquet(path)
    run = self._with_memory(path, 0.3)
    kept = rows[rows.index // readers.BLOCK % 4 == 0]
    self.assertEqual(run.rollouts['prompt'].tolist(), kept['prompt'].tolist())
    self.assertIn(f'{path.name}, 0.', run.notes[0])
    self.assertIn('read one in 4 blocks of 64 rows', run.notes[0])

  def test_memory_is_known_before_a_file_is_read(self):
    self.path.mkdir()
    # Equal letters are compressed to nearly nothing, and yet take memory.
    texts = [letter * 10_000 for letter in 'abcdefghij' * 10]
    path = self.path / 'rows.parquet'
    pd.DataFrame({'completion': texts}).to_parquet(path, use_dictionary=False)
    self.assertGreater(readers.memory([path]), 5 * 100 * 10_000)
    text = self.path / 'rows.jsonl'
    text.write_text('{}' * 1000)
    self.assertEqual(readers.memory([text]), 10 * 2000)
    path.write_text('no Parquet')
    self.assertEqual(readers.memory([path]), 0)

  def test_what_is_no_run(self):
    with self.assertRaisesRegex(form.FormatError, 'there is no .*name the'):
      readers.read(self.path)
    self.path.mkdir()
    with self.assertRaisesRegex(form.FormatError, 'holds no log of'):
      readers.read(self.path)
    (self.path / 'of_trl').symlink_to(_DATA / 'trl')
    with self.assertRaisesRegex(form.FormatError, 'such as .*/of_trl$'):
      readers.read(self.path)
    (self.path / 'of_trl').unlink()
    with self.assertRaisesRegex(form.FormatError, 'neither rollouts nor'):
      readers.read(self.path, 'trl')
    with self.assertRaisesRegex(form.FormatError, 'format trl; without --fo'):
      readers.read(self.path, 'trl')
    (self.path / '1.jsonl').write_text('[1, 2]\nnull\n{"a": 1}')
    with self.assertRaisesRegex(form.FormatError, '--columns=reward=NAME'):
      readers.read(self.path)


if __name__ == '__main__':
  absltest.main()
