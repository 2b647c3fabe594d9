"""Tokenizer of a model directory, with its chat template."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import datetime
import functools
import hashlib
import inspect
import json
import os
import pathlib
import re
import threading
from typing import Any

from evojax import config as config_lib

_DATE = config_lib.declaration('model.chat_template_date').default
# Characters that hardly any text contains; Unicode gives them no meaning.
_PRIVATE = range(0xF0000, 0xFFFFE)
_CHECKED = 1024  # Texts for which it is cached whether they become special.


class TokenizerError(ValueError):
  """A tokenizer is missing or broken, or cannot do what was requested."""


def template_options(model: Mapping[str, Any]) -> dict[str, Any]:
  """Return the fields of config.model that set how chats become prompts."""
  fields = 'chat_template_kwargs', 'chat_template_date'
  return {name: model[name] for name in fields}


class Tokenizer:
  """The fast tokenizer in a `tokenizer.json`, with the chat template.

  Text never becomes control tokens: `encode` and `render` turn a special token
  that is spelled out in their input (`<|im_end|>`) into ordinary text tokens.
  The text of a problem or a user therefore cannot end a turn, open one, or
  forge the end of a sequence. Only the chat template writes special tokens. Any
  thread may encode and decode.

  All prompts of a run are rendered here, with the same template options and the
  same date: in training, evaluation, warm start and server.

  Attributes:
    eos_ids: Token ids that end a completion, from generation_config.json (or
      config.json, if that has none) and the tokenizer; never empty.
    pad_id: Id that fills unused slots; the first of eos_ids if the tokenizer
      names no padding token.
    vocab_size: Number of ids that the tokenizer knows, added tokens included. A
      model may have more rows; those ids decode to ''.
  """

  def __init__(
      self,
      path: str | os.PathLike[str],
      *,
      chat_template_kwargs: Mapping[str, Any] | None = None,
      chat_template_date: str = _DATE,
  ):
    """Read tokenizer.json and related files, without network or torch.

    Args:
      path: A Hugging Face model directory.
      chat_template_kwargs: Variables of the template for every chat.
      chat_template_date: Date that the template sees as today, YYYY-MM-DD.

    Raises:
      TokenizerError: If tokenizer.json is missing or unreadable, no file names
        an end-of-sequence token, or the template does not read one of the
        variables.
    """
    self.path = pathlib.Path(path)
    if not (self.path / 'tokenizer.json').is_file():
      raise TokenizerError(
          f'no tokenizer: {self.path / "tokenizer.json"} does not exist. Copy'
          ' the tokenizer files of the model there, or write them with'
          ' `transformers.AutoTokenizer.from_pretrained(NAME)'
          '.save_pretrained(DIRECTORY)`.'
      )
    # transformers would suggest installing PyTorch, which evojax does not use.
    os.environ.setdefault('TRANSFORMERS_NO_ADVISORY_WARNINGS', '1')
    import transformers  # Imported here because it takes a second.

    # AutoTokenizer would rebuild the pipeline that its class hard-codes, using
    # only the vocabulary; this class runs the pipeline in the file.
    try:
      self._backend = transformers.PreTrainedTokenizerFast.from_pretrained(
          self.path, local_files_only=True
      )
    except Exception as e:  # The parser in Rust raises bare Exception.
      raise TokenizerError(
          f'the tokenizer in {self.path} cannot be read: {e}. Copy tokenizer'
          '.json and tokenizer_config.json of the model there again.'
      ) from e
    # Encoding sets a flag inside the tokenizer, so threads must take turns.
    self._lock = threading.Lock()
    self.vocab_size = len(self._backend)
    self.eos_ids = self._find_eos_ids()
    pad_id = self._backend.pad_token_id
    self.pad_id = self.eos_ids[0] if pad_id is None else pad_id
    added = self._backend.added_tokens_decoder
    self._special = {t.content: i for i, t in added.items() if t.special}
    names = self._backend.all_special_tokens
    self._special |= zip(names, self._backend.all_special_ids, strict=True)
    # The descriptions of tools are in every reply of an episode.
    self._becomes_special = functools.lru_cache(_CHECKED)(self._find_special)
    # The same form as in the manifest: lists instead of tuples.
    self._options = json.loads(json.dumps(dict(chat_template_kwargs or {})))
    self._date = datetime.datetime.fromisoformat(chat_template_date)
    if self._options:
      self._check_options()

  @property
  def template(self) -> dict[str, Any]:
    """The template's hash, options and date, for a run's manifest."""
    text = json.dumps(self._backend.chat_template, sort_keys=True)
    return {
        'sha256': hashlib.sha256(text.encode()).hexdigest(),
        'kwargs': self._options,
        'date': f'{self._date:%Y-%m-%d}',
    }

  def encode(self, text: str) -> list[int]:
    """Return the token ids of a text; special tokens in it stay text."""
    with self._lock:
      return self._backend.encode(
          text, add_special_tokens=False, split_special_tokens=True
      )

  def decode(
      self, ids: Sequence[int], *, skip_special_tokens: bool = True
  ) -> str:
    """Return the text of token ids."""
    with self._lock:
      return self._backend.decode(
          [int(i) for i in ids],
          skip_special_tokens=skip_special_tokens,
          clean_up_tokenization_spaces=False,
      )

  def decode_all(self, ids: Sequence[int]) -> str:
    """Return the text of token ids, special tokens included."""
    return self.decode(ids, skip_special_tokens=False)

  def render(
      self,
      messages: Sequence[Mapping[str, Any]],
      *,
      tools: Sequence[Mapping[str, Any]] | None = None,
      options: Mapping[str, Any] | None = None,
  ) -> list[int]:
    """Return the token ids of a chat, up to the assistant's answer.

    They equal those of transformers'
    `apply_chat_template(add_generation_prompt=True)` if no text in the chat
    spells out a special token.

    Args:
      messages: {'role', 'content', ...} mappings, oldest first.
      tools: Descriptions that the template writes into the prompt.
      options: Further variables of the template, e.g. enable_thinking; they
        override the tokenizer's own.

    Returns:
      Token ids: the chat template with its generation prompt.

    Raises:
      TokenizerError: If the directory has no chat template, the template
        rejects the messages, or a text cannot be kept from becoming a special
        token.
    """
    rendered, stand_ins = self._render(messages, tools, options)
    return self._ids_of(rendered, stand_ins)

  def render_reply(
      self,
      before: Sequence[Mapping[str, Any]],
      reply: Sequence[Mapping[str, Any]],
      *,
      ended: bool,
      tools: Sequence[Mapping[str, Any]] | None = None,
  ) -> list[int]:
    """Return the token ids between an answer of the assistant and the next one.

    Sampled text is never rendered and encoded again: its tokens are kept, and
    the returned tokens are appended to them.

    Args:
      before: Messages at the beginning of the chat, oldest first.
      reply: Messages to the assistant, e.g. {'role': 'tool', 'content': ...}.
      ended: Whether the answer ended with an end-of-sequence token; if not, the
        result begins with the template's.
      tools: As in `render`.

    Returns:
      Token ids: the end of the answer if it lacks one, the reply and the
      generation prompt.

    Raises:
      TokenizerError: As in `render`; or if the template leaves out the answer.
    """
    texts = '\n'.join(_strings([list(before), list(reply), tools]))
    answer = next(_unused(texts))
    messages = [*before, {'role': 'assistant', 'content': answer}, *reply]
    rendered, stand_ins = self._render(messages, tools, None, taken=answer)
    _, found, tail = rendered.rpartition(answer)
    if not found:
      raise TokenizerError(
          f'the chat template in {self.path} leaves out an answer of the'
          ' assistant that is followed by'
          f' {[m.get("role") for m in reply]}: episodes of several turns need'
          ' one that keeps it'
      )
    ids = self._ids_of(tail, stand_ins)
    return ids[1:] if ended and ids[:1] and ids[0] in self.eos_ids else ids

  def _ids_of(self, rendered: str, stand_ins: Mapping[str, str]) -> list[int]:
    """Return the token ids of the text that a template wrote."""
    ids = []
    for piece in _split(rendered, stand_ins):
      special = stand_ins.get(piece)
      ids += self.encode(special) if special else self._ids(piece)
    return ids

  def _render(
      self,
      messages: Sequence[Mapping[str, Any]],
      tools: Sequence[Mapping[str, Any]] | None,
      options: Mapping[str, Any] | None,
      taken: str = '',
  ) -> tuple[str, dict[str, str]]:
    """Return the text that the template writes, and its stand-ins.

    Args:
      messages: As in `render`.
      tools: As in `render`.
      options: As in `render`.
      taken: Characters that must not be used as stand-ins.
    """
    if not self._backend.chat_template:
      raise TokenizerError(
          f'the tokenizer in {self.path} has no chat template. Add a'
          ' chat_template.jinja there, or use the instruct or chat release of'
          ' the model.'
      )
    options = self._options | dict(options or {})
    _refuse_taken(options)
    # Templates test whether there are tools; some only recognise None.
    inputs = [list(messages), list(tools or ()) or None, options]
    stand_ins = self._stand_ins('\n'.join([taken, *_strings(inputs)]))

    def hide(text: str) -> str:
      for stand_in, special in stand_ins.items():
        text = text.replace(special, stand_in)
      return text

    shown, tools, options = _map_strings(inputs, hide)
    for message, original in zip(shown, messages, strict=True):
      owner = f'a {original.get("role")} message'
      self._refuse_special(owner, message, stand_ins)
    self._refuse_special('tools', tools, stand_ins)
    self._refuse_special('options', options, stand_ins)
    try:
      template = self._dated(self._backend.get_chat_template(None, tools))
      rendered = self._backend.apply_chat_template(
          shown,
          tools=tools,
          chat_template=template,
          tokenize=False,
          add_generation_prompt=True,
          **options,
      )
    # A template is a program, which can fail in many ways on unexpected input.
    except Exception as e:  # pylint: disable=broad-except
      raise TokenizerError(
          f'the chat template in {self.path} rejects messages with the roles'
          f' {[m.get("role") for m in messages]}: {e}. Change the messages or'
          ' the template.'
      ) from e
    return rendered, stand_ins

  def _dated(self, template: str) -> str:
    """Return a template that sees the tokenizer's date as the current time.

    transformers compiles each template text once and passes it the time of day,
    which is replaced here. The comment makes the text differ by date. At the
    end of the template it would preserve a final line break, and '+' preserves
    one at the start.
    """
    template = f'{{# {self._date:%Y-%m-%d} +#}}{template}'
    clock = {'strftime_now': self._date.strftime}
    _compiled(template).environment.globals.update(clock)
    return template

  def _check_options(self) -> None:
    """Refuse options that the template never reads; most are misspelt.

    Raises:
      TokenizerError: If there are any; names the options that it does read.
    """
    import jinja2  # Imported here, since most chats have no options.
    from jinja2 import meta

    _refuse_taken(self._options)
    found = self._backend.chat_template or {}
    named = {'': found} if isinstance(found, str) else found
    read = set()
    try:
      for text in named.values():
        environment = _compiled(text).environment
        read |= meta.find_undeclared_variables(environment.parse(text))
        read -= environment.globals.keys()
    except jinja2.TemplateError as e:
      raise TokenizerError(
          f'the chat template in {self.path} cannot be read: {e}. Restore it.'
      ) from e
    if unread := sorted(self._options.keys() - read):
      own = read - _template_arguments()
      own = sorted(name for name in own if not name.endswith('_token'))
      raise TokenizerError(
          f'config.model.chat_template_kwargs names {", ".join(unread)}, which'
          f' the chat template in {self.path} never reads; it reads'
          f' {", ".join(own) or "no options"}'
      )

  def _stand_ins(self, text: str) -> dict[str, str]:
    """Map unused private-use characters to the special tokens in a text.

    The characters stand in for the tokens while the template is rendered and
    are encoded as text afterwards, so that the text around them is tokenised in
    one piece.
    """
    unused = _unused(text)
    longest_first = sorted(self._special, key=len, reverse=True)
    return {next(unused): name for name in longest_first if name in text}

  def _refuse_special(
      self, owner: str, value: Any, stand_ins: Mapping[str, str]
  ) -> None:
    """Refuse text that becomes a special token by another spelling.

    A normaliser or a lenient added token may match more than exact spellings,
    which stand-ins have already replaced.

    Raises:
      TokenizerError: If a piece of text still becomes a special token.
    """
    for text in _strings(value):
      for piece in _split(text, stand_ins):
        if piece not in stand_ins and self._becomes_special(piece):
          raise TokenizerError(
              f'{owner} contains text that the tokenizer in {self.path} reads'
              f' as a special token: {piece[:200]!r}. Remove it.'
          )

  def _find_special(self, text: str) -> bool:
    """Return True if a part of a text is encoded as a special token."""
    return not set(self._special.values()).isdisjoint(self._ids(text))

  def _ids(self, text: str) -> list[int]:
    """Return the token ids of trusted text, which may have special tokens."""
    with self._lock:
      return self._backend.encode(
          text, add_special_tokens=False, split_special_tokens=False
      )

  def _find_eos_ids(self) -> tuple[int, ...]:
    found = []
    for name in ('generation_config.json', 'config.json'):
      file = self.path / name
      if not file.is_file():
        continue
      try:
        fields = json.loads(file.read_text())
      except ValueError as e:
        raise TokenizerError(f'{file} is not JSON: {e}. Restore it.') from e
      if not isinstance(fields, dict):
        raise TokenizerError(f'{file} is not a JSON object. Restore it.')
      value = fields.get('eos_token_id')
      if value is not None:
        found += value if isinstance(value, list) else [value]
        if not all(type(i) is int for i in found):
          raise TokenizerError(
              f'eos_token_id in {file} is {value!r:.100}: give a token id or a'
              ' list of them.'
          )
        break
    if self._backend.eos_token_id is not None:
      found.append(self._backend.eos_token_id)
    if not found:
      raise TokenizerError(
          f'the tokenizer in {self.path} names no end-of-sequence token, so a'
          ' completion could never end. Set eos_token in tokenizer_config.json'
          ' or eos_token_id in generation_config.json.'
      )
    return tuple(dict.fromkeys(found))


def _compiled(template: str) -> Any:
  """Return the compiled form of a template, which transformers caches."""
  from transformers.utils import chat_template_utils

  # pylint: disable-next=protected-access
  return chat_template_utils._compile_jinja_template(template)


def _refuse_taken(options: Mapping[str, Any]) -> None:
  if taken := options and _template_arguments() & set(options):
    raise TokenizerError(
        f'chat_template_kwargs may not set {sorted(taken)}: they are'
        ' arguments of the renderer, not variables of the template'
    )


@functools.cache
def _template_arguments() -> frozenset[str]:
  """Return the names of the arguments of `apply_chat_template` itself."""
  import transformers  # Imported here because it takes a second.

  function = transformers.PreTrainedTokenizerFast.apply_chat_template
  return frozenset(inspect.signature(function).parameters) | {'messages'}


def _unused(text: str) -> Iterator[str]:
  """Yield private-use characters that do not occur in a text."""
  return (c for c in map(chr, _PRIVATE) if c not in text)


def _strings(value: Any) -> list[str]:
  """Return all strings in a JSON value, including field names."""
  found = []
  _map_strings(value, found.append)
  return found


def _map_strings(value: Any, function: Callable[[str], Any]) -> Any:
  """Return a JSON value with `function` applied to all its strings."""
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
  """Return the pieces of a text, including the one-character separators."""
  pattern = f'([{"".join(separators)}])' if separators else '(?!)'
  return [piece for piece in re.split(pattern, text) if piece]
