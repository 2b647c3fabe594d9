"""A tokenizer as a server needs it: tools, special tokens, single tokens."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import functools
import inspect
import re
from typing import Any

import jinja2

from evojax.models import tokenizer as tokenizer_lib


class ChatTokenizer(tokenizer_lib.Tokenizer):
  """Renders whole conversations, with tools and with calls of them.

  As in its parent, what a user, a tool or the description of a tool spells out
  never becomes a special token. A prompt that comes as text does, see
  `encode_prompt`.
  """

  def encode_prompt(self, text: str) -> list[int]:
    """Token ids of a prompt that was rendered elsewhere.

    As SGLang reads the `text` of a request: special tokens in it are special,
    and the tokenizer may add those of its own, e.g. one that begins a text.
    """
    return self._backend.encode(
        text, add_special_tokens=True, split_special_tokens=False
    )

  def decode(
      self, ids: Sequence[int], *, skip_special_tokens: bool = True
  ) -> str:
    """Text of token ids."""
    if skip_special_tokens:
      return super().decode(ids)
    return self._backend.decode(
        list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )

  def render(
      self,
      messages: Sequence[Mapping[str, Any]],
      *,
      tools: Sequence[Mapping[str, Any]] | None = None,
      options: Mapping[str, Any] | None = None,
  ) -> list[int]:
    """Token ids of a chat, up to where the assistant's answer begins.

    Args:
      messages: {'role', 'content', ...} mappings, oldest first; contents are
        text, the arguments of tool calls mappings.
      tools: Descriptions that the template writes into the prompt.
      options: Further variables of the template, e.g. enable_thinking.

    Raises:
      TokenizerError: If there is no chat template, it rejects the messages, or
        a text cannot be kept from becoming a special token.
    """
    if not self._backend.chat_template:
      raise tokenizer_lib.TokenizerError(
          'the model has no chat template; use /v1/completions or /generate'
      )
    options = dict(options or {})
    taken = _template_arguments() & set(options)
    if taken:
      raise tokenizer_lib.TokenizerError(
          f'chat_template_kwargs may not set {sorted(taken)}'
      )
    inputs = {'messages': list(messages), 'tools': tools, 'options': options}
    texts = list(_strings(inputs))
    everything = '\n'.join(texts)
    private = map(chr, range(0xF0000, 0xFFFFE))
    unused = (c for c in private if c not in everything)
    stand_ins = {
        next(unused): special
        for special in sorted(self._special, key=len, reverse=True)
        if special in everything
    }
    special_ids = set(self._special.values())

    def hide(text: str) -> str:
      for stand_in, special in stand_ins.items():
        text = text.replace(special, stand_in)
      return text

    # A normaliser or a lenient added token may see more than exact spellings.
    for text in set(texts):
      for piece in _split(hide(text), stand_ins):
        if piece not in stand_ins and special_ids & set(self._ids(piece)):
          raise tokenizer_lib.TokenizerError(
              'a message or tool contains text that the tokenizer reads as a'
              f' special token: {piece[:200]!r}; remove it'
          )
    inputs = _map_strings(inputs, hide)
    try:
      rendered = self._backend.apply_chat_template(
          inputs['messages'],
          tools=inputs['tools'],
          tokenize=False,
          add_generation_prompt=True,
          **inputs['options'],
      )
    # A template is a program: what it does not expect, it fails on in any way.
    except (
        jinja2.TemplateError,
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as e:
      raise tokenizer_lib.TokenizerError(
          'the chat template rejects messages with the roles'
          f' {[m.get("role") for m in messages]}: {e}'
      ) from e
    ids = []
    for piece in _split(rendered, stand_ins):
      if piece in stand_ins:
        ids += self.encode(stand_ins[piece])
      else:
        ids += self._ids(piece)
    return ids

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


@functools.cache
def _template_arguments() -> frozenset[str]:
  """What `apply_chat_template` itself is called with."""
  import transformers  # Here, because it takes a second to import.

  function = transformers.PreTrainedTokenizerFast.apply_chat_template
  return frozenset(inspect.signature(function).parameters) | {'messages'}


def _strings(value: Any) -> Iterator[str]:
  """All strings in a JSON value, names of fields included."""
  if isinstance(value, str):
    yield value
  elif isinstance(value, Mapping):
    for name, item in value.items():
      yield name
      yield from _strings(item)
  elif isinstance(value, (list, tuple)):
    for item in value:
      yield from _strings(item)


def _map_strings(value: Any, function: Callable[[str], str]) -> Any:
  """A JSON value with all its strings replaced."""
  if isinstance(value, str):
    return function(value)
  if isinstance(value, Mapping):
    return {
        function(name): _map_strings(item, function)
        for name, item in value.items()
    }
  if isinstance(value, (list, tuple)):
    return [_map_strings(item, function) for item in value]
  return value


def _split(text: str, separators: Mapping[str, str]) -> list[str]:
  """Splits text around single-character separators, which are kept."""
  if not separators:
    return [text]
  pieces = re.split(f'([{"".join(separators)}])', text)
  return [piece for piece in pieces if piece]
