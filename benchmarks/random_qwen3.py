"""A Qwen3 of random weights, and problems in the shape of GSM8K.

    python -m benchmarks.random_qwen3 [--size=0.6B] DIR

DIR, by default runs/random, gets qwen3-random (qwen3-0.6B-random) and data, for
launch/reference_run.sh on a machine without a checkpoint. Everything but the
values is as in a directory of Qwen3: 151,936 rows of embeddings, 151,669 tokens
in tokenizer.json with Qwen's pre-tokenizer, ChatML with `enable_thinking`. The
tokenizer was trained on nothing: its merges are pairs of bytes and some
triples. The policy solves no problem, before or after training, and its
completions are as long as they may be: its tokens per second are those of full
batches. Making it takes 4 bytes of memory per parameter.
"""

import dataclasses
import itertools
import json
import pathlib
import tempfile

from absl import app
from absl import flags
import jax
import ml_collections
import numpy as np
import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers

from evojax import domains
from evojax.models import decoder
from evojax.models import hf
from evojax.models import policy as policy_lib
from evojax.models import tokenizer as tokenizer_lib

VOCABULARY = 151_936  # Rows; more than there are tokens, as in Qwen3.
_TOKENS = 151_643  # Without those below.
_SPECIAL = ('<|endoftext|>', '<|im_start|>', '<|im_end|>')
_ADDED = 26
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r' ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'
)
_TEMPLATE = (
    '{%- for m in messages -%}'
    "{{- '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' -}}"
    '{%- endfor -%}'
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}"
    '{%- if enable_thinking is defined and enable_thinking is false -%}'
    "{{- '<think>\n\n</think>\n\n' -}}{%- endif -%}{%- endif -%}"
)
RANDOM = 'RANDOM_WEIGHTS'  # A file that says what the directory holds.
_TINY = decoder.DecoderConfig(
    family='qwen3',
    vocab_size=VOCABULARY,
    hidden_size=64,
    intermediate_size=192,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    rope_theta=1e6,
    tie_embeddings=True,
    qk_norm=True,
    max_positions=40_960,
)
_SMALL = dataclasses.replace(
    _TINY,
    hidden_size=1024,
    intermediate_size=3072,
    num_layers=28,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
)
# Layers, heads and widths of config.json of Qwen/Qwen3-0.6B to -32B.
SIZES = {
    'tiny': _TINY,
    '0.6B': _SMALL,
    '1.7B': dataclasses.replace(
        _SMALL, hidden_size=2048, intermediate_size=6144
    ),
    '4B': dataclasses.replace(
        _SMALL,
        hidden_size=2560,
        intermediate_size=9728,
        num_layers=36,
        num_heads=32,
    ),
    '8B': dataclasses.replace(
        _SMALL,
        hidden_size=4096,
        intermediate_size=12_288,
        num_layers=36,
        num_heads=32,
        tie_embeddings=False,
    ),
    '32B': dataclasses.replace(
        _SMALL,
        hidden_size=5120,
        intermediate_size=25_600,
        num_layers=64,
        num_heads=64,
        tie_embeddings=False,
    ),
}
_SIZE = flags.DEFINE_enum('size', 'tiny', list(SIZES), 'Size of the policy.')


def without_weights(
    shape: decoder.DecoderConfig, config: ml_collections.ConfigDict
) -> policy_lib.Policy:
  """Return the policy of a config with what its compilation needs."""
  computed = {field: config.model[field] for field in policy_lib.COMPUTED}
  return policy_lib.Policy(
      pathlib.Path('unused'),
      dataclasses.replace(shape, **computed),
      # Any tokenizer will do: only its special tokens reach a program.
      tokenizer_lib.Tokenizer(domains.policy_path('package:math')),
  )


def make_tokenizer(path: pathlib.Path) -> None:
  """Write the files of a tokenizer with Qwen3's number of tokens."""
  # Letters first: their pairs make the longest tokens.
  signs = sorted(
      pre_tokenizers.ByteLevel.alphabet(), key=lambda c: (not c.isalpha(), c)
  )
  merges = list(itertools.product(signs, signs))
  pairs = (a + b for a, b in merges)
  merges += itertools.islice(
      itertools.product(pairs, signs), _TOKENS - len(signs) - len(merges)
  )
  vocabulary = [*signs, *(a + b for a, b in merges)]
  made = tokenizers.Tokenizer(
      models.BPE({token: i for i, token in enumerate(vocabulary)}, merges)
  )
  made.pre_tokenizer = pre_tokenizers.Sequence(
      [
          pre_tokenizers.Split(tokenizers.Regex(_WORDS), 'isolated'),
          pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
      ]
  )
  made.decoder = decoders.ByteLevel()
  made.add_special_tokens(list(_SPECIAL))
  unused = (f'<|unused_{i}|>' for i in range(_ADDED - len(_SPECIAL) - 2))
  made.add_tokens(['<think>', '</think>', *unused])
  made.save(str(path / 'tokenizer.json'))
  end, _, turn = range(_TOKENS, _TOKENS + len(_SPECIAL))
  for name, content in {
      'tokenizer_config': {
          'tokenizer_class': 'PreTrainedTokenizerFast',
          'eos_token': _SPECIAL[2],
          'pad_token': _SPECIAL[0],
          'chat_template': _TEMPLATE,
      },
      'generation_config': {'eos_token_id': [turn, end], 'pad_token_id': end},
  }.items():
    (path / f'{name}.json').write_text(json.dumps(content, indent=2))


def make_model(path: pathlib.Path, size: str = 'tiny', seed: int = 0) -> None:
  """Write a Hugging Face directory of a Qwen3 with random weights.

  Args:
    path: The new directory.
    size: Key of SIZES.
    seed: Seed of the values.
  """
  rng = np.random.default_rng(seed)
  cfg = SIZES[size]

  def draw(x):
    if len(x.shape) == 1:
      return np.ones(x.shape, np.float32)
    return 0.02 * rng.standard_normal(x.shape, np.float32)

  params = jax.tree.map(draw, decoder.shapes(cfg))
  with tempfile.TemporaryDirectory() as folder:
    make_tokenizer(pathlib.Path(folder))
    hf.save(path, cfg, params, dtype='bfloat16', tokenizer_dir=folder)
  (path / RANDOM).write_text('Nobody has trained these weights.\n')


def make_data(path: pathlib.Path, *, train: int = 800, test: int = 100) -> None:
  """Write train.jsonl and test.jsonl with the fields of GSM8K's files."""
  path.mkdir(parents=True, exist_ok=True)
  rows = [
      {
          'question': (
              f'Ann has {a} apples and buys {b} bags of {c} apples. How many'
              ' apples does she have now?'
          ),
          'answer': (
              f'The bags hold {b} * {c} = <<{b}*{c}={b * c}>>{b * c} apples.\n'
              f'She has {a} + {b * c} = <<{a}+{b * c}={a + b * c}>>'
              f'{a + b * c:,} apples.\n#### {a + b * c:,}'
          ),
      }
      for a, b, c in itertools.product(range(3, 103), range(2, 12), (6, 60))
  ]
  np.random.default_rng(0).shuffle(rows)
  for name, part in {
      'train': rows[:train],
      'test': rows[train : train + test],
  }.items():
    text = ''.join(json.dumps(row) + '\n' for row in part)
    (path / f'{name}.jsonl').write_text(text)


def main(argv):
  out = pathlib.Path(*argv[1:] or ('runs/random',))
  middle = '' if _SIZE.value == 'tiny' else f'-{_SIZE.value}'
  model = out / f'qwen3{middle}-random'
  make_model(model, _SIZE.value)
  make_data(out / 'data')
  print(f'bash launch/reference_run.sh {model} {out}/data')


if __name__ == '__main__':
  app.run(main)
