"""Trains a small vocabulary for a small policy.

Text is cut into chunks: single digits, operators, punctuation marks, and the
phrases between them. The most frequent chunks become one token each, so that
prompts are short. Unlike byte-pair encoding, this spends no embedding rows on
the intermediate merges of a phrase. Each digit is a token, so that arithmetic
can generalise over numbers. All 256 bytes are in the vocabulary: any text can
be encoded, and decoding restores it. The file is an ordinary `tokenizer.json`
(a unigram model, Kudo 2018, arXiv:1804.10959) that transformers reads.
"""

import collections
from collections.abc import Iterable, Sequence
import math
import os
import pathlib
import re

from evojax.models import hf_config

PAD, END = '<|pad|>', '<|end|>'
ROLES = ('system', 'user', 'assistant', 'tool')

# One special token opens each turn; END closes the assistant's.
CHAT_TEMPLATE = (
    "{%- for m in messages -%}{{- '<|' + m['role'] + '|>' + m['content'] -}}"
    "{%- if m['role'] == 'assistant' -%}{{- '<|end|>' -}}{%- endif -%}"
    '{%- endfor -%}'
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)

# One-letter words other than the English 'a' and 'I' are names of variables.
_UNKNOWN = r' ?\b[b-zA-HJ-Z]\b'
_CHUNK = (
    r'\d|\n| ?[-+*/=%()] ?|[.,:;?!°] ?'
    rf'|{_UNKNOWN}|(?:(?!{_UNKNOWN})[^\d\n+*/=%().,:;?!°-])+'
)

# Code repeats words rather than phrases. An indent is a chunk of its own, so
# that a line has the same tokens wherever it appears.
_WORD = r'\d|\n| +(?= )| ?[^\W\d]+| ?[^\w\s]{1,3}'


def train(
    texts: Iterable[str],
    directory: str | os.PathLike[str],
    *,
    vocab_size: int,
    tokens: Sequence[str] = (),
    words: bool = False,
) -> None:
  """Write the tokenizer files of a Hugging Face directory.

  Args:
    texts: Problems and completions, without special tokens.
    directory: Gets tokenizer.json, tokenizer_config.json and
      generation_config.json.
    vocab_size: Rows of the embedding table: special tokens, `tokens`, 256
      bytes, then chunks of the texts by frequency. Fewer rows are used if the
      texts hold fewer chunks.
    tokens: Texts that become one token each, e.g. '<answer>'.
    words: Whether chunks are at most one word, which suits code.

  Raises:
    ValueError: If vocab_size leaves no room for chunks.
  """
  specials = (PAD, END, *(f'<|{role}|>' for role in ROLES))
  room = vocab_size - len(specials) - len(tokens) - 256
  if room <= 0:
    raise ValueError(
        f'{vocab_size=} leaves no room: {len(specials)} special tokens,'
        f' {len(tokens)} fixed tokens and 256 bytes come first. Raise it to at'
        f' least {vocab_size - room + 1}.'
    )
  import tokenizers  # Imported here because only the warm start trains one.

  split = tokenizers.pre_tokenizers
  to_bytes = split.ByteLevel(add_prefix_space=False, use_regex=False)
  counts = collections.Counter()
  chunk_pattern = _WORD if words else _CHUNK
  cut = re.compile('|'.join(map(re.escape, tokens)) or r'(?!)')
  for text in texts:
    for part in cut.split(text):
      counts.update(re.findall(chunk_pattern, part))
  # Ties are broken by the text, so that the vocabulary is reproducible.
  ranked = sorted(counts, key=lambda chunk: (-counts[chunk], chunk))
  alphabet = sorted(split.ByteLevel.alphabet())
  spelled = {
      chunk: ''.join(piece for piece, _ in to_bytes.pre_tokenize_str(chunk))
      for chunk in ranked
  }
  chunks = [c for c in ranked if len(spelled[c]) > 1][:room]
  total = counts.total()
  # Each byte scores below every chunk, so that bytes never replace a chunk.
  byte_score = math.log(1 / total) - 1.0
  scores = [(byte, byte_score) for byte in alphabet]
  scores += [(spelled[c], math.log(counts[c] / total)) for c in chunks]

  tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(scores))
  cut_chunks = split.Split(tokenizers.Regex(chunk_pattern), 'isolated')
  tokenizer.pre_tokenizer = split.Sequence([cut_chunks, to_bytes])
  tokenizer.decoder = tokenizers.decoders.ByteLevel()
  tokenizer.add_special_tokens(list(specials))
  tokenizer.add_tokens(
      [tokenizers.AddedToken(token, normalized=False) for token in tokens]
  )
  directory = pathlib.Path(directory)
  directory.mkdir(parents=True, exist_ok=True)
  tokenizer.save(str(directory / 'tokenizer.json'))
  hf_config.write_json(
      directory / 'tokenizer_config.json',
      {
          'tokenizer_class': 'PreTrainedTokenizerFast',
          'pad_token': PAD,
          'eos_token': END,
          'clean_up_tokenization_spaces': False,
          'chat_template': CHAT_TEMPLATE,
      },
  )
  hf_config.write_json(
      directory / 'generation_config.json',
      {
          'eos_token_id': tokenizer.token_to_id(END),
          'pad_token_id': tokenizer.token_to_id(PAD),
          'do_sample': True,
          'temperature': 1.0,
      },
  )
