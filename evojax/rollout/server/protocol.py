"""The bodies of requests and their validation.

See `fields` for the treatment of undeclared fields.
"""

from collections.abc import Mapping, Sequence, Sized
import re
import secrets
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import pydantic
import pydantic_core

from evojax import records
from evojax.rollout.server import errors
from evojax.rollout.server import fields as fields_lib
from evojax.rollout.server import settings as settings_lib

# Limits of a body: its number of values, its number of lists and objects (which
# take longer to parse), and the entries of one list or object, except prompts,
# because pydantic collects all errors before it reports one.
MOST_VALUES = 1 << 18
_MOST_PARTS = 1 << 14
_MOST_ENTRIES = 4096
_PROMPTS = frozenset(('text', 'input_ids', 'prompt'))
_SHOWN_PROBLEMS = 3
_SHOWN_VALUE = 60  # Characters of a wrong value in a message.
_MAX_BIAS = 1e9
# pydantic adds the members of unions to the path of a problem, like fields.
_UNION_MEMBER = re.compile(r'\[|^(str|int|bool|dict|constrained-.*)$')
# Below this temperature, sampling is greedy, as in SGLang.
_GREEDY = 1e-6
# Fields with the same name and meaning in the engine's parameters.
_AS_THEY_ARE = {'top_p', 'min_p', 'ignore_eos'} | {
    f'{kind}_penalty' for kind in ('frequency', 'presence', 'repetition')
}

# JSON can hold larger integers, but the engine cannot.
_Int = Annotated[int, pydantic.Field(ge=-(2**63), lt=2**64)]
_Tokens = Annotated[list[_Int], pydantic.Field(fail_fast=True)]
_Batch = Annotated[list[_Tokens], pydantic.Field(fail_fast=True)]
_Texts = Annotated[list[str], pydantic.Field(fail_fast=True)]
_Name = Annotated[str, pydantic.Field(min_length=1, max_length=256)]


# Reasons why fields are refused.
_GRAMMAR = 'constrained output is not served; run SGLang for it'
_TEXT_ONLY = 'the model reads text alone; run SGLang for images, audio, video'
_ADAPTERS = 'adapters are not served; merge them, or run SGLang for them'
_EMBEDDINGS = 'embeddings are not read; send token ids, or run SGLang for it'
_PROCESSORS = 'custom logit processors are not run; run SGLang for them'
_TOP_ONLY = (
    'log-probs of chosen tokens are not reported, only those of the most'
    ' probable ones; run SGLang for them'
)
_BEAMS = 'beams are not searched; run SGLang for them, or sample with `n`'
_BIAS = 'not served; use `logit_bias`'
_THINKING = 'thinking has no limit of its own; limit all tokens, or run SGLang'
_SESSIONS = 'sessions are not kept; send the whole prompt, or run SGLang'
_ONE_SERVER = 'one server prefills and decodes; run SGLang to separate the two'
_TOKEN_IDS = 'not served; use `return_token_ids`'
_UNREPORTED = dict.fromkeys(
    ('return_hidden_states', 'return_entropy', 'return_sampling_mask')
    + ('return_routed_experts', 'return_indexer_topk'),
    'it is not reported here; run SGLang for it',
)

M = TypeVar('M', bound=fields_lib.Model)


class Sampler(fields_lib.Model):
  """Fields that have the same names in SGLang's and OpenAI's requests.

  The four class variables name the fields whose names differ.
  """

  most_field: ClassVar[str] = 'max_tokens'  # Maximum number of sampled tokens.
  fewest_field: ClassVar[str] = 'min_tokens'  # Minimum, before an end counts.
  seed_field: ClassVar[str] = 'seed'
  top_field: ClassVar[str] = 'top_logprobs'  # Number of top tokens to report.
  refused = {
      **dict.fromkeys(('regex', 'json_schema', 'ebnf'), _GRAMMAR),
      'structural_tag': _GRAMMAR,
      'stop_regex': 'not served; use `stop`, a list of strings, or run SGLang',
      'custom_params': _PROCESSORS,
      'beam_width': _BEAMS,
  }
  n: int = pydantic.Field(1, ge=1, le=2**20)
  temperature: float = pydantic.Field(1.0, ge=0, le=100)
  top_p: float = pydantic.Field(1.0, gt=0, le=1)
  top_k: int = pydantic.Field(-1, ge=-1, le=2**31)
  min_p: float = pydantic.Field(0.0, ge=0, le=1)
  frequency_penalty: float = pydantic.Field(0.0, ge=-2, le=2)
  presence_penalty: float = pydantic.Field(0.0, ge=-2, le=2)
  # Logits are divided by it; a smaller value would make them infinite.
  repetition_penalty: float = pydantic.Field(1.0, ge=1e-6, le=2)
  stop: str | list[str] = []
  stop_token_ids: list[_Int] = []
  ignore_eos: bool = False
  skip_special_tokens: bool = True
  # Accepted without effect: fast tokenizers add no space between special
  # tokens, and transformers decodes the same text for either value.
  spaces_between_special_tokens: bool = True
  no_stop_trim: bool = False
  logit_bias: dict[str, float] = {}


class Sampling(Sampler):
  """`sampling_params` of /generate."""

  where = 'sampling_params.'
  most_field = 'max_new_tokens'
  fewest_field = 'min_new_tokens'
  seed_field = 'sampling_seed'
  top_field = 'top_logprobs_num'
  max_new_tokens: int | None = pydantic.Field(128, ge=0)
  min_new_tokens: int = pydantic.Field(0, ge=0)
  sampling_seed: _Int | None = None


class Generate(fields_lib.Model):
  """Body of /generate."""

  refused = {
      **dict.fromkeys(
          ('input_embeds', 'positional_embed_overrides'), _EMBEDDINGS
      ),
      **dict.fromkeys(('image_data', 'video_data', 'audio_data'), _TEXT_ONLY),
      **dict.fromkeys(('lora_path', 'lora_id'), _ADAPTERS),
      'custom_logit_processor': _PROCESSORS,
      **_UNREPORTED,
      'return_flat_raw_top_logprobs': 'not served; read `input_top_logprobs`',
      'token_ids_logprob': _TOP_ONLY,
      'token_ids_logprob_positions': _TOP_ONLY,
      'multi_item_delimiter_indices': _TOP_ONLY,
      'session_params': _SESSIONS,
      'bootstrap_host': _ONE_SERVER,
      'max_thinking_tokens': _THINKING,
      'background': 'not served; keep the connection, or run SGLang',
  }
  misplaced = dict.fromkeys(
      Sampling.model_fields, 'has no effect here; put it into `sampling_params`'
  )
  text: _Texts | str | None = None
  input_ids: _Batch | _Tokens | None = None
  sampling_params: list[dict[str, Any]] | dict[str, Any] = {}
  return_logprob: list[bool] | bool = False
  logprob_start_len: list[_Int] | _Int = -1
  top_logprobs_num: list[_Int] | _Int = 0
  return_text_in_logprobs: bool = False
  return_prompt_token_ids: bool = False
  stream: bool = False
  rid: list[_Name] | _Name | None = None


class Pause(fields_lib.Model):
  """Body of /pause_generation; `service.Service.pause` explains the modes."""

  mode: Literal['abort', 'retract', 'in_place'] = 'abort'


class Empty(fields_lib.Model):
  """A body without fields."""


class Abort(fields_lib.Model):
  """Body of /abort_request."""

  rid: str = ''
  abort_all: bool = False
  abort_message: str = pydantic.Field('', max_length=1000)


class Update(fields_lib.Model):
  """Body of /update_weights_from_disk."""

  refused = {
      'is_async': 'not served; the answer comes when the weights are in',
      'keep_pause': 'not served; call /pause_generation first',
      'manifest': 'not served; send a directory of safetensors',
      'token_step': 'not served; use `weight_version`',
  }
  model_path: str = pydantic.Field(min_length=1, max_length=4096)
  load_format: Literal['auto', 'safetensors'] = 'auto'
  abort_all_requests: bool = False
  weight_version: _Name | _Int | None = None
  flush_cache: bool = True


class Tensors(fields_lib.Model):
  """Body of /update_weights_from_tensor."""

  refused = {'load_format': 'not served; send pairs of a name and a tensor'}
  # One pickle in Base64 per tensor-parallel rank; see `torch_pickle`.
  serialized_named_tensors: list[str] = pydantic.Field(
      min_length=1, max_length=64
  )
  abort_all_requests: bool = False
  weight_version: _Name | _Int | None = None
  flush_cache: bool = True


class Tags(fields_lib.Model):
  """Body of the routes that release and resume memory."""

  tags: list[str] | None = None


class StreamOptions(fields_lib.Model):
  """`stream_options` of OpenAI's requests."""

  where = 'stream_options.'
  include_usage: bool = False


class OpenAI(Sampler):
  """Fields common to /v1/completions and /v1/chat/completions."""

  refused = {
      **Sampler.refused,
      **dict.fromkeys(('response_format', 'structured_outputs'), _GRAMMAR),
      **dict.fromkeys(('guided_json', 'guided_regex'), _GRAMMAR),
      **dict.fromkeys(('guided_choice', 'guided_grammar'), _GRAMMAR),
      'lora_path': _ADAPTERS,
      'custom_logit_processor': _PROCESSORS,
      **_UNREPORTED,
      'session_params': _SESSIONS,
      'bootstrap_host': _ONE_SERVER,
      # Fields of vLLM.
      'use_beam_search': _BEAMS,
      **dict.fromkeys(('allowed_token_ids', 'bad_words'), _BIAS),
      'logprob_token_ids': _TOP_ONLY,
      'prompt_logprobs': (
          'not reported so; use `echo` with `logprobs` in /v1/completions, or'
          ' `logprob_start_len` in /generate'
      ),
      'return_tokens_as_token_ids': _TOKEN_IDS,
      'return_prompt_text': _TOKEN_IDS,
      'include_stop_str_in_output': 'not served; use `no_stop_trim`',
      'truncate_prompt_tokens': 'prompts are not cut; send a shorter one',
      'thinking_token_budget': _THINKING,
      'repetition_detection': 'not served; use `frequency_penalty`',
  }
  model: str = ''
  seed: _Int | None = None
  stream: bool = False
  stream_options: StreamOptions = StreamOptions()
  min_tokens: int = pydantic.Field(0, ge=0)
  # True reports the ids of prompt and samples, as vLLM and SGLang do.
  return_token_ids: bool = False
  rid: _Name | None = None


class Completion(OpenAI):
  """Body of /v1/completions."""

  top_field = 'logprobs'
  refused = OpenAI.refused | {
      'suffix': 'the model does not fill in; leave it out',
      'prompt_embeds': _EMBEDDINGS,
      'add_special_tokens': 'special tokens are added; send token ids instead',
  }
  prompt: str | _Batch | _Tokens | _Texts
  max_tokens: int = pydantic.Field(16, ge=0)
  logprobs: int | None = pydantic.Field(None, ge=0)
  echo: bool = False
  best_of: int | None = None

  @pydantic.field_validator('logprobs', mode='before')
  @classmethod
  def _read_off(cls, value: Any) -> Any:
    """Read false as null; /v1/chat/completions uses false."""
    return None if value is False else value


class _Text(fields_lib.Model):
  where = 'messages[].content[].'
  refused = {'type': _TEXT_ONLY}
  type: Literal['text']
  text: str


class _Function(fields_lib.Model):
  where = 'messages[].tool_calls[].function.'
  name: str = pydantic.Field(min_length=1, max_length=256)
  arguments: str | dict[str, Any] = '{}'


class _ToolCall(fields_lib.Model):
  where = 'messages[].tool_calls[].'
  id: str = ''
  type: Literal['function'] = 'function'
  index: int | None = None
  function: _Function


class Message(fields_lib.Model):
  """One turn of a conversation."""

  where = 'messages[].'
  refused = {
      'reasoning': 'not served; send `reasoning_content`',
      'audio': _TEXT_ONLY,
      'function_call': 'deprecated and not served; use `tool_calls`',
  }
  role: Literal['system', 'developer', 'user', 'assistant', 'tool']
  content: str | list[_Text] = ''
  name: str | None = None
  tool_call_id: str | None = None
  reasoning_content: str | None = None
  tool_calls: list[_ToolCall] = []

  @pydantic.model_validator(mode='after')
  def _check_content(self) -> 'Message':
    """Refuse a user's message without content, as SGLang and OpenAI do."""
    if self.role == 'user' and 'content' not in self.model_fields_set:
      raise errors.bad_request(
          'messages[].content', 'missing in a message of the user'
      )
    return self


class _Tool(fields_lib.Model):
  where = 'tools[].'
  type: Literal['function'] = 'function'
  function: dict[str, Any]


class Chat(OpenAI):
  """Body of /v1/chat/completions."""

  refused = OpenAI.refused | {
      'tool_choice': (
          'a call is not forced, as output is not constrained; send "auto" or'
          ' "none", or run SGLang for it'
      ),
      'functions': 'deprecated and not served; use `tools`',
      'function_call': 'deprecated and not served; use `tool_choice`',
      **dict.fromkeys(('modalities', 'audio'), _TEXT_ONLY),
      'web_search_options': 'nothing is searched; leave it out',
      **dict.fromkeys(
          ('continue_final_message', 'add_generation_prompt', 'echo'),
          'not served; send the tokens as `input_ids`, or use /v1/completions',
      ),
      **dict.fromkeys(
          ('tokens', 'prompt_token_ids'), 'not served; send `input_ids`'
      ),
      'chat_template': "the template is the model's own; send `input_ids`",
      'documents': 'not served; use `chat_template_kwargs`',
  }
  messages: list[Message] = []
  # Used instead of the messages, without the template.
  input_ids: _Tokens | None = None
  max_tokens: int | None = pydantic.Field(None, ge=0)
  max_completion_tokens: int | None = pydantic.Field(None, ge=0)
  logprobs: bool = False
  top_logprobs: int = pydantic.Field(0, ge=0)
  tools: list[_Tool] = []
  tool_choice: str = 'auto'
  parallel_tool_calls: bool = True
  # The template writes the special tokens; true would add them twice.
  add_special_tokens: Literal[False] = False
  reasoning_effort: str | float | None = None
  return_prompt_token_ids: bool = False
  return_meta_info: bool = False  # The same as in /generate.
  chat_template_kwargs: dict[str, Any] = {}

  @property
  def offered(self) -> list[_Tool]:
    """The tools that the model may call; the template sees only these."""
    return [] if self.tool_choice == 'none' else self.tools

  @property
  def most_field(self) -> str:
    """Name of the request's field for the maximum number of tokens."""
    is_newer = self.max_completion_tokens is not None
    return 'max_completion_tokens' if is_newer else 'max_tokens'

  @property
  def template_options(self) -> dict[str, Any]:
    """The variables of the chat template that the request sets.

    A reasoning effort sets the switches of templates, as in SGLang and vLLM.
    """
    effort = self.reasoning_effort
    if effort is None:
      return self.chat_template_kwargs
    switches = dict.fromkeys(('thinking', 'enable_thinking'), effort != 'none')
    options = {'reasoning_effort': effort, **switches}
    return options | self.chat_template_kwargs


def parse(model: type[M], body: bytes, most: int = MOST_VALUES) -> M:
  """Parse and validate a request; an empty body is an empty object.

  Values are counted first, because parsing them would block all threads.

  Args:
    model: Model of the body.
    body: JSON.
    most: Largest number of values allowed.

  Raises:
    ApiError: 400 if the body is not valid, with the field; 413 if it is too
      large.
  """

  def check_count(what: str, marks: bytes, limit: int) -> None:
    # Marks within strings count, too; only long source code has so many.
    if len(body) - len(body.translate(None, marks)) > limit:
      message = f'the body holds over {limit} {what}; send several requests'
      raise errors.ApiError(413, message)

  check_count('values', b',[{', most)
  check_count('lists and objects', b']}', _MOST_PARTS)
  try:
    fields = pydantic_core.from_json(body, allow_inf_nan=False) if body else {}
  except ValueError as e:  # Raised also for bytes that are not UTF-8.
    raise errors.ApiError(400, f'the body is not JSON: {e}') from e
  if not isinstance(fields, dict):
    raise errors.ApiError(400, 'the body is not a JSON object')
  if len(fields) > _MOST_ENTRIES:
    raise errors.ApiError(400, f'the body has {len(fields)} fields')
  for name in fields.keys() - _PROMPTS:
    _check_entries(name[:_SHOWN_VALUE], fields[name])
  return check(model, fields)


def _check_entries(name: str, value: Any) -> None:
  """Refuse a list or object with more entries than any field allows."""
  if isinstance(value, list | dict):
    if len(value) > _MOST_ENTRIES:
      problem = f'has {len(value)} entries, more than {_MOST_ENTRIES}'
      raise errors.bad_request(name, problem)
    for part in value.values() if isinstance(value, dict) else value:
      _check_entries(name, part)


def check(model: type[M], fields: Mapping[str, Any]) -> M:
  """Validate the fields of a request, given as parsed JSON.

  Raises:
    ApiError: 400 if a field is not valid; names it.
  """
  prefix = model.where
  try:
    return model.model_validate(fields)
  except pydantic.ValidationError as e:
    problems = e.errors(include_url=False, include_context=False)
    raise errors.ApiError(
        400,
        '; '.join(_explain(p, prefix) for p in problems[:_SHOWN_PROBLEMS]),
        param=prefix + _path(problems[0]['loc']),
    ) from e


def _explain(problem: Mapping[str, Any], prefix: str) -> str:
  """Return a line such as 'sampling_params.top_p: Input should be ...'."""
  path = prefix + _path(problem['loc'])
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
    fields: Fields, each of which is valid by itself.
    settings: The limits.
    prompt_tokens: Length of the prompt.

  Raises:
    ApiError: 400 if the prompt is too long, or fields do not fit together.
  """
  room = min(settings.context_tokens - prompt_tokens, settings.sampled_tokens)
  most, fewest = fields.most_field, fields.fewest_field
  max_tokens = getattr(fields, most)
  if room < (0 if max_tokens == 0 else 1):
    raise errors.ApiError(
        400,
        f'the prompt has {prompt_tokens} tokens; at most'
        f' {settings.context_tokens} fit, and one less where any is sampled',
    )
  if max_tokens is None:
    max_tokens = room  # As many as fit.
  elif most not in fields.model_fields_set:
    max_tokens = min(max_tokens, room)  # A default is cut to fit.
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
  stop = fields.stop
  if isinstance(stop, str):  # An empty string has no effect.
    stop = [stop] if stop else []
  stop = tuple(stop)
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
      # vLLM uses 0 for no limit, SGLang -1; the whole vocabulary means the
      # same.
      top_k=fields.top_k if 0 < fields.top_k < settings.vocab_size else -1,
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
  """Check that all ids are in the vocabulary.

  Raises:
    ApiError: 400 if one is not; names the field and the id.
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
