import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from absl.testing import absltest
import jax
import numpy as np

from evojax import records
from evojax.models import decoder
from evojax.models import hf
from evojax.models import tokenizer as tokenizer_lib
from evojax.models import tokenizer_training
from evojax.models import warmstart

_MODEL = decoder.DecoderConfig(
    family='qwen3',
    vocab_size=32,
    hidden_size=16,
    intermediate_size=24,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    qk_norm=True,
)
_SETTINGS = {
    'vocab_size': 320,
    'hidden_size': 32,
    'intermediate_size': 32,
    'num_layers': 1,
    'num_heads': 1,
    'num_kv_heads': 1,
    'head_dim': 16,
    'steps': 40,
    'rows': 8,
    'length': 32,
    'examples': 24,
    'max_completion': 8,
    'learning_rate': 0.03,
    'adam_learning_rate': 0.01,
    'warmup_steps': 4,
    'weight_decay': 0.0,
    'checkpoint_every': 10,
    'log_every': 5,
}


def _demonstrations(step: int, count: int) -> list[records.Demonstration]:
  """Return demonstrations of copying a digit, learnable in few updates."""
  digits = np.random.default_rng(step).integers(10, size=count)
  return [
      records.Demonstration(
          ({'role': 'user', 'content': f'Repeat this: {d}.'},),
          f'<answer>{d}</answer>',
      )
      for d in digits
  ]


def _directory(test: absltest.TestCase) -> str:
  directory = tempfile.TemporaryDirectory()
  test.addCleanup(directory.cleanup)
  return directory.name


def _run(workdir, log=lambda step, metrics: None, **kwargs):
  return warmstart.run(
      _demonstrations,
      workdir,
      warmstart.Settings(**{**_SETTINGS, **kwargs}),
      tokens=('<answer>', '</answer>'),
      seed=0,
      log=log,
  )


def _said(prompt, completion):
  return prompt, completion, [True] * len(completion)


class PackTest(absltest.TestCase):

  def test_by_hand(self):
    # Sizes 5, 3, 2 and 4 into two rows of 8: first fit in decreasing order
    # puts 5 and 3 in row 0, 4 and 2 in row 1.
    batch = warmstart.pack(
        [
            _said([1, 2], [3, 4, 5]),
            _said([6], [7, 8]),
            _said([9], [10]),
            _said([11], [12, 13, 14]),
        ],
        rows=2,
        length=8,
        pad_id=0,
    )
    np.testing.assert_array_equal(
        batch['tokens'],
        [[1, 2, 3, 4, 5, 6, 7, 8], [11, 12, 13, 14, 9, 10, 0, 0]],
    )
    np.testing.assert_array_equal(
        batch['positions'], [[0, 1, 2, 3, 4, 0, 1, 2], [0, 1, 2, 3, 0, 1, 0, 0]]
    )
    np.testing.assert_array_equal(
        batch['segment_ids'],
        [[1, 1, 1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 2, 2, 0, 0]],
    )
    np.testing.assert_array_equal(
        batch['loss_mask'],
        [[0, 0, 1, 1, 1, 0, 1, 1], [0, 1, 1, 1, 0, 1, 0, 0]],
    )

  def test_what_finds_no_room_is_left_out(self):
    batch = warmstart.pack([_said([1], [2, 3])] * 5, rows=2, length=6, pad_id=0)
    self.assertEqual(batch['segment_ids'].max(1).tolist(), [2, 2])

  def test_longer_than_a_row_is_refused(self):
    with self.assertRaisesRegex(ValueError, '7 tokens does not fit length=6'):
      warmstart.pack([_said([1], [2] * 6)], rows=2, length=6, pad_id=0)


class LossTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.params = decoder.init(_MODEL, jax.random.key(0))
    rng = np.random.default_rng(0)
    self.examples = [
        _said(
            rng.integers(32, size=p).tolist(),
            rng.integers(32, size=c).tolist(),
        )
        for p, c in [(3, 4), (2, 2), (5, 3), (1, 4)]
    ]

  def test_packed_is_the_mean_over_completion_tokens_alone(self):
    packed = warmstart.pack(self.examples, rows=2, length=12, pad_id=0)
    # Each example in its own row, padded on the right.
    alone = np.zeros((4, 8), np.int32)
    for row, (prompt, completion, _) in zip(alone, self.examples):
      row[: len(prompt) + len(completion)] = prompt + completion
    positions = np.tile(np.arange(8), (4, 1))
    hidden = jax.jit(decoder.forward, static_argnums=0)(
        _MODEL, self.params, alone, positions, np.ones_like(alone)
    )
    logprobs = jax.nn.log_softmax(decoder.logits(_MODEL, self.params, hidden))
    total = 0.0
    for i, (prompt, completion, _) in enumerate(self.examples):
      for t, token in enumerate(completion, len(prompt)):
        total -= logprobs[i, t - 1, token]
    # 4 + 2 + 3 + 4 completion tokens.
    loss = jax.jit(warmstart.loss_fn, static_argnums=1)
    np.testing.assert_allclose(
        loss(self.params, _MODEL, packed), total / 13, rtol=1e-5
    )

  def test_prompt_and_padding_targets_do_not_matter(self):
    batch = warmstart.pack(self.examples, rows=2, length=16, pad_id=0)
    gradient = jax.jit(jax.grad(warmstart.loss_fn), static_argnums=1)
    expected = gradient(self.params, _MODEL, batch)
    batch['tokens'][batch['segment_ids'] == 0] = 7
    for a, b in zip(
        jax.tree.leaves(expected),
        jax.tree.leaves(gradient(self.params, _MODEL, batch)),
        strict=True,
    ):
      np.testing.assert_array_equal(a, b)


class EncodeTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    directory = _directory(self)
    tokenizer_training.train(
        ['Add: 1 + 2.', 'Add: 3 + 4.'],
        directory,
        vocab_size=300,
        tokens=('<answer>', '</answer>'),
    )
    self.tokenizer = tokenizer_lib.Tokenizer(directory)
    self.shown = records.Demonstration(
        ({'role': 'user', 'content': 'Add: 1 + 2.'},), '<answer>3</answer>'
    )

  def test_prompt_ends_where_the_answer_begins(self):
    prompt, completion, said = warmstart.encode(self.tokenizer, self.shown, 4)
    self.assertEqual(prompt, self.tokenizer.render(self.shown.messages))
    # <answer> 3 </answer> <|end|>
    self.assertLen(completion, 4)
    self.assertEqual(completion[-1], self.tokenizer.eos_ids[0])
    self.assertEqual(said, [True] * 4)

  def test_several_turns_are_what_an_episode_would_be(self):
    tool = {'role': 'tool', 'content': '1'}
    shown = dataclasses.replace(
        self.shown, before=(('Add: ', tool), ('<answer>', tool))
    )
    prompt, ids, said = warmstart.encode(self.tokenizer, shown, 32)
    chat = [
        *shown.messages,
        {'role': 'assistant', 'content': 'Add: '},
        tool,
        {'role': 'assistant', 'content': '<answer>'},
        tool,
    ]
    whole = self.tokenizer.render(chat)
    end = self.tokenizer.eos_ids[0]
    answer = [*self.tokenizer.encode('<answer>3</answer>'), end]
    self.assertEqual(prompt + ids, whole + answer)
    spoken = [i for i, mine in zip(ids, said, strict=True) if mine]
    turns = ['Add: ', '<answer>']
    want = [t for s in turns for t in (*self.tokenizer.encode(s), end)]
    self.assertEqual(spoken, want + answer)
    with self.assertRaisesRegex(ValueError, 'more than max_completion=8'):
      warmstart.encode(self.tokenizer, shown, 8)
    shown = dataclasses.replace(shown, foretells=True)
    told = warmstart.encode(self.tokenizer, shown, 32)
    self.assertEqual(told, (prompt, ids, [True] * len(ids)))

  def test_too_long_is_refused_and_a_ramble_is_cut(self):
    with self.assertRaisesRegex(ValueError, '4 tokens, more than'):
      warmstart.encode(self.tokenizer, self.shown, 3)
    ramble = dataclasses.replace(self.shown, ends=False)
    _, completion, _ = warmstart.encode(self.tokenizer, ramble, 2)
    self.assertEqual(completion, self.tokenizer.encode('<answer>3'))


class TokenizerTrainingTest(absltest.TestCase):

  def _train(self, texts, **kwargs):
    directory = _directory(self)
    kwargs = {'vocab_size': 400, 'tokens': ('<answer>',), **kwargs}
    tokenizer_training.train(texts, directory, **kwargs)
    return tokenizer_lib.Tokenizer(directory)

  def test_phrases_are_single_tokens_and_digits_stand_alone(self):
    tokenizer = self._train(['Solve for b: 12*b + 305 = 7.5<answer>'] * 2)
    ids = tokenizer.encode('Solve for b: 12*b + 305 = 7.5<answer>')
    self.assertEqual(
        [tokenizer.decode([i]) for i in ids],
        [
            'Solve for',
            ' b',
            ': ',
            '1',
            '2',
            '*',
            'b',
            ' + ',
            '3',
            '0',
            '5',
            ' = ',
            '7',
            '.',
            '5',
            '<answer>',
        ],
    )

  def test_any_text_comes_back(self):
    tokenizer = self._train(['Solve for b: 1'])
    texts = 'Ünï 漢字\t\r\n 🙂', '  two  spaces ', '<answer><|end|>', '-3'
    for text in texts:
      self.assertEqual(tokenizer.decode(tokenizer.encode(text)), text)

  def test_chat(self):
    tokenizer = self._train(['hello'])
    ids = tokenizer.render(
        [
            {'role': 'system', 'content': 'hello'},
            {'role': 'user', 'content': 'hello'},
            {'role': 'assistant', 'content': 'hello'},
            {'role': 'user', 'content': 'hello'},
        ]
    )
    names = tokenizer._backend.convert_ids_to_tokens(ids)
    self.assertEqual(
        names,
        [
            '<|system|>',
            'hello',
            '<|user|>',
            'hello',
            '<|assistant|>',
            'hello',
            '<|end|>',
            '<|user|>',
            'hello',
            '<|assistant|>',
        ],
    )

  def test_frequent_chunks_win_and_files_are_reproducible(self):
    texts = ['common phrase.'] * 3 + ['rare phrase.']
    vocab_size = 6 + 1 + 256 + 1  # Room for one chunk.
    first = self._train(texts, vocab_size=vocab_size)
    second = self._train(texts[::-1], vocab_size=vocab_size)
    self.assertLen(first.encode('common phrase'), 1)
    self.assertLen(first.encode('rare phrase'), len('rare phrase'))
    for name in ('tokenizer.json', 'tokenizer_config.json'):
      self.assertEqual(
          (first.path / name).read_bytes(), (second.path / name).read_bytes()
      )

  def test_a_line_of_code_has_the_same_words_wherever_it_stands(self):
    line = 'return value'
    tokenizer = self._train([f'7   {line}\n', f'"  {line}"'] * 3, words=True)
    names = lambda text: [tokenizer.decode([i]) for i in tokenizer.encode(text)]
    self.assertEqual(names(f'7   {line}\n')[-3:], [' return', ' value', '\n'])
    self.assertEqual(names(f'"  {line}')[-2:], [' return', ' value'])

  def test_no_room_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'vocab_size=263.*at least 264'):
      self._train(['x'], vocab_size=263)


class RunTest(absltest.TestCase):

  def test_learns_and_writes_a_policy(self):
    workdir = _directory(self)
    losses = []
    log = lambda _, metrics: losses.append(metrics['loss'])
    path = _run(workdir, log, steps=120, checkpoint_every=120)
    # From ln(320) nats per token at the start to almost certain copies.
    self.assertGreater(losses[0], 2.0)
    self.assertLess(losses[-1], 0.3)
    cfg = hf.check_directory(path)
    self.assertEqual(cfg.family, 'qwen3')
    tokenizer = tokenizer_lib.Tokenizer(path)
    prompt = tokenizer.render(_demonstrations(0, 1)[0].messages)
    self.assertIn(tokenizer.encode('<answer>')[0], range(cfg.vocab_size))
    self.assertLess(max(prompt), cfg.vocab_size)

  def test_killed_anywhere_and_started_again_is_bit_equal(self):
    whole = _run(_directory(self))
    workdir = _directory(self)
    # Killed after 25 updates; the checkpoint of update 20 may exist.
    child = subprocess.run(
        [sys.executable, __file__, workdir, '25'],
        check=False,
        cwd=pathlib.Path(__file__).parents[2],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
    )
    self.assertEqual(child.returncode, -signal.SIGKILL)
    steps = []
    resumed = _run(workdir, lambda step, _: steps.append(step))
    self.assertIn(steps[0], (15, 25))  # At most one period is repeated.
    for name in ('model.safetensors', 'tokenizer.json', 'config.json'):
      self.assertEqual(
          (whole / name).read_bytes(), (resumed / name).read_bytes(), name
      )

  def test_goes_on_from_another_policy(self):
    first = _run(_directory(self))
    losses = []
    workdir = _directory(self)
    policy = _run(
        workdir,
        lambda step, metrics: losses.append(metrics['loss']),
        start=str(first),
        steps=5,
        learning_rate=0.0,
        adam_learning_rate=0.0,
    )
    # It is what was learned before, with the words it was learned in.
    self.assertLess(losses[0], 1.0)  # From ln(320) otherwise.
    tokenizers = [(p / 'tokenizer.json').read_bytes() for p in (first, policy)]
    self.assertEqual(*tokenizers)
    cfg = hf.check_directory(first)
    before, after = (
        jax.tree.map(np.asarray, hf.load_params(p, cfg))
        for p in (first, policy)
    )
    jax.tree.map(np.testing.assert_array_equal, before, after)

  def test_a_start_of_another_shape_is_refused(self):
    first = _run(_directory(self), steps=5)
    with self.assertRaisesRegex(
        ValueError, r'warmstart.num_layers=2, and the policy in .* has 1; set 1'
    ):
      _run(_directory(self), start=str(first), num_layers=2)

  def test_a_loss_that_is_not_finite_stops_the_run(self):
    with self.assertRaisesRegex(FloatingPointError, 'learning_rate'):
      _run(
          _directory(self),
          learning_rate=float('inf'),
          warmup_steps=1,
      )


def _killed(workdir: str, step: int) -> None:
  """Run until `step`, then die without a chance to clean up."""

  def log(done, _):
    if done == step:
      os.kill(os.getpid(), signal.SIGKILL)

  _run(workdir, log)


if __name__ == '__main__':
  if len(sys.argv) == 3 and sys.argv[2].isdecimal():
    _killed(sys.argv[1], int(sys.argv[2]))
  else:
    absltest.main()
