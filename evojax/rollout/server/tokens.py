"""A tokenizer that also encodes rendered prompts and shows single tokens."""

import functools
import re

from evojax.models import tokenizer as tokenizer_lib


class ServerTokenizer(tokenizer_lib.Tokenizer):
  """The tokenizer of a server."""

  def encode_prompt(self, text: str) -> list[int]:
    """Return the token ids of a prompt that was rendered elsewhere.

    SGLang treats the `text` of a request in the same way: special tokens in it
    are encoded as such, and the tokenizer may add its own, e.g. one at the
    start of a text. Only one thread at a time may encode, also by the other
    methods, because this method takes no lock: decoding, which does, must not
    wait for a long prompt.
    """
    return self._backend.encode(
        text, add_special_tokens=True, split_special_tokens=False
    )

  @functools.cached_property
  def longest_token(self) -> int:
    """Return the length of the longest token, in characters."""
    return max(map(len, self._backend.get_vocab()))

  def token_text(self, token: int) -> str:
    """Return the text of a single token, special or not."""
    return self.decode((token,), skip_special_tokens=False)

  def token_bytes(self, token: int) -> bytes | None:
    """Return the bytes of a single token, which may be part of a character.

    Returns:
      The bytes; None if the vocabulary does not determine them.
    """
    text = self.token_text(token)
    if '\ufffd' not in text:
      return text.encode()
    name = self._backend.convert_ids_to_tokens(token)
    if match := re.fullmatch('<0x([0-9A-F]{2})>', name):
      return bytes.fromhex(match[1])
    alphabet = _byte_alphabet()
    if all(c in alphabet for c in name):
      return bytes(alphabet[c] for c in name)
    return None


@functools.cache
def _byte_alphabet() -> dict[str, int]:
  """Return letter -> byte, for byte-level tokenizers (as in GPT-2)."""
  printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
  others = [b for b in range(256) if b not in printable]
  letters = {chr(b): b for b in printable}
  return letters | {chr(256 + i): b for i, b in enumerate(others)}
