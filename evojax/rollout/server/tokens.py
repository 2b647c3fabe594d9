"""A tokenizer as a server needs it: rendered prompts, single tokens."""

import functools
import re

from evojax.models import tokenizer as tokenizer_lib


class ServerTokenizer(tokenizer_lib.Tokenizer):
  """Reads prompts that were rendered elsewhere, and shows single tokens."""

  def encode_prompt(self, text: str) -> list[int]:
    """Token ids of a prompt that was rendered elsewhere.

    As SGLang reads the `text` of a request: special tokens in it are special,
    and the tokenizer may add those of its own, e.g. one that begins a text.
    """
    return self._backend.encode(
        text, add_special_tokens=True, split_special_tokens=False
    )

  def token_text(self, token: int) -> str:
    """Text of a single token, special or not."""
    return self.decode((token,), skip_special_tokens=False)

  def token_bytes(self, token: int) -> bytes | None:
    """Bytes of a single token, also where they are no whole character.

    Returns:
      None where the tokenizer's vocabulary does not say.
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
  """Letter -> byte of byte-level tokenizers (GPT-2's)."""
  printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
  others = [b for b in range(256) if b not in printable]
  letters = {chr(b): b for b in printable}
  return letters | {chr(256 + i): b for i, b in enumerate(others)}
