"""The text shown of a growing sample never has to be taken back."""

import pathlib
import random

from absl.testing import absltest
from absl.testing import parameterized
import tokenizers
from tokenizers import decoders
from tokenizers import models

import evojax
from evojax.rollout import service
from evojax.rollout.server import text as text_lib
from evojax.rollout.server import tokens
from tests.rollout.server import fakes

# By its path: to import its package takes seconds.
_SHIPPED = (
    pathlib.Path(evojax.__file__).parent / 'domains' / 'math' / 'base_policy'
)
_LETTERS = 'aé€😀한\n ÷'


def _sentencepiece() -> tokenizers.Tokenizer:
  """Drops the space before the first word; unknown letters are bytes."""
  words = ['▁a', '▁b', 'c', '▁', *(f'<0x{b:02X}>' for b in range(256))]
  backend = tokenizers.Tokenizer(
      models.BPE({w: i for i, w in enumerate(words)}, [], byte_fallback=True)
  )
  backend.decoder = decoders.Sequence(
      [
          decoders.Replace('▁', ' '),
          decoders.ByteFallback(),
          decoders.Fuse(),
          decoders.Strip(content=' ', left=1),
      ]
  )
  return backend


class DetokenizerTest(parameterized.TestCase):

  def _check(self, decode, ids, cuts):
    """Shown text is at any time the head of the whole, and whole letters."""
    whole = decode(ids)
    detokenizer = text_lib.Detokenizer(decode)
    shown, start = '', 0
    for end in cuts:
      detokenizer.push(ids[start:end])
      self.assertStartsWith(detokenizer.text, shown)
      self.assertStartsWith(whole, detokenizer.text)
      shown, start = detokenizer.text, end
    return shown, whole

  @parameterized.parameters(range(20))
  def test_bytes_of_letters_in_any_portion(self, seed):
    rng = random.Random(seed)
    text = ''.join(rng.choices(_LETTERS, k=40))
    ids = list(text.encode())
    cuts = sorted({*rng.choices(range(len(ids)), k=25), len(ids)})
    shown, whole = self._check(fakes.make_tokenizer().decode, ids, cuts)
    self.assertEqual(shown, text)
    self.assertEqual(whole, text)

  def test_letter_by_letter(self):
    # The euro sign is e2 82 ac: nothing, nothing, the letter.
    detokenizer = text_lib.Detokenizer(fakes.make_tokenizer().decode)
    seen = []
    for byte in 'x€y'.encode():
      detokenizer.push([byte])
      seen.append(detokenizer.text)
    self.assertEqual(seen, ['x', 'x', 'x', 'x€', 'x€y'])

  @parameterized.parameters(range(10))
  def test_random_tokens_of_the_shipped_policy(self, seed):
    # Many are broken or special: shown is still the head of the whole.
    tokenizer = tokens.ServerTokenizer(_SHIPPED)
    rng = random.Random(seed)
    ids = [rng.randrange(448) for _ in range(120)]
    ids += list(tokenizer.encode('the end'))
    shown, whole = self._check(tokenizer.decode, ids, range(1, len(ids) + 1))
    self.assertEqual(shown, whole)

  def test_spaces_between_words_survive(self):
    # A decoder that drops the first space must not be asked word by word.
    backend = _sentencepiece()
    ids = [0, 1, 3, 0, 2, 0]
    shown, whole = self._check(backend.decode, ids, range(1, 7))
    self.assertEqual(whole, 'a b  ac a')
    self.assertEqual(shown, whole)

  def test_letters_that_fall_back_to_bytes(self):
    backend = _sentencepiece()
    ids = [0, *(4 + b for b in '€😀'.encode()), 1]
    shown, whole = self._check(backend.decode, ids, range(1, len(ids) + 1))
    self.assertEqual((shown, whole), ('a€😀 b', 'a€😀 b'))

  @parameterized.parameters((0x80,), (fakes.EOS,))
  def test_endless_noise_is_cheap(self, token):
    # Broken bytes, or special tokens that are left out: a look at all of them
    # for each would be 2000 * 2001 / 2 = 2 million tokens.
    looked = 0

    def decode(ids):
      nonlocal looked
      looked += len(ids)
      return tokenizer.decode(ids)

    tokenizer = fakes.make_tokenizer()
    detokenizer = text_lib.Detokenizer(decode)
    for _ in range(2000):
      detokenizer.push([token])
    self.assertLess(looked, 50_000)
    # ... and what comes after it is not lost.
    for byte in b'x' * 1000:
      detokenizer.push([byte])
    self.assertEndsWith(detokenizer.text, 'x' * 700)


class TextTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.decode = fakes.make_tokenizer().decode

  def _stream(self, ids, finish, *, stop=(), trim=True, step=1):
    text = text_lib.Text(self.decode, stop=stop, trim=trim)
    seen = []
    for i in range(0, len(ids) - step, step):
      text.push(ids[i : i + step])
      seen.append(text.value)
    text.close(ids, finish)
    return seen + [text.value]

  @parameterized.parameters(1, 2, 3)
  def test_head_of_a_stop_string_is_held_back(self, step):
    seen = self._stream(
        list(b'one STOP'),
        service.Finish('stop', 'STOP'),
        stop=('STOP', 'STAR'),
        step=step,
    )
    self.assertEqual(seen[-1], 'one ')
    for text in seen:
      self.assertNotIn('S', text)

  def test_false_alarm_is_shown(self):
    seen = self._stream(
        list(b'a STO STOR.'), service.Finish('length'), stop=('STOP',)
    )
    # The head is shown as soon as it cannot be one any more: 'STO ' after
    # 5 + 1 tokens, and 'STOR' after 10.
    self.assertEqual(seen[4], 'a ')
    self.assertEqual(seen[5], 'a STO ')
    self.assertEqual(seen[8], 'a STO ')
    self.assertEqual(seen[9], 'a STO STOR')
    self.assertEqual(seen[-1], 'a STO STOR.')

  def test_end_shows_what_was_held_back(self):
    seen = self._stream(
        list(b'a STO'), service.Finish('length'), stop=('STOP',)
    )
    self.assertEqual(seen[-2:], ['a ', 'a STO'])

  def test_stop_string_of_many_bytes(self):
    # The stop string is two letters of 3 bytes each; its head is one of them,
    # or a part of one.
    ids = list('ab→→'.encode())
    seen = self._stream(ids, service.Finish('stop', '→→'), stop=('→→',))
    self.assertEqual(seen, ['a'] + ['ab'] * 7)

  def test_overlapping_heads(self):
    # 'aab' in 'aaab': the longest head is held, the match is at 1.
    seen = self._stream(
        list(b'aaab'), service.Finish('stop', 'aab'), stop=('aab',)
    )
    self.assertEqual(seen, ['', '', 'a', 'a'])

  def test_a_late_service_shows_nothing_after_the_stop(self):
    # It looks for stop strings less often than it sends tokens.
    text = text_lib.Text(self.decode, stop=('.',), trim=True)
    text.push(list(b'ab.cd'))
    self.assertEqual(text.value, 'ab')
    text.push(list(b'ef'))
    self.assertEqual(text.value, 'ab')

  def test_first_of_several_stop_strings_bounds_the_text(self):
    text = text_lib.Text(self.decode, stop=('d', 'b', 'c'), trim=True)
    text.push(list(b'abcd'))
    self.assertEqual(text.value, 'a')

  def test_untrimmed_text_goes_to_the_end_of_the_last_token(self):
    seen = self._stream(
        list(b'x.y'), service.Finish('stop', '.'), stop=('.',), trim=False
    )
    self.assertEqual(seen, ['x', 'x.', 'x.y'])

  @parameterized.parameters(
      # A stop token goes, wherever else it stands.
      (b'aba', service.Finish('stop', ord('a')), True, 'ab'),
      (b'aba', service.Finish('stop', ord('a')), False, 'aba'),
      (b'aba', service.Finish('length'), True, 'aba'),
      (b'aba', service.Finish('abort'), True, 'aba'),
      # A string that an earlier token ended is no reason to cut an abort.
      (b'aba', service.Finish('abort', 'b'), True, 'aba'),
      (b'a.b.c', service.Finish('stop', '.'), True, 'a'),
      # Two tokens of one string: the text of both is there until it is cut.
      (b'a->', service.Finish('stop', '->'), True, 'a'),
      # Not in this text, e.g. because special tokens are shown in it.
      (b'abc', service.Finish('stop', 'x'), True, 'abc'),
      (b'', service.Finish('stop', 5), True, ''),
      (b'ab', None, True, 'ab'),
  )
  def test_final(self, tokens, finish, trim, expected):
    got = text_lib.final(self.decode, list(tokens), finish, trim=trim)
    self.assertEqual(got, expected)

  @parameterized.parameters(range(20))
  def test_stream_is_a_growing_head_of_the_answer(self, seed):
    rng = random.Random(seed)
    text = ''.join(rng.choices('ab€→', k=30))
    stops = tuple(''.join(rng.choices('ab€→', k=3)) for _ in range(2))
    found = [(text.find(s) + len(s), s) for s in stops if s in text]
    finish = service.Finish('length')
    if found:
      end, stop = min(found)
      text, finish = text[:end], service.Finish('stop', stop)
    ids = list(text.encode())
    seen = self._stream(ids, finish, stop=stops)
    expected = text_lib.final(self.decode, ids, finish, trim=True)
    self.assertEqual(seen[-1], expected)
    for before, after in zip(seen, seen[1:]):
      self.assertStartsWith(after, before)


if __name__ == '__main__':
  absltest.main()
