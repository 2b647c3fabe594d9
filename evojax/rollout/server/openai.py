"""OpenAI's endpoints: /v1/completions and /v1/chat/completions."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
import dataclasses
import json
import time
from typing import Any
import uuid

from evojax.rollout import service as service_lib
from evojax.rollout.server import errors
from evojax.rollout.server import host as host_lib
from evojax.rollout.server import native
from evojax.rollout.server import protocol
from evojax.rollout.server import samples
from evojax.rollout.server import tokens
from evojax.rollout.server import tools as tools_lib

# OpenAI's API writes this for a token that is ruled out.
_LOWEST = -9999.0


@dataclasses.dataclass(frozen=True)
class Generation:
  """A request, ready to be submitted."""

  request: protocol.Completion | protocol.Chat
  asks: list[samples.Ask]  # Prompt by prompt, its n samples in a row.
  id: str
  created: int  # Seconds since 1970.

  @property
  def stream(self) -> bool:
    return self.request.stream

  @property
  def names(self) -> Mapping[str, Sequence[str]]:
    """Name to abort the request by -> ids of its jobs."""
    return {self.id: [ask.job.rid for ask in self.asks]}


def _generation(
    host: host_lib.Host,
    request: protocol.Completion | protocol.Chat,
    prompts: Sequence[tuple[int, ...]],
    *,
    max_tokens: int | None,
    max_field: str,
    logprobs: bool,
    top: int,
    logprob_start: int | None,
) -> Generation:
  """Return the jobs for tokenised prompts.

  Raises:
    ApiError: 400 that names what is wrong.
  """
  kind = 'chatcmpl' if isinstance(request, protocol.Chat) else 'cmpl'
  name = request.rid or f'{kind}-{uuid.uuid4().hex}'
  asks = []
  for prompt in prompts:
    params = protocol.sampling_params(
        request,
        host.settings,
        prompt_tokens=len(prompt),
        max_tokens=max_tokens,
        max_field=max_field,
        min_tokens=request.min_tokens,
    )
    for seed in protocol.seeds(request.seed, request.n):
      job = service_lib.Job(
          rid=f'{name}_{len(asks)}',
          prompt_tokens=prompt,
          params=params,
          seed=seed,
          logprob_start=logprob_start,
          top_logprobs=top,
      )
      asks.append(
          samples.Ask(
              job,
              skip_special_tokens=request.skip_special_tokens,
              trim=not request.no_stop_trim,
              logprobs=logprobs,
          )
      )
  return Generation(request, asks, name, int(time.time()))


async def prepare_completion(
    host: host_lib.Host, request: protocol.Completion
) -> Generation:
  """Tokenise and check a request of /v1/completions.

  Raises:
    ApiError: 400 that names what is wrong.
  """
  prompts = request.prompt
  if isinstance(prompts, str) or prompts and isinstance(prompts[0], int):
    prompts = [prompts]
  if not prompts:
    raise errors.bad_request('prompt', 'is empty')
  if request.best_of not in (None, 1, request.n):
    raise errors.bad_request('best_of', 'not supported; use `n` and choose')
  host.check_size(len(prompts) * request.n)
  with_logprobs = request.logprobs is not None
  return _generation(
      host,
      request,
      [await native.encode_prompt(host, p, 'prompt') for p in prompts],
      max_tokens=request.max_tokens,
      max_field='max_tokens',
      logprobs=with_logprobs,
      top=native.check_top(
          'logprobs', request.logprobs or 0, host.settings.max_top_logprobs
      ),
      logprob_start=0 if request.echo and with_logprobs else None,
  )


async def prepare_chat(
    host: host_lib.Host, request: protocol.Chat
) -> Generation:
  """Render and check a request of /v1/chat/completions.

  Raises:
    ApiError: 400 that names what is wrong.
  """
  if request.top_logprobs and not request.logprobs:
    raise errors.bad_request('top_logprobs', 'needs logprobs=true')
  host.check_size(request.n)
  # With tool_choice='none' the template shows no tools.
  shown = request.tools if request.tool_choice == 'auto' else []
  for tool in shown:
    if not isinstance(tool.function.get('name'), str):
      raise errors.bad_request('tools', 'a function has no name')
  prompt = await host.encode(
      host.tokenizer.render,
      [_turn(i, m) for i, m in enumerate(request.messages)],
      tools=[tool.model_dump() for tool in shown] or None,
      options=request.chat_template_kwargs,
  )
  protocol.check_tokens('messages', prompt, host.settings.vocab_size)
  max_field = 'max_completion_tokens'
  if request.max_completion_tokens is None:
    max_field = 'max_tokens'
  return _generation(
      host,
      request,
      [tuple(prompt)],
      max_tokens=getattr(request, max_field),
      max_field=max_field,
      logprobs=request.logprobs,
      top=native.check_top(
          'top_logprobs', request.top_logprobs, host.settings.max_top_logprobs
      ),
      logprob_start=None,
  )


def _turn(index: int, message: protocol.Message) -> dict[str, Any]:
  """Return a message as chat templates read it.

  Raises:
    ApiError: 400 if the arguments of an earlier call are not a JSON object.
  """
  turn = message.model_dump(exclude_defaults=True)
  # OpenAI's newer name for the role that every template calls system.
  turn['role'] = 'system' if message.role == 'developer' else message.role
  turn['content'] = (
      message.content
      if isinstance(message.content, str)
      else ''.join(part.text for part in message.content)
  )
  calls = []
  for call in message.tool_calls:
    arguments = call.function.arguments
    if isinstance(arguments, str):
      try:
        arguments = json.loads(arguments)
      except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
      raise errors.bad_request(
          f'messages[{index}].tool_calls', 'arguments must be a JSON object'
      )
    function = {'name': call.function.name, 'arguments': arguments}
    calls.append({'type': 'function', 'id': call.id, 'function': function})
  if calls:
    turn['tool_calls'] = calls
  return turn


class Choice:
  """One choice of an answer: what was shown of a sample, and what is new."""

  def __init__(
      self,
      generation: Generation,
      index: int,
      tokenizer: tokens.ServerTokenizer,
  ):
    """Starts with nothing shown of sample `index` of the request."""
    request = generation.request
    self.index = index
    self._request = request
    self._tokenizer = tokenizer
    self._echo = isinstance(request, protocol.Completion) and request.echo
    offered = (
        [tool.function['name'] for tool in request.tools]
        if isinstance(request, protocol.Chat) and request.tool_choice == 'auto'
        else []
    )
    self._tools = tools_lib.ToolCalls(offered) if offered else None
    # How much was shown by now.
    self._chars = self._calls = self._tokens = 0
    self._text_offset = 0
    self._is_first = True

  def next(self, sample: samples.Sample) -> dict[str, Any]:
    """Return a choice with all that is new, in the endpoint's shape."""
    final = sample.finish is not None
    text, calls = sample.text, []
    if self._tools:
      self._tools.push(text, final=final)
      text = self._tools.content
      calls = self._tools.calls[self._calls :]
      self._calls += len(calls)
    new, self._chars = text[self._chars :], len(text)
    is_first, self._is_first = self._is_first, False
    if self._echo and is_first:
      new = self._prompt_text(sample) + new
    reason = self._finish_reason(sample) if final else None
    choice = {'index': self.index, 'finish_reason': reason}
    if final:
      choice['matched_stop'] = sample.finish.matched
    if sample.ask.logprobs:
      choice['logprobs'] = self._logprobs(sample, is_first)
    if isinstance(self._request, protocol.Completion):
      return choice | {'text': new}
    return choice | {'content': new, 'tool_calls': calls}

  def _finish_reason(self, sample: samples.Sample) -> str:
    if sample.finish.reason == 'stop' and self._calls:
      return 'tool_calls'
    return sample.finish.reason

  def _prompt_text(self, sample: samples.Sample) -> str:
    return self._tokenizer.decode(
        sample.ask.job.prompt_tokens,
        skip_special_tokens=sample.ask.skip_special_tokens,
    )

  def _logprobs(self, sample: samples.Sample, is_first: bool) -> dict[str, Any]:
    tokens, self._tokens = sample.tokens[self._tokens :], len(sample.tokens)
    if self._echo and is_first:
      tokens = sample.prompt + tokens
    if isinstance(self._request, protocol.Completion):
      return self._completion_logprobs(tokens)
    return {'content': [self._chat_logprob(t) for t in tokens], 'refusal': None}

  def _completion_logprobs(
      self, tokens: Sequence[service_lib.Token]
  ) -> dict[str, Any]:
    text_of = self._tokenizer.token_text
    texts = [text_of(t.token) for t in tokens]
    offsets = []
    for text in texts:
      offsets.append(self._text_offset)
      self._text_offset += len(text)
    return {
        'tokens': texts,
        'token_logprobs': [native.finite(t.logprob, _LOWEST) for t in tokens],
        'top_logprobs': [
            {
                text_of(i): native.finite(logprob, _LOWEST)
                for i, logprob in t.top
            }
            or None
            for t in tokens
        ],
        'text_offset': offsets,
    }

  def _chat_logprob(self, token: service_lib.Token) -> dict[str, Any]:
    def entry(i: int, logprob: float | None) -> dict[str, Any]:
      spelled = self._tokenizer.token_bytes(i)
      return {
          'token': self._tokenizer.token_text(i),
          'logprob': native.finite(logprob, _LOWEST),
          'bytes': None if spelled is None else list(spelled),
      }

    top = [entry(*t) for t in token.top]
    return entry(token.token, token.logprob) | {'top_logprobs': top}


def _usage(
    generation: Generation, batch: Sequence[samples.Sample]
) -> dict[str, Any]:
  """Count the tokens of all samples; a prompt counts once, whatever n is."""
  firsts = batch[:: generation.request.n]
  prompt = sum(len(s.ask.job.prompt_tokens) for s in firsts)
  sampled = sum(len(s.ids) for s in batch)
  return {
      'prompt_tokens': prompt,
      'completion_tokens': sampled,
      'total_tokens': prompt + sampled,
      'prompt_tokens_details': {
          'cached_tokens': sum(s.cached_tokens for s in firsts)
      },
  }


def _envelope(
    generation: Generation, host: host_lib.Host, *, streamed: bool
) -> Callable[..., dict[str, Any]]:
  is_chat = isinstance(generation.request, protocol.Chat)
  kind = 'chat.completion' if is_chat else 'text_completion'
  if is_chat and streamed:
    kind += '.chunk'
  # SGLang reports the version so, beside OpenAI's own fields.
  return lambda choices, version: {
      'id': generation.id,
      'object': kind,
      'created': generation.created,
      'model': host.settings.model_name,
      'choices': choices,
      'metadata': {'weight_version': version},
  }


def _version(host: host_lib.Host, sample: samples.Sample) -> str:
  return sample.spans[-1][0] if sample.spans else host.weight_version


def answer(
    host: host_lib.Host, generation: Generation, batch: samples.Batch
) -> dict[str, Any]:
  """Return the body for samples that have all ended."""
  choices = []
  for index, sample in enumerate(batch.samples):
    choice = Choice(generation, index, host.tokenizer).next(sample)
    if isinstance(generation.request, protocol.Chat):
      calls = choice.pop('tool_calls')
      message = {'role': 'assistant', 'content': choice.pop('content')}
      if calls:
        message['content'] = message['content'] or None
        message['tool_calls'] = calls
      choice['message'] = message
    choices.append({'logprobs': None} | choice)
  make = _envelope(generation, host, streamed=False)
  body = make(choices, _version(host, batch.samples[-1]))
  return body | {'usage': _usage(generation, batch.samples)}


async def stream(
    host: host_lib.Host, generation: Generation, batch: samples.Batch
) -> AsyncGenerator[bytes]:
  """Yield the events of a stream: each holds what is new of one sample."""
  is_chat = isinstance(generation.request, protocol.Chat)
  make = _envelope(generation, host, streamed=True)
  with_usage = generation.request.stream_options.include_usage
  choices = [
      Choice(generation, i, host.tokenizer) for i in range(len(batch.samples))
  ]
  calls = [0] * len(choices)

  def chunk(choice: Mapping[str, Any], sample: samples.Sample) -> bytes:
    body = make([choice], _version(host, sample))
    return native.event(body | ({'usage': None} if with_usage else {}))

  if is_chat:
    for i, sample in enumerate(batch.samples):
      begin = {'role': 'assistant', 'content': ''}
      yield chunk({'index': i, 'delta': begin, 'finish_reason': None}, sample)
  async for i in batch.changes():
    sample = batch.samples[i]
    choice = choices[i].next(sample)
    if is_chat:
      delta = {}
      if content := choice.pop('content'):
        delta['content'] = content
      if new := choice.pop('tool_calls'):
        first = calls[i]
        calls[i] += len(new)
        delta['tool_calls'] = [
            {'index': first + k} | call for k, call in enumerate(new)
        ]
      choice['delta'] = delta
    is_news = choice.get('delta') or choice.get('text')
    if is_news or choice['finish_reason'] or sample.ask.logprobs:
      yield chunk(choice, sample)
  if with_usage:
    body = make([], host.weight_version)
    yield native.event(body | {'usage': _usage(generation, batch.samples)})
  yield native.DONE
