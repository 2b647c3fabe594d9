"""A service without a model, a tokenizer of bytes, and a server around them."""

from collections.abc import Callable, Sequence
import contextlib
import functools
import hashlib
import json
import os
import pathlib
import socket
import tempfile
import threading
import time

import httpx2
import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers
import uvicorn

from evojax.rollout import service as service_lib
from evojax.rollout.server import app as app_lib
from evojax.rollout.server import settings as settings_lib
from evojax.rollout.server import tokens
from evojax.rollout.server import web

# As Qwen's, without what only it needs.
_TEMPLATE = """
{%- if tools %}
  {{- '<|im_start|>system\\n# Tools\\n' }}
  {%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}
  {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}
  {%- if m.role == 'bad' %}{{- raise_exception('no such role') }}{%- endif %}
  {{- '<|im_start|>' + m.role + '\\n' + m.content }}
  {%- for call in m.tool_calls or [] %}
    {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
    {{- call.function.arguments | tojson + '}\\n</tool_call>' }}
  {%- endfor %}
  {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
{%- if enable_thinking is defined and not enable_thinking %}
  {{- '<think></think>' }}
{%- endif %}
"""
SPECIAL = ('<|end|>', '<|im_start|>', '<|im_end|>')
EOS = 256  # '<|end|>'.
VOCAB = 270  # Rows of the model; the tokenizer knows fewer.


@functools.cache
def tokenizer_path() -> pathlib.Path:
  """A directory whose tokenizer has one token per byte, and a chat template."""
  # The byte b is token b, whatever letter stands for it.
  printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
  others = iter(range(256, 512))
  vocab = {chr(b if b in printable else next(others)): b for b in range(256)}
  backend = tokenizers.Tokenizer(models.BPE(vocab, []))
  backend.pre_tokenizer = pre_tokenizers.ByteLevel(
      add_prefix_space=False, use_regex=False
  )
  backend.decoder = decoders.ByteLevel()
  backend.add_special_tokens(list(SPECIAL))  # 256, 257, 258.
  backend.add_tokens(['<tool_call>', '</tool_call>'])
  path = pathlib.Path(tempfile.mkdtemp())
  backend.save(str(path / 'tokenizer.json'))
  config = {
      'tokenizer_class': 'PreTrainedTokenizerFast',
      'eos_token': '<|end|>',
      'clean_up_tokenization_spaces': False,
      'chat_template': _TEMPLATE,
  }
  (path / 'tokenizer_config.json').write_text(json.dumps(config))
  return path


def make_tokenizer() -> tokens.ServerTokenizer:
  return tokens.ServerTokenizer(tokenizer_path())


def logprob(token: int) -> float:
  """Return the log-prob that the fake gives a token, at any place."""
  return -0.125 * (1 + token % 7)


class FakeService:
  """Respects the contract of `rollout.service`; samples letters by a hash.

  A job's token t is a function of (prompt, seed, version, t), unless a script
  says what all jobs answer. The thread takes one step at a time: each running
  job gets `per_step` tokens, and one chunk.
  """

  def __init__(
      self,
      *,
      slots: int = 4,
      max_waiting: int = 64,
      step_seconds: float = 0.0,
      context_tokens: int = 2048,
  ):
    self.script: Callable[[service_lib.Job], Sequence[int]] | None = None
    self.broken = ''  # Why nothing is sampled any more.
    self.per_step = 1
    self.warm = False
    self.callers: dict[str, str] = {}  # Of jobs, by rid.
    self.step_seconds = step_seconds
    self.updates: list[tuple[str, str, bool, bool]] = []
    self._decode = make_tokenizer().decode_all
    self._slots = slots
    self._max_waiting = max_waiting
    self._context_tokens = context_tokens
    self._version = 'v0'
    self._paused = False
    self._closed = False
    self._released: set[str] = set()
    self._prefixes: set[tuple[int, ...]] = set()
    self._waiting: dict[str, _Running] = {}
    self._running: dict[str, _Running] = {}
    # Chunks are delivered by the thread alone, abortions included.
    self._outbox: list[tuple[service_lib.Listener, service_lib.Chunk]] = []
    self._counts = dict.fromkeys(
        ('prompt', 'generated', 'cached', 'finished', 'aborted', 'refused'), 0
    )
    self._changed = threading.Condition(threading.RLock())
    self._thread = threading.Thread(target=self._loop, daemon=True)
    self._thread.start()

  @property
  def alive(self) -> bool:
    return not self.broken

  @property
  def version(self) -> str:
    return self._version

  @property
  def paused(self) -> bool:
    return self._paused

  def warm_up(self) -> None:
    self.warm = True

  def submit(
      self,
      jobs: Sequence[service_lib.Job],
      listeners: Sequence[service_lib.Listener],
  ) -> None:
    with self._changed:
      if self.broken:
        raise service_lib.ServiceFailedError(self.broken)
      if self._closed:
        raise service_lib.QueueFullError('closed')
      for job in jobs:
        if job.rid in self._waiting or job.rid in self._running:
          raise ValueError(f'rid: {job.rid!r} is in use')
        if (
            len(job.prompt_tokens) + job.params.max_tokens
            > self._context_tokens
        ):
          raise ValueError('prompt_tokens: too long')
        if not all(0 <= t < VOCAB for t in job.prompt_tokens):
          raise ValueError('prompt_tokens: outside the vocabulary')
      if len(self._waiting) + len(jobs) > self._max_waiting:
        self._counts['refused'] += len(jobs)
        raise service_lib.QueueFullError('the queue is full')
      for job, listener in zip(jobs, listeners, strict=True):
        self._waiting[job.rid] = _Running(job, listener)
        self.callers[job.rid] = job.caller
      self._changed.notify_all()

  def abort(self, rid: str, message: str = '') -> bool:
    with self._changed:
      entry = self._waiting.pop(rid, None) or self._running.pop(rid, None)
      if entry is None:
        return False
      self._counts['aborted'] += 1
      self._end(entry, (), service_lib.Finish('abort', None, message))
      return True

  def abort_all(self, message: str = '') -> int:
    with self._changed:
      rids = [*self._waiting, *self._running]
      for rid in rids:
        self.abort(rid, message)
      return len(rids)

  def pause(self, mode: str) -> None:
    with self._changed:
      self._paused = True
      if mode == 'abort':
        self.abort_all('paused')
      elif mode == 'retract':
        self._waiting = {**self._running, **self._waiting}
        self._running = {}

  def resume(self) -> None:
    with self._changed:
      self._paused = False
      self._changed.notify_all()

  def update_weights(
      self, path: str, version: str, *, abort_all: bool, flush: bool
  ) -> int:
    if not pathlib.Path(path).is_dir():
      raise ValueError(f'{path} is no directory')
    with self._changed:
      if abort_all:
        self.abort_all('new weights')
      self._version = version
      self.updates.append((path, version, abort_all, flush))
      return len(self._running)

  def flush(self) -> bool:
    with self._changed:
      if self._running or self._waiting:
        return False
      self._prefixes.clear()
      return True

  def release_memory(self, tags: Sequence[str]) -> None:
    with self._changed:
      if self._running or self._waiting:
        raise ValueError('samples are running')
      self._released |= set(tags)

  def restore_memory(self, tags: Sequence[str]) -> None:
    with self._changed:
      self._released -= set(tags)

  def stats(self) -> service_lib.Stats:
    with self._changed:
      return service_lib.Stats(
          running=len(self._running),
          waiting=len(self._waiting),
          slots=self._slots,
          prompt_tokens=self._counts['prompt'],
          generated_tokens=self._counts['generated'],
          cached_tokens=self._counts['cached'],
          finished=self._counts['finished'],
          aborted=self._counts['aborted'],
          refused=self._counts['refused'],
          weight_updates=len(self.updates),
          cached_prefix_tokens=sum(map(len, self._prefixes)),
      )

  def close(self, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    with self._changed:
      self._closed = True
    while self._busy and time.monotonic() < deadline:
      time.sleep(0.01)
    with self._changed:
      self.abort_all('closed')
      self._changed.notify_all()
    if threading.current_thread() is not self._thread:
      self._thread.join(10)

  @property
  def _busy(self) -> bool:
    return bool(self._running or self._waiting or self._outbox)

  def _loop(self) -> None:
    while True:
      with self._changed:
        while not self._outbox and (self._paused or not self._busy):
          if self._closed:
            return
          self._changed.wait()
        if not self._paused:
          self._step()
        outbox, self._outbox = self._outbox, []
      for listener, chunk in outbox:
        listener(chunk)
      time.sleep(self.step_seconds)  # Of 0 too: others get a turn.

  def _step(self) -> None:
    while self._waiting and len(self._running) < self._slots:
      rid = next(iter(self._waiting))
      self._running[rid] = entry = self._waiting.pop(rid)
      self._counts['prompt'] += len(entry.job.prompt_tokens)
    for rid, entry in list(self._running.items()):
      new: list[int] = []
      finish = None
      if not entry.job.params.max_tokens:
        finish = service_lib.Finish('length')
      while finish is None and len(new) < self.per_step:
        new.append(self._sample(entry.job, len(entry.ids)))
        entry.ids.append(new[-1])
        finish = self._finish(entry)
      self._counts['generated'] += len(new)
      if finish:
        del self._running[rid]
        self._counts['finished'] += 1
        self._end(entry, new, finish)
      else:
        self._put(entry, new, None)

  def _sample(self, job: service_lib.Job, position: int) -> int:
    if self.script:
      tokens = self.script(job)
      return tokens[position] if position < len(tokens) else ord('.')
    key = repr((job.prompt_tokens, job.seed, self._version, position))
    return ord('a') + hashlib.sha256(key.encode()).digest()[0] % 26

  def _finish(self, entry: '_Running') -> service_lib.Finish | None:
    params, ids = entry.job.params, entry.ids
    if len(ids) > params.min_tokens:
      ends = params.stop_token_ids + (() if params.ignore_eos else (EOS,))
      if ids[-1] in ends:
        return service_lib.Finish('stop', ids[-1])
    text = self._decode(ids) if params.stop else ''
    for stop in params.stop:
      if stop in text:
        return service_lib.Finish('stop', stop)
    if len(ids) >= params.max_tokens:
      return service_lib.Finish('length')
    return None

  def _end(
      self,
      entry: '_Running',
      new: Sequence[int],
      finish: service_lib.Finish,
  ) -> None:
    self._put(entry, new, finish)
    self._changed.notify_all()

  def _put(
      self,
      entry: '_Running',
      new: Sequence[int],
      finish: service_lib.Finish | None,
  ) -> None:
    job, prompt, cached = entry.job, (), 0
    top = tuple((t, logprob(t)) for t in range(job.top_logprobs))
    if not entry.started:
      entry.started = True
      if job.prompt_tokens in self._prefixes:
        cached = len(job.prompt_tokens) - 1
        self._counts['cached'] += cached
      self._prefixes.add(job.prompt_tokens)
      if job.logprob_start is not None:
        prompt = tuple(
            service_lib.Token(t, logprob(t) if i else None, top if i else ())
            for i, t in enumerate(job.prompt_tokens)
        )[job.logprob_start :]
    tokens = tuple(service_lib.Token(t, logprob(t), top) for t in new)
    chunk = service_lib.Chunk(tokens, self._version, finish, prompt, cached)
    self._outbox.append((entry.listener, chunk))


class _Running:
  """A job and its tokens so far."""

  def __init__(self, job: service_lib.Job, listener: service_lib.Listener):
    self.job = job
    self.listener = listener
    self.ids: list[int] = []
    self.started = False


def make_settings(**overrides) -> settings_lib.Settings:
  defaults = dict(
      model_name='tiny',
      model_path='/models/tiny',
      vocab_size=VOCAB,
      context_tokens=1024,
      sampled_tokens=512,
      max_samples=64,
      client_seconds=5.0,
      health_seconds=0.6,
      weight_roots=(os.path.realpath(tempfile.gettempdir()),),
  )
  return settings_lib.Settings(**(defaults | overrides))


class Server:
  """A real uvicorn in a thread."""

  def __init__(
      self,
      service: FakeService,
      *,
      open_now: bool = True,
      sndbuf: int = 0,
      **settings,
  ):
    self.app = app_lib.App(make_tokenizer(), make_settings(**settings))
    self.host = self.app.host
    if open_now:
      self.host.open(service)
    sock = socket.socket()
    if sndbuf:
      sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sndbuf)
    sock.bind(('127.0.0.1', 0))
    self.port = sock.getsockname()[1]
    self.url = f'http://127.0.0.1:{self.port}'
    settings = self.app.host.settings
    config = web.config(self.app.asgi, settings, log_level='critical')
    self._server = uvicorn.Server(config)
    self._thread = threading.Thread(
        target=self._server.run, kwargs={'sockets': [sock]}, daemon=True
    )
    self._thread.start()
    deadline = time.monotonic() + 10
    while not self._server.started and time.monotonic() < deadline:
      time.sleep(0.005)

  def client(self, **kwargs) -> httpx2.Client:
    return httpx2.Client(base_url=self.url, timeout=20, verify=False, **kwargs)

  def close(self) -> None:
    self._server.should_exit = self._server.force_exit = True
    self._thread.join(10)
    self.host.close()


@contextlib.contextmanager
def serving(service: FakeService, **kwargs):
  """A client of a server that ends with the context."""
  server = Server(service, **kwargs)
  try:
    with server.client() as client:
      yield client
  finally:
    server.close()


def events(response: httpx2.Response) -> list:
  """Parsed events of a stream, '[DONE]' included."""
  found = []
  for line in response.iter_lines():
    if line:
      assert line.startswith('data: '), line
      data = line.removeprefix('data: ')
      found.append(data if data == '[DONE]' else json.loads(data))
  return found


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
  """Return whether a condition comes true in time."""
  deadline = time.monotonic() + seconds
  while time.monotonic() < deadline:
    if condition():
      return True
    time.sleep(0.01)
  return condition()
