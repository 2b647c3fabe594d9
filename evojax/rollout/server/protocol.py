"""Requests as they come over the wire, and the checks that they pass.

A field that is unknown, or would change the answer and is not supported, is
refused by name: no wish of a client is ignored silently. Null, false and empty
values of unsupported fields ask for nothing and are accepted.
"""

from collections.abc import Mapping, Sequence, Sized
import re
import secrets
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import pydantic
import pydantic_core

from evojax import records
from evojax.rollout.server import errors
from evojax.rollout.server import settings as settings_lib

# Values of a body; lists and objects among them, which take longer; and entries
# of one, but for prompts: a model finds all that are wrong before it tells one.
MOST_VALUES = 1 << 18
_MOST_PARTS = 1 << 14
_MOST_ENTRIES = 4096
_PROMPTS = frozenset(('text', 'input_ids', 'prompt'))
_SHOWN_PROBLEMS = 3
_SHOWN_VALUE = 60  # Characters of a wrong value.
_MAX_BIAS = 1e9
# pydantic puts members of unions into the path of a problem, like fields.
_UNION_MEMBER = re.compile(r'\[|^(str|int|bool|dict|constrained-.*)$')
# SGLang's sampler is greedy below this temperature too.
_GREEDY = 1e-6
# Fields that the engine's parameters call the same and take unchanged.
_AS_THEY_ARE = {'top_p', 'min_p', 'ignore_eos'} | {
    f'{kind}_penalty' for kind in ('frequency', 'presence', 'repetition')
}

# Fields in which null means something: as many tokens as fit.
_NULLABLE = frozenset(('max_new_tokens',))
# JSON can hold larger integers, which the engine cannot.
_Int = Annotated[int, pydantic.Field(ge=-(2**63), lt=2**64)]
_Tokens = Annotated[list[_Int], pydantic.Field(fail_fast=True)]
_Batch = Annotated[list[_Tokens], pydantic.Field(fail_fast=True)]
_Texts = Annotated[list[str], pydantic.Field(fail_fast=True)]
_Name = Annotated[str, pydantic.Field(min_length=1, max_length=256)]


# Reasons for which fields are refused.
_GRAMMAR = 'constrained decoding is not supported; check the text and resample'
_TEXT_ONLY = 'the model reads text only; leave it out'
_NO_TORCH = 'it needs torch; leave it out'
_ADAPTERS = 'adapters are not served; load merged weights'
_PROCESSOR = 'custom logit processors are not supported; use `logit_bias`'
# Values that mean the same as leaving the field out.
_DEFAULTS = {
    'response_format': {'type': 'text'},
    'modalities': ['text'],
    'function_call': 'none',
}


class _Model(pydantic.BaseModel):
  """A body, or a part of one."""

  model_config = pydantic.ConfigDict(
      extra='forbid', strict=True, allow_inf_nan=False, protected_namespaces=()
  )
  # Field that is refused -> why, and what to do instead.
  unsupported: ClassVar[Mapping[str, str]] = {}
  # Fields about logging, routing, billing or another framework's allocator.
  # They change no answer, and nothing here corresponds to them.
  ignored: ClassVar[tuple[str, ...]] = ()

  @pydantic.model_validator(mode='before')
  @classmethod
  def _leave_out_nulls(cls, fields: Any) -> Any:
    """Drop nulls, which clients send for fields that they do not set."""
    if not isinstance(fields, dict):
      return fields
    return {k: v for k, v in fields.items() if v is not None or k in _NULLABLE}


M = TypeVar('M', bound=_Model)


class Sampler(_Model):
  """Fields that SGLang's and OpenAI's requests call the same.

  The four names are those of the fields that they call otherwise.
  """

  most_field: ClassVar[str] = 'max_tokens'  # Tokens to sample at most.
  fewest_field: ClassVar[str] = 'min_tokens'  # Tokens before an end counts.
  seed_field: ClassVar[str] = 'seed'
  top_field: ClassVar[str] = 'top_logprobs'  # Most probable tokens to report.
  unsupported = {
      **dict.fromkeys(('regex', 'json_schema', 'ebnf'), _GRAMMAR),
      'structural_tag': _GRAMMAR,
      'stop_regex': 'not supported; use `stop`, a list of strings',
      'custom_params': 'custom logit processors are not supported',
      'stream_interval': 'a stream shows every token as it comes; leave it out',
  }
  n: int = pydantic.Field(1, ge=1, le=2**20)
  temperature: float = pydantic.Field(1.0, ge=0, le=100)
  top_p: float = pydantic.Field(1.0, gt=0, le=1)
  top_k: int = pydantic.Field(-1, ge=-1, le=2**31)
  min_p: float = pydantic.Field(0.0, ge=0, lt=1)
  frequency_penalty: float = pydantic.Field(0.0, ge=-2, le=2)
  presence_penalty: float = pydantic.Field(0.0, ge=-2, le=2)
  repetition_penalty: float = pydantic.Field(1.0, gt=0, le=2)
  stop: str | list[str] = []
  stop_token_ids: list[_Int] = []
  ignore_eos: bool = False
  skip_special_tokens: bool = True
  no_stop_trim: bool = False
  logit_bias: dict[str, float] = {}


class Sampling(Sampler):
  """`sampling_params` of /generate."""

  most_field = 'max_new_tokens'
  fewest_field = 'min_new_tokens'
  seed_field = 'sampling_seed'
  top_field = 'top_logprobs_num'
  max_new_tokens: int | None = pydantic.Field(128, ge=1)
  min_new_tokens: int = pydantic.Field(0, ge=0)
  sampling_seed: _Int | None = None
  # Fast tokenizers cannot switch this off, so only the default is accepted.
  spaces_between_special_tokens: Literal[True] = True


class Generate(_Model):
  """Body of /generate."""

  unsupported = {
      'input_embeds': 'not supported; send `input_ids`',
      **dict.fromkeys(('image_data', 'video_data'), _TEXT_ONLY),
      **dict.fromkeys(('audio_data', 'modalities'), _TEXT_ONLY),
      **dict.fromkeys(('lora_path', 'lora_id'), _ADAPTERS),
      'custom_logit_processor': _PROCESSOR,
      'return_hidden_states': _NO_TORCH,
      'return_routed_experts': 'the model has no experts; leave it out',
      'session_params': 'sessions are not supported; send the whole prompt',
      'token_ids_logprob': 'not supported; use `top_logprobs_num`',
      'return_sampling_mask': 'not supported; leave it out',
      'return_entropy': 'not supported; use `top_logprobs_num`',
      'bootstrap_host': 'prefill and decode are not separate here',
      'background': 'not supported; keep the connection',
  }
  ignored = ('log_metrics', 'no_logs', 'custom_labels', 'conversation_id') + (
      ('session_id', 'routing_key', 'external_trace_header', 'received_time')
  )
  text: _Texts | str | None = None
  input_ids: _Batch | _Tokens | None = None
  sampling_params: list[dict[str, Any]] | dict[str, Any] = {}
  return_logprob: list[bool] | bool = False
  logprob_start_len: list[_Int] | _Int = -1
  top_logprobs_num: list[_Int] | _Int = 0
  return_text_in_logprobs: bool = False
  stream: bool = False
  rid: list[_Name] | _Name | None = None


class Pause(_Model):
  mode: Literal['abort', 'retract', 'in_place'] = 'abort'


class Empty(_Model):
  """A body without fields."""

  ignored = ('torch_empty_cache', 'selector', 'sync_base')


class Abort(_Model):
  rid: str = ''
  abort_all: bool = False
  abort_message: str = pydantic.Field('', max_length=1000)


class Update(_Model):
  """Body of /update_weights_from_disk."""

  unsupported = {
      'is_async': 'not supported; the answer comes when the weights are in',
      'keep_pause': 'not supported; call /pause_generation first',
      'manifest': 'not supported; send a directory of safetensors',
      'token_step': 'not supported; use `weight_version`',
  }
  ignored = ('torch_empty_cache', 'recapture_cuda_graph')
  model_path: str = pydantic.Field(min_length=1, max_length=4096)
  load_format: Literal['auto', 'safetensors'] = 'auto'
  abort_all_requests: bool = False
  weight_version: _Name | _Int | None = None
  flush_cache: bool = True


class Tags(_Model):
  tags: list[str] | None = None


class StreamOptions(_Model):
  include_usage: bool = False


class OpenAI(Sampler):
  """Fields that /v1/completions and /v1/chat/completions share."""

  unsupported = Sampler.unsupported | {
      'response_format': _GRAMMAR,
      'lora_path': _ADAPTERS,
      'return_hidden_states': _NO_TORCH,
      'custom_logit_processor': _PROCESSOR,
  }
  model: str = ''
  seed: _Int | None = None
  stream: bool = False
  stream_options: StreamOptions = StreamOptions()
  min_tokens: int = pydantic.Field(0, ge=0)
  rid: _Name | None = None


class Completion(OpenAI):
  """Body of /v1/completions."""

  top_field = 'logprobs'
  unsupported = OpenAI.unsupported | {
      'suffix': 'the model does not fill in; leave it out'
  }
  ignored = ('user',)
  prompt: str | _Batch | _Tokens | _Texts
  max_tokens: int = pydantic.Field(16, ge=1)
  logprobs: int | None = pydantic.Field(None, ge=0)
  echo: bool = False
  best_of: int | None = None


class _Text(_Model):
  type: Literal['text']
  text: str


class _Function(_Model):
  name: str = pydantic.Field(min_length=1, max_length=256)
  arguments: str | dict[str, Any] = '{}'


class _ToolCall(_Model):
  id: str = ''
  type: Literal['function'] = 'function'
  index: int | None = None
  function: _Function


class Message(_Model):
  """One turn of a conversation."""

  role: Literal['system', 'developer', 'user', 'assistant', 'tool']
  content: str | list[_Text] = ''
  name: str | None = None
  tool_call_id: str | None = None
  reasoning_content: str | None = None
  tool_calls: list[_ToolCall] = []


class _Tool(_Model):
  type: Literal['function'] = 'function'
  function: dict[str, Any]


class Chat(OpenAI):
  """Body of /v1/chat/completions."""

  unsupported = OpenAI.unsupported | {
      'functions': 'deprecated and not supported; use `tools`',
      'function_call': 'deprecated and not supported; use `tool_choice`',
      'modalities': _TEXT_ONLY,
      'audio': _TEXT_ONLY,
      'web_search_options': 'not supported; leave it out',
      'continue_final_message': 'not supported; use /v1/completions',
      'prediction': 'not supported; leave it out',
  }
  ignored = ('user', 'metadata', 'safety_identifier', 'prompt_cache_key') + (
      ('service_tier', 'verbosity')
  )
  messages: list[Message] = pydantic.Field(min_length=1)
  max_tokens: int | None = pydantic.Field(None, ge=1)
  max_completion_tokens: int | None = pydantic.Field(None, ge=1)
  logprobs: bool = False
  top_logprobs: int = pydantic.Field(0, ge=0)
  tools: list[_Tool] = []
  tool_choice: Literal['none', 'auto'] = 'auto'
  parallel_tool_calls: Literal[True] = True
  chat_template_kwargs: dict[str, Any] = {}

  @property
  def offered(self) -> list[_Tool]:
    """The tools that the model may call; the template shows no other."""
    return [] if self.tool_choice == 'none' else self.tools

  @property
  def most_field(self) -> str:
    is_newer = self.max_completion_tokens is not None
    return 'max_completion_tokens' if is_newer else 'max_tokens'


def parse(model: type[M], body: bytes, most: int = MOST_VALUES) -> M:
  """Parse and validate a request; an empty body is an empty object.

  Values are counted first, because parsing them holds up all threads.

  Args:
    model: What the body should be.
    body: JSON.
    most: Values that it may hold.

  Raises:
    ApiError: 400 that names what is wrong, 413 if it holds too much.
  """

  def check_count(what: str, marks: bytes, limit: int) -> None:
    # Those in strings count too; only long texts of program code have as many.
    if len(body) - len(body.translate(None, marks)) > limit:
      message = f'the body holds over {limit} {what}; send several requests'
      raise errors.ApiError(413, message)

  check_count('values', b',[{', most)
  check_count('lists and objects', b']}', _MOST_PARTS)
  try:
    fields = pydantic_core.from_json(body, allow_inf_nan=False) if body else {}
  except ValueError as e:  # Also for bytes that are not UTF-8.
    raise errors.ApiError(400, f'the body is not JSON: {e}') from e
  if not isinstance(fields, dict):
    raise errors.ApiError(400, 'the body is not a JSON object')
  if len(fields) > _MOST_ENTRIES:
    raise errors.ApiError(400, f'the body has {len(fields)} fields')
  for name in fields.keys() - _PROMPTS:
    _check_entries(name[:_SHOWN_VALUE], fields[name])
  return check(model, fields)


def _check_entries(name: str, value: Any) -> None:
  """Refuse a list or an object with more entries than any field takes."""
  if isinstance(value, list | dict):
    if len(value) > _MOST_ENTRIES:
      problem = f'has {len(value)} entries, more than {_MOST_ENTRIES}'
      raise errors.bad_request(name, problem)
    for part in value.values() if isinstance(value, dict) else value:
      _check_entries(name, part)


def check(model: type[M], fields: Mapping[str, Any], prefix: str = '') -> M:
  """Validate the fields of a request.

  Args:
    model: The model that they should fit.
    fields: Parsed JSON.
    prefix: Stands before field names in messages, e.g. 'sampling_params.'.

  Raises:
    ApiError: 400 that names what is wrong.
  """
  for name, why in model.unsupported.items():
    if fields.get(name) and fields[name] != _DEFAULTS.get(name):
      raise errors.bad_request(prefix + name, why)
  left_out = {*model.unsupported, *model.ignored}
  try:
    kept = {k: v for k, v in fields.items() if k not in left_out}
    return model.model_validate(kept)
  except pydantic.ValidationError as e:
    problems = e.errors(include_url=False, include_context=False)
    raise errors.ApiError(
        400,
        '; '.join(_explain(p, prefix) for p in problems[:_SHOWN_PROBLEMS]),
        param=prefix + _path(problems[0]['loc']),
    ) from e


def _explain(problem: Mapping[str, Any], prefix: str) -> str:
  """Return e.g. 'sampling_params.top_p: Input should be less than ...'."""
  path = prefix + _path(problem['loc'])
  if problem['type'] == 'extra_forbidden':
    *holder, name = problem['loc']
    held_by = f'{prefix}{_path(holder)}'
    dot = '.' if held_by and not held_by.endswith('.') else ''
    return f'{held_by}{dot}{str(name)[:_SHOWN_VALUE]}: unknown field'
  if problem['type'] == 'missing':
    return f'{path}: missing'
  value = repr(problem['input'])
  if len(value) > _SHOWN_VALUE:
    value = f'{value[:_SHOWN_VALUE]}...'
  return f'{path}: {problem["msg"]}, got {value}'


def _path(location: Sequence[str | int]) -> str:
  """Return the dotted name of a field, without members of unions."""
  path = ''
  for part in location:
    if isinstance(part, int):
      path += f'[{part}]'
    elif not _UNION_MEMBER.search(part):
      path += f'.{part[:_SHOWN_VALUE]}' if path else part[:_SHOWN_VALUE]
  return path


def sampling_params(
    fields: Sampler, settings: settings_lib.Settings, *, prompt_tokens: int
) -> records.SamplingParams:
  """Return the engine's parameters for one prompt.

  Args:
    fields: Fields that were validated one by one.
    settings: The limits.
    prompt_tokens: Length of the prompt.

  Raises:
    ApiError: 400 if the prompt is too long, or fields do not fit together.
  """
  room = min(settings.context_tokens - prompt_tokens, settings.sampled_tokens)
  if room < 1:
    raise errors.ApiError(
        400,
        f'the prompt has {prompt_tokens} tokens; with one to sample, at most'
        f' {settings.context_tokens - 1} fit',
    )
  most, fewest = fields.most_field, fields.fewest_field
  max_tokens = getattr(fields, most)
  if max_tokens is None:
    max_tokens = room  # As many as fit.
  elif max_tokens > room:
    raise errors.bad_request(
        most,
        f'{max_tokens} tokens after a prompt of {prompt_tokens} do not fit; at'
        f' most {room} do',
    )
  min_tokens = getattr(fields, fewest)
  if min_tokens > max_tokens:
    problem = f'{min_tokens} exceeds {most}={max_tokens}'
    raise errors.bad_request(fewest, problem)
  if fields.top_k == 0:
    raise errors.bad_request('top_k', '0: must be -1 (off) or at least 1')
  stop = (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop)
  _check_count('stop', 'strings', stop, settings.max_stops)
  if not all(0 < len(text) <= settings.max_stop_chars for text in stop):
    problem = f'strings have 1 to {settings.max_stop_chars} characters'
    raise errors.bad_request('stop', problem)
  ends = tuple(dict.fromkeys(fields.stop_token_ids))
  _check_count('stop_token_ids', 'tokens', ends, settings.max_stop_tokens)
  check_tokens('stop_token_ids', ends, settings.vocab_size)
  biases = fields.logit_bias
  _check_count('logit_bias', 'tokens', biases, settings.max_logit_biases)
  for name, bias in biases.items():
    if not re.fullmatch('[0-9]{1,10}', name):
      problem = f'{name[:_SHOWN_VALUE]!r} is no token id'
      raise errors.bad_request('logit_bias', problem)
    if abs(bias) > _MAX_BIAS:
      raise errors.bad_request('logit_bias', f'{bias} exceeds {_MAX_BIAS:g}')
  biases = {int(name): bias for name, bias in biases.items()}
  check_tokens('logit_bias', tuple(biases), settings.vocab_size)
  return records.SamplingParams(
      max_tokens=max_tokens,
      temperature=0.0 if fields.temperature < _GREEDY else fields.temperature,
      top_k=-1 if fields.top_k >= settings.vocab_size else fields.top_k,
      stop=stop,
      min_tokens=min_tokens,
      stop_token_ids=ends,
      logit_bias=tuple(biases.items()),
      **fields.model_dump(include=_AS_THEY_ARE),
  )


def _check_count(field: str, what: str, found: Sized, most: int) -> None:
  if len(found) > most:
    raise errors.bad_request(field, f'{len(found)} {what}, more than {most}')


def check_tokens(field: str, ids: Sequence[int], vocab_size: int) -> None:
  """Check that ids lie in the vocabulary.

  Raises:
    ApiError: 400 that names the field and the id.
  """
  if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
    wrong = next(i for i in ids if not 0 <= i < vocab_size)
    problem = f'{wrong} is no token id; they lie in [0, {vocab_size})'
    raise errors.bad_request(field, problem)


def seeds(fields: Sampler) -> list[int]:
  """Return uint32 seeds for the n samples of one prompt.

  Sample i of a prompt uses seed + i, modulo 2**32; without a seed, each sample
  gets a fresh random one.
  """
  seed = getattr(fields, fields.seed_field)
  if seed is None:
    return [secrets.randbits(32) for _ in range(fields.n)]
  return [(seed + i) % 2**32 for i in range(fields.n)]
