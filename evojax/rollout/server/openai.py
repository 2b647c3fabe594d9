"""OpenAI's endpoints: /v1/completions and /v1/chat/completions."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
import itertools
import json
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


def _generation(
    host: host_lib.Host,
    request: protocol.Completion | protocol.Chat,
    prompts: Sequence[tuple[int, ...]],
    **logprobs: Any,
) -> native.Generation:
  """Return the samples to ask for; `native.make_asks` takes the log-probs.

  Raises:
    ApiError: 400 that names what is wrong.
  """
  kind = 'chatcmpl' if isinstance(request, protocol.Chat) else 'cmpl'
  name = request.rid or f'{kind}-{uuid.uuid4().hex}'
  rids = (f'{name}_{i}' for i in itertools.count())
  asks = [
      ask
      for prompt in prompts
      for ask in native.make_asks(host, prompt, request, rids, **logprobs)
  ]
  return native.Generation(request, asks, {name: [a.job.rid for a in asks]})


async def prepare_completion(
    host: host_lib.Host, request: protocol.Completion
) -> native.Generation:
  """Tokenise and check a request of /v1/completions.

  Raises:
    ApiError: 400 that names what is wrong.
  """
  prompts = request.prompt
  if isinstance(prompts, str) or native.is_tokens(prompts):
    prompts = [prompts]
  if not prompts:
    raise errors.bad_request('prompt', 'is empty')
  if request.best_of not in (None, 1, request.n):
    raise errors.bad_request('best_of', 'not supported; use `n` and choose')
  host.check_size(len(prompts) * request.n)
  with_logprobs = request.logprobs is not None
  native.check_top(host, 'logprobs', request.logprobs or 0)
  return _generation(
      host,
      request,
      [await native.encode_prompt(host, p, 'prompt') for p in prompts],
      logprobs=with_logprobs,
      top_logprobs=request.logprobs or 0,
      logprob_start=0 if request.echo and with_logprobs else None,
  )


async def prepare_chat(
    host: host_lib.Host, request: protocol.Chat
) -> native.Generation:
  """Render and check a request of /v1/chat/completions.

  Raises:
    ApiError: 400 that names what is wrong.
  """
  if request.top_logprobs and not request.logprobs:
    raise errors.bad_request('top_logprobs', 'needs logprobs=true')
  host.check_size(request.n)
  shown = _offered(request)
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
  native.check_top(host, 'top_logprobs', request.top_logprobs)
  return _generation(
      host,
      request,
      [tuple(prompt)],
      logprobs=request.logprobs,
      top_logprobs=request.top_logprobs,
      logprob_start=None,
  )


def _offered(request: protocol.Completion | protocol.Chat) -> list[Any]:
  """Return the tools that the model may call; the template shows no other."""
  if isinstance(request, protocol.Completion) or request.tool_choice == 'none':
    return []
  return request.tools


def _turn(index: int, message: protocol.Message) -> dict[str, Any]:
  """Return a message as chat templates read it.

  Raises:
    ApiError: 400 if the arguments of an earlier call are not a JSON object.
  """
  turn = {'content': ''} | message.model_dump(exclude_defaults=True)
  # OpenAI's newer name for the role that every template calls system.
  turn['role'] = 'system' if message.role == 'developer' else message.role
  if not isinstance(message.content, str):
    turn['content'] = ''.join(part.text for part in message.content)
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
      request: protocol.Completion | protocol.Chat,
      index: int,
      tokenizer: tokens.ServerTokenizer,
  ):
    """Start with nothing shown of sample `index` of the request."""
    self.index = index
    self._request = request
    self._tokenizer = tokenizer
    self._echo = isinstance(request, protocol.Completion) and request.echo
    names = [tool.function['name'] for tool in _offered(request)]
    self._tools = tools_lib.ToolCalls(names) if names else None
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
      new = sample.decode(sample.ask.job.prompt_tokens) + new
    choice = {'index': self.index, 'finish_reason': None}
    if final:
      stopped = sample.finish.reason == 'stop'
      choice['finish_reason'] = (
          'tool_calls' if stopped and self._calls else sample.finish.reason
      )
      choice['matched_stop'] = sample.finish.matched
    if sample.ask.logprobs:
      choice['logprobs'] = self._logprobs(sample, is_first)
    if isinstance(self._request, protocol.Completion):
      return choice | {'text': new}
    return choice | {'content': new, 'tool_calls': calls}

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
    *offsets, self._text_offset = itertools.accumulate(
        map(len, texts), initial=self._text_offset
    )
    return {
        'tokens': texts,
        'token_logprobs': [native.finite(t.logprob, _LOWEST) for t in tokens],
        'top_logprobs': [
            {text_of(i): native.finite(x, _LOWEST) for i, x in t.top} or None
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
    generation: native.Generation, batch: Sequence[samples.Sample]
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
    generation: native.Generation, host: host_lib.Host, *, streamed: bool
) -> Callable[..., dict[str, Any]]:
  is_chat = isinstance(generation.request, protocol.Chat)
  kind = 'chat.completion' if is_chat else 'text_completion'
  if is_chat and streamed:
    kind += '.chunk'
  [name] = generation.names
  # SGLang reports the version so, beside OpenAI's own fields.
  return lambda choices, version: {
      'id': name,
      'object': kind,
      'created': generation.created,
      'model': host.settings.model_name,
      'choices': choices,
      'metadata': {'weight_version': version},
  }


def _version(host: host_lib.Host, sample: samples.Sample) -> str:
  return sample.spans[-1][0] if sample.spans else host.weight_version


def answer(
    host: host_lib.Host, generation: native.Generation, batch: samples.Batch
) -> dict[str, Any]:
  """Return the body for samples that have all ended."""
  choices = []
  for index, sample in enumerate(batch.samples):
    choice = Choice(generation.request, index, host.tokenizer).next(sample)
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
    host: host_lib.Host, generation: native.Generation, batch: samples.Batch
) -> AsyncGenerator[bytes]:
  """Yield the events of a stream: each holds what is new of one sample."""
  is_chat = isinstance(generation.request, protocol.Chat)
  make = _envelope(generation, host, streamed=True)
  with_usage = generation.request.stream_options.include_usage
  choices = [
      Choice(generation.request, i, host.tokenizer)
      for i in range(len(batch.samples))
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
