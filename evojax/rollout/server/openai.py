"""OpenAI's endpoints: /v1/completions and /v1/chat/completions."""

from collections.abc import AsyncGenerator, Sequence
import itertools
from typing import Any
import uuid

from evojax.rollout import service as service_lib
from evojax.rollout.server import errors
from evojax.rollout.server import host as host_lib
from evojax.rollout.server import native
from evojax.rollout.server import protocol
from evojax.rollout.server import samples
from evojax.rollout.server import tools as tools_lib

# OpenAI's API reports this log-prob for an excluded token.
_LOWEST = -9999.0


async def prepare_completion(
    host: host_lib.Host, request: protocol.Completion
) -> 'Generation':
  """Tokenize and check a request of /v1/completions.

  Raises:
    ApiError: 400 if the request is not valid; names the field.
  """
  prompts = request.prompt
  if isinstance(prompts, str) or native.is_tokens(prompts):
    prompts = [prompts]
  if not prompts:
    raise errors.bad_request('prompt', 'is empty')
  if request.best_of not in (None, 0, 1, request.n):
    raise errors.bad_request('best_of', 'not supported; use `n` and choose')
  host.check_size(len(prompts) * request.n)
  return await _generation(
      host,
      request,
      [('prompt', prompt) for prompt in prompts],
      logprobs=request.logprobs is not None,
      start=0 if request.echo else -1,
      top=request.logprobs or 0,
  )


async def prepare_chat(
    host: host_lib.Host, request: protocol.Chat
) -> 'Generation':
  """Render and check a request of /v1/chat/completions.

  If the request has token ids, they are used instead of the messages.

  Raises:
    ApiError: 400 if the request is not valid; names the field.
  """
  if request.top_logprobs and not request.logprobs:
    raise errors.bad_request('top_logprobs', 'needs logprobs=true')
  if request.return_meta_info and request.stream:
    raise errors.bad_request('return_meta_info', 'not streamed; use /generate')
  host.check_size(request.n)
  for tool in request.offered:
    if not isinstance(tool.function.get('name'), str):
      raise errors.bad_request('tools', 'a function has no name')
  field, prompt = 'input_ids', request.input_ids
  if prompt is None:
    if not request.messages:
      raise errors.bad_request('messages', 'are missing, and so are input_ids')
    turns = [_turn(i, m) for i, m in enumerate(request.messages)]
    tools = [tool.model_dump() for tool in request.offered] or None
    options = request.template_options
    host.check_text(_characters([turns, tools, options]))
    field, prompt = 'messages', await host.encode(
        host.tokenizer.render, turns, tools=tools, options=options
    )
  return await _generation(
      host,
      request,
      [(field, prompt)],
      logprobs=request.logprobs,
      top=request.top_logprobs,
  )


async def _generation(
    host: host_lib.Host,
    request: protocol.OpenAI,
    prompts: Sequence[tuple[str, str | Sequence[int]]],
    **logprobs: Any,
) -> 'Generation':
  """Return the samples to request; see `native.make_asks`.

  Raises:
    ApiError: 400 if the request is not valid; names the field.
  """
  kind = 'chatcmpl' if isinstance(request, protocol.Chat) else 'cmpl'
  name = request.rid or f'{kind}-{uuid.uuid4().hex}'
  rids = (f'{name}_{i}' for i in itertools.count())
  asks = []
  for prompt in prompts:
    asks += await native.make_asks(host, prompt, request, rids, **logprobs)
  return Generation(host, request, asks, {name: [a.job.rid for a in asks]})


def _characters(value: Any) -> int:
  """Count the characters of all texts in parsed JSON."""
  if isinstance(value, str):
    return len(value)
  if isinstance(value, dict):
    value = [*value, *value.values()]
  return sum(map(_characters, value)) if isinstance(value, list) else 0


def _turn(index: int, message: protocol.Message) -> native.Json:
  """Return a message in the format that chat templates read.

  Raises:
    ApiError: 400 if the arguments of an earlier call are not a JSON object.
  """
  turn = {'content': ''} | message.model_dump(exclude_defaults=True)
  # OpenAI's newer name for the role that all templates call system.
  turn['role'] = 'system' if message.role == 'developer' else message.role
  if not isinstance(message.content, str):
    turn['content'] = ''.join(part.text for part in message.content)
  calls = []
  for call in message.tool_calls:
    arguments = call.function.arguments
    if isinstance(arguments, str):
      arguments = tools_lib.parse_object(arguments)
    if arguments is None:
      field = f'messages[{index}].tool_calls'
      raise errors.bad_request(field, 'arguments must be a JSON object')
    function = {'name': call.function.name, 'arguments': arguments}
    calls.append({'type': 'function', 'id': call.id, 'function': function})
  if calls:
    turn['tool_calls'] = calls
  return turn


class Generation(native.Generation):
  """A request of either endpoint that is ready to be submitted."""

  def answer(self, batch: samples.Batch) -> native.Json:
    """Return the body of the answer once all samples have ended."""
    choices = []
    for index, sample in enumerate(batch.samples):
      choice = Choice(self, index).next(sample)
      if self.is_chat:
        # Empty content is '' and not null, as in SGLang: agents compare turns.
        message = {'role': 'assistant', 'content': choice.pop('content')}
        if calls := choice.pop('tool_calls'):
          message['tool_calls'] = calls
        choice['message'] = message
        if self.request.return_meta_info:
          choice['meta_info'] = native.meta_info(self.host, sample)
      choices.append({'logprobs': None, **choice, **self._prompt_ids(sample)})
    body = self._body(choices, batch.samples[-1])
    if self.is_chat:
      body |= self._prompt_ids(batch.samples[0])
    return body | {'usage': self._usage(batch)}

  async def stream(self, batch: samples.Batch) -> AsyncGenerator[bytes]:
    """Yield the events of a stream; each holds what is new in one sample."""
    with_usage = self.request.stream_options.include_usage
    choices = [Choice(self, i) for i in range(len(batch.samples))]

    def chunk(choice: native.Json, sample: samples.Sample, **more) -> bytes:
      body = self._body([choice], sample, '.chunk') | more
      return native.event(body | ({'usage': None} if with_usage else {}))

    if self.is_chat:
      for i, sample in enumerate(batch.samples):
        begin = {'role': 'assistant', 'content': ''}
        choice = {'index': i, 'delta': begin, 'finish_reason': None}
        yield chunk(choice, sample, **self._prompt_ids(sample))
    begun = set()
    async for i in batch.changes():
      sample = batch.samples[i]
      choice = choices[i].next(sample)
      if self.is_chat:
        calls = choice.pop('tool_calls')
        first = choices[i].calls - len(calls)
        calls = [{'index': k} | call for k, call in enumerate(calls, first)]
        new = {'content': choice.pop('content'), 'tool_calls': calls}
        choice['delta'] = {name: value for name, value in new.items() if value}
      elif i not in begun:
        begun.add(i)
        choice |= self._prompt_ids(sample)
      news = ('delta', 'text', 'token_ids', 'prompt_token_ids')
      is_news = any(choice.get(name) for name in news)
      if is_news or choice['finish_reason'] or sample.ask.logprobs:
        yield chunk(choice, sample)
    if with_usage:
      body = self._body([], None, '.chunk')
      yield native.event(body | {'usage': self._usage(batch)})
    yield native.DONE

  @property
  def is_chat(self) -> bool:
    """True for a request of /v1/chat/completions."""
    return isinstance(self.request, protocol.Chat)

  def _prompt_ids(self, sample: samples.Sample) -> native.Json:
    """Return the prompt's ids, if the client asked for them, by field name.

    Clients expect them where their server puts them: vLLM's chat endpoint in
    the body (when streaming, in the first chunk), all others in each choice.
    """
    asked = self.request
    if asked.return_token_ids or (
        self.is_chat and asked.return_prompt_token_ids
    ):
      return {'prompt_token_ids': list(sample.ask.job.prompt_tokens)}
    return {}

  def _body(
      self, choices: list[native.Json], sample: samples.Sample | None, suffix=''
  ) -> native.Json:
    """Return a body, with the weight version of a sample or the current one."""
    spans = sample.spans if sample else ()
    version = spans[-1][0] if spans else self.host.weight_version
    kind = f'chat.completion{suffix}' if self.is_chat else 'text_completion'
    [name] = self.names
    return {
        'id': name,
        'object': kind,
        'created': self.created,
        'model': self.host.settings.model_name,
        'choices': choices,
        # SGLang reports the version in this field, in addition to OpenAI's
        # fields.
        'metadata': {'weight_version': version},
    }

  def _usage(self, batch: samples.Batch) -> native.Json:
    """Count the tokens of all samples; each prompt counts once, whatever n."""
    firsts = batch.samples[:: self.request.n]
    prompt = sum(len(s.ask.job.prompt_tokens) for s in firsts)
    sampled = sum(len(s.ids) for s in batch.samples)
    cached = sum(s.cached_tokens for s in firsts)
    return {
        'prompt_tokens': prompt,
        'completion_tokens': sampled,
        'total_tokens': prompt + sampled,
        'prompt_tokens_details': {'cached_tokens': cached},
    }


class Choice:
  """One choice of an answer; keeps track of what has been sent."""

  def __init__(self, generation: Generation, index: int):
    """Start with nothing of sample `index` sent."""
    self.calls = 0  # Number of tool calls sent so far.
    self._index = index
    self._request = generation.request
    self._is_chat = generation.is_chat
    self._tokenizer = generation.host.tokenizer
    tools = self._request.offered if self._is_chat else []
    names = [tool.function['name'] for tool in tools]
    self._tools = tools_lib.ToolCalls(names) if names else None
    # Numbers of characters, tokens and characters of token texts sent so far.
    self._chars = self._tokens = self._text_offset = 0
    # True until the prompt has been sent.
    self._echo = not self._is_chat and self._request.echo

  def next(self, sample: samples.Sample) -> native.Json:
    """Return a choice with everything new, in the endpoint's format."""
    final = sample.finish is not None
    text, calls = sample.text, []
    if self._tools:
      self._tools.push(text, final=final)
      text = self._tools.content
      found = self._tools.calls
      if not self._request.parallel_tool_calls:
        found = found[:1]  # As in vLLM, further calls are dropped.
      calls, self.calls = found[self.calls :], len(found)
    new, self._chars = text[self._chars :], len(text)
    tokens, self._tokens = sample.tokens[self._tokens :], len(sample.tokens)
    sampled = [token.token for token in tokens]
    if self._echo:
      new = sample.decode(sample.ask.job.prompt_tokens) + new
      tokens = sample.prompt + tokens
      self._echo = False
    choice = {'index': self._index, 'finish_reason': None}
    if final:
      stopped = sample.finish.reason == 'stop'
      choice['finish_reason'] = (
          'tool_calls' if stopped and self.calls else sample.finish.reason
      )
      choice['matched_stop'] = sample.finish.matched
    if self._request.return_token_ids:
      choice['token_ids'] = sampled
    if sample.ask.logprobs:
      is_chat = self._is_chat
      shape = self._chat_logprobs if is_chat else self._completion_logprobs
      choice['logprobs'] = shape(tokens)
    if self._is_chat:
      return choice | {'content': new, 'tool_calls': calls}
    return choice | {'text': new}

  def _completion_logprobs(
      self, tokens: Sequence[service_lib.Token]
  ) -> native.Json:
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

  def _chat_logprobs(self, tokens: Sequence[service_lib.Token]) -> native.Json:
    def entry(i: int, logprob: float | None) -> native.Json:
      spelled = self._tokenizer.token_bytes(i)
      return {
          'token': self._tokenizer.token_text(i),
          'logprob': native.finite(logprob, _LOWEST),
          'bytes': None if spelled is None else list(spelled),
      }

    content = [
        entry(t.token, t.logprob) | {'top_logprobs': [entry(*x) for x in t.top]}
        for t in tokens
    ]
    return {'content': content, 'refusal': None}
