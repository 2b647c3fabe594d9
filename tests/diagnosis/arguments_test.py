"""Settings from the arguments that trainers save."""

import contextlib
import json
import os
import pathlib
import pickle
import shutil
import tempfile
import zipfile

from absl.testing import absltest
from absl.testing import parameterized

from evojax.diagnosis import __main__ as main
from evojax.diagnosis import arguments
from evojax.diagnosis import readers

_DATA = pathlib.Path(__file__).parent / 'data'
# The settings of the training in data/trl: those of the split `tuning` in
# benchmarks/diagnose_logs.py.
_TRAINED = {
    'learning_rate': 3e-4,
    'warmup_steps': 0.0,
    'total_steps': 80.0,
    'temperature': 1.0,
    'kl_coef': 0.0,
    'max_tokens': 16.0,
    'max_grad_norm': 1.0,
    'clip_low': 0.2,
    'clip_high': 0.2,
    'top_p': 1.0,
    'top_k': 0.0,
    'repetition_penalty': 1.0,
}


class _Arguments:
  """As GRPOConfig, an object with a field for each argument."""

  def __init__(self, **fields):
    self.__dict__ |= {'num_generations': 8, **fields}


class _Runs:
  """Runs a command when its pickle is read as usual."""

  def __init__(self, command: str):
    self._command = command

  def __reduce__(self):
    return os.system, (self._command,)


def _save(path: pathlib.Path, data: bytes | object) -> None:
  """Writes a file in the form of torch.save."""
  path.parent.mkdir(parents=True, exist_ok=True)
  if not isinstance(data, bytes):
    data = pickle.dumps(data, 2)
  with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive:
    archive.writestr('training_args/data.pkl', data)
    archive.writestr('training_args/version', '3\n')


class FileTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.path = pathlib.Path(
        self.enter_context(tempfile.TemporaryDirectory()), 'run'
    )
    self.file = self.path / arguments.FILE

  def test_arguments_of_trl(self):
    found = arguments.load(_DATA / 'trl' / arguments.FILE)
    self.assertEqual(arguments.of_trl(found), _TRAINED)
    self.assertEqual(found['reward_weights'], [1.0])
    # The value of an enumeration.
    self.assertEqual(found['lr_scheduler_type'], 'constant_with_warmup')

  def test_a_run_has_the_settings_of_its_newest_checkpoint(self):
    shutil.copytree(_DATA / 'trl', self.path)
    self.assertEqual(
        readers.read(self.path).settings,
        _TRAINED | {'weights': {'correct': 1.0}},
    )
    self.file.unlink()
    for step, temperature in ((8, 0.7), (12, 1.4), (9, 0.9)):
      folder = self.path / f'checkpoint-{step}'
      _save(folder / arguments.FILE, _Arguments(temperature=temperature))
    run = readers.read(self.path)
    self.assertEqual(run.settings['temperature'], 1.4)
    self.assertEqual(run.settings['total_steps'], 80.0)  # Of the state.
    run = readers.read(self.path, settings={'temperature': 1.1})
    self.assertEqual(run.settings['temperature'], 1.1)

  def test_arguments_of_another_trainer_are_left_out(self):
    shutil.copytree(_DATA / 'trl', self.path)
    found = _Arguments(learning_rate=1.0)
    del found.num_generations
    _save(self.file, found)
    self.assertNotIn('learning_rate', readers.read(self.path).settings)

  @parameterized.parameters(
      (b'\x80\x02]r\xff\xff\xff\x7f.', 'of its memo first'),
      (bytes(5 << 20), 'over 4194304 bytes'),
      (b'\x80\x02}', 'not arguments'),
      (pickle.dumps(5, 2)[:-1] + b'Q.', 'outside of it'),
      (b'(' * 100_000 + b't' * 100_000 + b'.', ''),
  )
  def test_hostile_files_are_named_and_left_out(self, data, message):
    shutil.copytree(_DATA / 'trl', self.path)
    _save(self.file, data)
    run = readers.read(self.path)
    self.assertNotIn('learning_rate', run.settings)
    if message:
      (note,) = [n for n in run.notes if arguments.FILE in n]
      self.assertIn(message, note)

  def test_torn_file(self):
    shutil.copytree(_DATA / 'trl', self.path)
    whole = self.file.read_bytes()
    self.file.write_bytes(whole[:3000])
    run = readers.read(self.path)
    self.assertRegex('\n'.join(run.notes), 'training_args.bin cannot be read')

  def test_nothing_that_it_names_is_run(self):
    mark = self.path.parent / 'mark'
    _save(self.file, _Arguments(temperature=_Runs(f'touch {mark}'), beta=0.1))
    with zipfile.ZipFile(self.file) as archive:
      pickled = archive.read('training_args/data.pkl')
    found = arguments.load(self.file)
    self.assertEqual(arguments.of_trl(found), {'kl_coef': 0.1})
    self.assertFalse(mark.exists())
    pickle.loads(pickled)  # The command is one that would be run.
    self.assertTrue(mark.exists())


class MeaningTest(parameterized.TestCase):

  @parameterized.parameters(
      ({'warmup_steps': 20}, 20.0),
      ({'warmup_steps': 0.1}, 10.0),  # Since transformers 5.
      ({'warmup_steps': 0, 'warmup_ratio': 0.051}, 6.0),
      ({'warmup_steps': 20, 'warmup_ratio': 0.5}, 20.0),
      ({'warmup_steps': 0, 'warmup_ratio': 0.0}, 0.0),
  )
  def test_warmup_of_trl(self, given, wanted):
    limited = arguments.of_trl({'max_steps': 100, **given})
    self.assertEqual(limited['warmup_steps'], wanted)
    # Without a limit of steps, the trainer's state has their number.
    by_epochs = arguments.of_trl({'max_steps': -1, **given}, 100)
    self.assertEqual(by_epochs['warmup_steps'], wanted)

  def test_warmup_that_depends_on_unknown_steps(self):
    found = arguments.of_trl({'max_steps': -1, 'warmup_ratio': 0.1})
    self.assertEmpty(found)

  def test_clip_bounds_of_trl(self):
    given = {'epsilon': 0.1, 'epsilon_high': 0.3, 'loss_type': 'dapo'}
    wanted = {'clip_low': 0.1, 'clip_high': 0.3}
    self.assertEqual(arguments.of_trl(given), wanted)
    # It bounds the weight itself there.
    self.assertEmpty(arguments.of_trl(given | {'loss_type': 'cispo'}))

  @parameterized.parameters(
      ({'reward_weights': None}, {'a': 1.0, 'b': 1.0}),
      ({'reward_weights': [2, 0.5]}, {'a': 2.0, 'b': 0.5}),
      ({'reward_weights': [2]}, {}),
      ({'reward_weights': [2, 'x']}, {}),
      ({'reward_weights': 7}, {}),
      ({}, {}),
      (
          {
              'reward_weights': None,
              'multi_objective_aggregation': 'normalize_then_sum',
          },
          {},
      ),
  )
  def test_weights(self, given, wanted):
    found = arguments.weights(given, ['a', 'b'])
    self.assertEqual(found.get('weights', {}), wanted)

  def test_settings_of_verl(self):
    actor = {
        'optim': {
            'lr': '1e-6',  # As PyYAML reads it.
            'lr_warmup_steps': -1,
            'lr_warmup_steps_ratio': 0.1,
            'total_training_steps': 50,
        },
        'grad_clip': 0.5,
        'clip_ratio': 0.2,
        'clip_ratio_low': 0.2,
        'clip_ratio_high': 0.28,
        'use_kl_loss': True,
        'kl_loss_coef': 0.001,
        'entropy_coeff': 0.01,
    }
    rollout = {'temperature': 0.8, 'multi_turn': {'max_assistant_turns': None}}
    config = {
        'actor_rollout_ref': {'actor': actor, 'rollout': rollout},
        'data': {'max_response_length': 1024},
    }
    wanted = {
        'learning_rate': 1e-6,
        'warmup_steps': 5.0,
        'total_steps': 50.0,
        'temperature': 0.8,
        'kl_coef': 0.001,
        'entropy_coef': 0.01,
        'max_tokens': 1024.0,
        'max_grad_norm': 0.5,
        'clip_low': 0.2,
        'clip_high': 0.28,
    }
    self.assertEqual(arguments.of_config(config), wanted)
    actor['use_kl_loss'] = False  # Its coefficient is not used then.
    self.assertEqual(arguments.of_config(config)['kl_coef'], 0.0)
    config['algorithm'] = {
        'use_kl_in_reward': True,
        'kl_ctrl': {'kl_coef': 0.01},
    }
    self.assertEqual(arguments.of_config(config)['kl_coef'], 0.01)

  def test_total_steps_of_verl_without_a_schedule_of_their_own(self):
    optim = {'lr_warmup_steps_ratio': 0.1, 'total_training_steps': -1}
    config = {
        'actor_rollout_ref': {'actor': {'optim': optim}},
        'trainer': {'total_training_steps': 200},
    }
    found = arguments.of_config(config)
    self.assertEqual((found['warmup_steps'], found['total_steps']), (20, 200))

  def test_settings_of_prime_rl(self):
    trainer, orchestrator = _prime_rl()
    both = {'trainer': trainer, 'orchestrator': orchestrator}
    wanted = {
        'learning_rate': 3e-6,
        'warmup_steps': 10.0,
        'total_steps': 400.0,
        'max_grad_norm': 1.0,
        'temperature': 1.1,
        'max_tokens': 2048.0,
        'min_p': 0.0,
    }
    self.assertEqual(arguments.of_config(both), wanted)
    of_trainer = arguments.of_config(trainer)
    of_orchestrator = arguments.of_config(orchestrator)
    self.assertEqual(of_trainer | of_orchestrator, wanted)
    self.assertNotIn('temperature', of_trainer)
    # Another source samples colder, but with the same limit.
    cold = {'temperature': 0.5, 'max_completion_tokens': 2048}
    orchestrator['train']['source'].append({'sampling': cold})
    found = arguments.of_config(both)
    self.assertNotIn('temperature', found)
    self.assertEqual(found['max_tokens'], 2048)
    orchestrator['train']['source'].clear()  # What all sources would share.
    self.assertEqual(arguments.of_config(both)['temperature'], 0.9)

  @parameterized.parameters(
      {'actor_rollout_ref': 5},
      {'trainer': 3, 'orchestrator': {'train': {'source': [7, {}]}}},
      {'optim': {'lr': 1.0}, 'scheduler': {}, 'train': {}},
      {'actor_rollout_ref': {'actor': 3, 'rollout': []}, 'data': None},
      {'max_completion_length': [1], 'beta': True, 'warmup_steps': 'x'},
      {'max_completion_length': float('nan'), 'max_steps': 10**400},
      {'lr': 1.0},
  )
  def test_odd_configs(self, **config):
    self.assertEmpty(arguments.of_config(config))


def _prime_rl():
  """The resolved configs of prime-rl's trainer and orchestrator."""
  trainer = {
      'optim': {'type': 'adamw', 'lr': 3e-6, 'max_norm': 1.0},
      'scheduler': {'type': 'linear', 'warmup_steps': 10},
      'loss': {'type': 'default', 'kl_tau': 1e-3},
      'max_steps': 400,
      'weight_broadcast': {'type': 'filesystem'},
  }
  sampling = {
      'temperature': 1.1,
      'max_completion_tokens': 2048,
      'extra_body': {'top_k': -1, 'min_p': 0.0},
  }
  train = {
      'source': [{'sampling': sampling}],
      'sampling': {'temperature': 0.9, 'max_completion_tokens': None},
  }
  orchestrator = {
      'train': train,
      'group_size': 8,
      'weight_broadcast': {'type': 'filesystem'},
  }
  return trainer, orchestrator


_OF_VERL = """
actor_rollout_ref:
  actor: {optim: {lr: 2e-6}}
  rollout: {temperature: %s, n: '${oc.select:data.n,8}'}
trainer:
  rollout_data_dir: %s
"""


class BesideTheLogsTest(absltest.TestCase):
  """Settings that verl and prime-rl write beside their logs."""

  def setUp(self):
    super().setUp()
    folder = self.enter_context(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(folder)

  def _rollouts(self, folder: pathlib.Path) -> None:
    """Writes one step of verl's rollouts."""
    folder.mkdir(parents=True)
    row = {'input': 'a', 'output': 'b', 'score': 1.0, 'step': 1}
    (folder / '1.jsonl').write_text(json.dumps(row))

  def _config(self, folder: str, temperature: float, rollouts: str) -> None:
    path = self.path / folder / arguments.HYDRA
    path.parent.mkdir(parents=True)
    path.write_text(_OF_VERL % (temperature, rollouts))
    self._age = getattr(self, '_age', 1e9) + 100
    os.utime(path, (self._age, self._age))

  def test_config_of_verl(self):
    self._rollouts(self.path / 'one')
    self._config('outputs/2026-11-01/10-00-00', 0.7, '/data/one')
    self._config('outputs/2026-11-02/10-00-00', 0.8, '/data/one/')
    self._config('outputs/2026-11-03/10-00-00', 0.9, '/data/another')
    run = readers.read(self.path)
    self.assertEqual(
        run.settings, {'learning_rate': 2e-6, 'temperature': 0.8}
    )
    run = readers.read(self.path, settings={'temperature': 1.0})
    self.assertEqual(run.settings['temperature'], 1.0)

  def test_config_of_verl_above_the_rollouts(self):
    self._rollouts(self.path / 'run' / 'rollouts')
    self._config('run', 0.7, 'null')
    run = readers.read(self.path / 'run' / 'rollouts')
    self.assertEqual(run.settings['temperature'], 0.7)
    self.enter_context(contextlib.chdir(self.path / 'run' / 'rollouts'))
    run = readers.read(pathlib.Path('.'))
    self.assertEqual(run.settings['temperature'], 0.7)

  def test_hostile_configs(self):
    self._rollouts(self.path / 'one')
    path = self.path / arguments.HYDRA
    path.parent.mkdir()
    mark = self.path / 'mark'
    for text, message in (
        (f'!!python/object/apply:os.system ["touch {mark}"]', 'not valid YAML'),
        ('[' * 5000, 'not valid YAML'),
        ('a: {', 'not valid YAML'),
        ('- 1', 'not a mapping of fields'),
        ('a' * (5 << 20), 'over 4194304 bytes'),
        ('trainer: 5\nactor_rollout_ref: 5', 'taken to say'),
    ):
      path.write_text(text)
      run = readers.read(self.path)
      self.assertEmpty(run.settings, text[:40])
      self.assertRegex('\n'.join(run.notes), message)
      self.assertFalse(mark.exists())

  def _episodes(self, folder: pathlib.Path, turns: int) -> None:
    """Writes one episode of prime-rl."""
    folder = folder / 'rollouts' / 'step_1' / 'train' / 'effective'
    folder.mkdir(parents=True)
    node = {'message': {'role': 'assistant', 'content': '4'}, 'sampled': True}
    episode = {'group': {'id': 'a'}, 'traces': [{'nodes': [node] * turns}]}
    (folder / 'traces.jsonl').write_text(json.dumps(episode))

  def _configs(self, folder: pathlib.Path) -> None:
    folder.mkdir(parents=True)
    trainer, orchestrator = _prime_rl()
    (folder / 'trainer.json').write_text(json.dumps(trainer))
    text = json.dumps(orchestrator['train']['source'][0]['sampling'])
    text = text.replace('": ', '" = ')
    (folder / 'orchestrator.toml').write_text(f'[train]\nsampling = {text}\n')

  def test_configs_of_prime_rl(self):
    self._episodes(self.path, 1)
    self._configs(self.path / 'configs')
    found = readers.read(self.path).settings
    self.assertEqual(found['learning_rate'], 3e-6)
    self.assertEqual(found['max_tokens'], 2048)

  def test_limit_of_prime_rl_is_one_of_turns(self):
    self._episodes(self.path / 'run', 3)  # The configs lie one folder up.
    self._configs(self.path / 'configs')
    found = readers.read(self.path / 'run').settings
    self.assertEqual((found['turn_tokens'], found['temperature']), (2048, 1.1))
    self.assertNotIn('max_tokens', found)
    given = arguments.of_file(self.path / 'configs')
    found = readers.read(self.path / 'run', settings=given).settings
    self.assertNotIn('max_tokens', found)
    (self.path / 'configs' / 'trainer.json').write_text('{')
    run = readers.read(self.path / 'run')
    self.assertEmpty(run.settings)
    self.assertRegex(run.notes[-1], 'configs/ cannot be read.*not valid JSON')

  def test_settings_elsewhere(self):
    self._rollouts(self.path / 'one')
    self._config('far', 0.7, 'null')
    self._configs(self.path / 'configs')
    for given, wanted in (
        (self.path / 'far' / arguments.HYDRA, 0.7),
        (self.path / 'configs', 1.1),
        (self.path / 'configs' / 'orchestrator.toml', None),
        (_DATA / 'trl' / arguments.FILE, 1.0),
    ):
      args = [str(self.path / 'one'), f'--settings={given}']
      if wanted is None:
        self.assertEqual(main.main(args), 2)
        continue
      self.assertEqual(main.main(args), 0)
      self.assertEqual(self._shown()['temperature'], wanted)
      main.main([*args, '--set=temperature=1.3'])
      self.assertEqual(self._shown()['temperature'], 1.3)

  def _shown(self):
    text = (self.path / 'one' / 'diagnosis.json').read_text()
    return json.loads(text)['settings']


def _field(number: int, data: bytes | str) -> bytes:
  """A field of a protobuf message whose value is a text or a message."""
  data = data.encode() if isinstance(data, str) else data
  length, rest = b'', len(data)
  while rest > 127:
    length += bytes([rest % 128 + 128])
    rest //= 128
  tag = number << 3 | 2
  head = bytes([tag]) if tag < 128 else bytes([tag % 128 + 128, tag // 128])
  return head + length + bytes([rest]) + data


def _config(**values) -> bytes:
  """A ConfigRecord."""
  return b''.join(
      _field(1, _field(1, name) + _field(16, json.dumps(value)))
      for name, value in values.items()
  )


class WandbTest(absltest.TestCase):

  def _read(self, *records: bytes):
    """Reads a run with these records and two steps of a history."""
    folder = self.enter_context(tempfile.TemporaryDirectory())
    steps = [
        # With the number of the step, as HistoryStep.num.
        _field(
            2,
            _field(1, _field(1, 'reward') + _field(16, '0.1'))
            + _field(2, bytes([1 << 3, number])),
        )
        for number in (1, 2)
    ]
    log = b':W&B' + bytes(3)
    for record in (*records, *steps):
      # A checksum, which is not looked at, the length, and 1: a whole record.
      log += bytes(4) + len(record).to_bytes(2, 'little') + b'\1' + record
    pathlib.Path(folder, 'run-1.wandb').write_bytes(log)
    return readers.read(pathlib.Path(folder))

  def test_arguments_that_were_given_at_the_start_or_later(self):
    start = _config(max_completion_length=64, temperature=0.9, beta=0.04)
    later = _config(temperature=0.7)
    run = self._read(_field(17, _field(4, start)), _field(5, later))
    self.assertEmpty(run.notes)
    self.assertEqual(
        run.settings, {'max_tokens': 64.0, 'temperature': 0.7, 'kl_coef': 0.04}
    )

  def test_config_of_verl(self):
    rollout = {'temperature': 1.2}
    config = _config(actor_rollout_ref={'rollout': rollout})
    run = self._read(_field(5, config))
    self.assertEqual(run.settings['temperature'], 1.2)

  def test_config_of_another_type(self):
    number = bytes([5 << 3, 7])  # In the place of a message.
    config = _config(max_completion_length=64)
    run = self._read(number, _field(5, config))
    self.assertEqual(run.settings, {'max_tokens': 64.0})
    self.assertEqual(run.n_steps, 2)
    self.assertIn('left out 1 damaged record', run.notes[0])

  def test_config_that_is_nested_too_deep(self):
    deep = _field(1, 'beta') + _field(16, '[' * 5000 + ']' * 5000)
    run = self._read(_field(5, _field(1, deep)))
    self.assertEqual(run.n_steps, 2)
    self.assertIn('left out 1 damaged record', run.notes[0])

  def test_config_of_an_unknown_trainer(self):
    self.assertEmpty(self._read(_field(5, _config(temperature=0.7))).settings)


if __name__ == '__main__':
  absltest.main()
