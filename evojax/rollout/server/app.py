"""The ASGI application: routes, keys, request bodies, answers."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
import contextlib
import functools
import hmac
import logging
import time
import types
from typing import Any

import fastapi
from fastapi import responses
from starlette import exceptions
from starlette import requests
from starlette import types as asgi

import evojax
from evojax.rollout.server import errors
from evojax.rollout.server import host as host_lib
from evojax.rollout.server import native
from evojax.rollout.server import openai
from evojax.rollout.server import protocol
from evojax.rollout.server import samples
from evojax.rollout.server import settings as settings_lib
from evojax.rollout.server import tokens

_LOG = logging.getLogger(__name__)
_JSON = 'application/json'
# Paths that need no key and are never refused: monitoring reads them.
_PUBLIC = frozenset(('/health', '/health_generate', '/metrics'))
# Paths that need the admin key: they touch the weights or everybody's samples.
_ADMIN = frozenset(
    (
        '/flush_cache',
        '/pause_generation',
        '/continue_generation',
        '/update_weights_from_disk',
        '/begin_weight_update',
        '/end_weight_update',
        '/release_memory_occupation',
        '/resume_memory_occupation',
    )
)
_FROM_DISK = (
    'needs torch in the server; write a Hugging Face directory and call'
    ' /update_weights_from_disk'
)
# SGLang's paths that are refused -> why, and what to call instead.
_ELSEWHERE = {
    '/update_weights_from_tensor': _FROM_DISK,
    '/update_weights_from_distributed': _FROM_DISK,
    '/update_weights_from_ipc': _FROM_DISK,
    '/init_weights_update_group': _FROM_DISK,
    '/destroy_weights_update_group': _FROM_DISK,
    '/init_weights_send_group_for_remote_instance': _FROM_DISK,
    '/send_weights_to_remote_instance': _FROM_DISK,
    '/update_weight_version': (
        'a version belongs to its weights; pass weight_version to'
        ' /update_weights_from_disk'
    ),
    '/load_lora_adapter': (
        'adapters are not served; merge them, write a Hugging Face directory'
        ' and call /update_weights_from_disk'
    ),
}
# Body of a request to sample -> its preparation, and the module that shapes the
# answer or the stream.
_SAMPLING: dict[type, tuple[Callable[..., Any], types.ModuleType]] = {
    protocol.Generate: (native.prepare, native),
    protocol.Completion: (openai.prepare_completion, openai),
    protocol.Chat: (openai.prepare_chat, openai),
}
# nginx's status where the client left before there was an answer; it is logged.
_CLIENT_GONE = 499


class App:
  """An ASGI application; it serves once its host is given a service.

  Attributes:
    host: The state that all requests share.
    asgi: The application for a web server.
  """

  def __init__(
      self, tokenizer: tokens.ServerTokenizer, settings: settings_lib.Settings
  ):
    """Add routes and middleware; nobody else may use the tokenizer."""
    self.host = host_lib.Host(tokenizer, settings)
    self._created = int(time.time())
    self.asgi = fastapi.FastAPI(openapi_url=None, redirect_slashes=False)
    self.asgi.add_middleware(
        _Keys, api_key=settings.api_key, admin_key=settings.admin_key
    )
    self.asgi.add_middleware(_Limit, requests_at_once=settings.connections)
    self.asgi.add_exception_handler(errors.ApiError, _on_api_error)
    self.asgi.add_exception_handler(exceptions.HTTPException, _on_http_error)
    self.asgi.add_exception_handler(Exception, _on_bug)
    partial = functools.partial
    for methods, path, endpoint in (
        ('POST PUT', '/generate', partial(self._sample, protocol.Generate)),
        ('GET', '/health', self._health),
        ('GET', '/health_generate', self._health_generate),
        ('GET', '/metrics', self._metrics),
        ('GET', '/get_model_info', self._model_info),
        ('GET', '/model_info', self._model_info),
        ('GET', '/get_server_info', self._server_info),
        ('GET', '/server_info', self._server_info),
        ('POST', '/abort_request', self._abort),
        ('GET POST', '/flush_cache', self._flush),
        ('POST', '/pause_generation', self._pause),
        ('POST', '/continue_generation', self._continue),
        ('POST', '/update_weights_from_disk', self._update),
        ('POST', '/begin_weight_update', self._begin_update),
        ('POST', '/end_weight_update', self._end_update),
        ('GET POST', '/release_memory_occupation', self._release),
        ('GET POST', '/resume_memory_occupation', self._resume),
        ('GET', '/v1/models', self._models),
        ('GET', '/v1/models/{model:path}', self._model),
        ('POST', '/v1/completions', partial(self._sample, protocol.Completion)),
        ('POST', '/v1/chat/completions', partial(self._sample, protocol.Chat)),
        *(('POST', path, self._refuse) for path in _ELSEWHERE),
    ):
      # Starlette's routes: FastAPI's would look for dependencies at every call.
      self.asgi.add_route(path, endpoint, methods=methods.split())

  # Monitoring.

  async def _health(self, _: requests.Request) -> responses.Response:
    return responses.Response(status_code=200 if self._is_up else 503)

  async def _health_generate(
      self, request: requests.Request
  ) -> responses.Response:
    if not self._is_up:
      return responses.Response(status_code=503)
    healthy = await _unless_gone(request.receive, self.host.health_generate())
    return responses.Response(status_code=200 if healthy else 503)

  async def _metrics(self, _: requests.Request) -> responses.Response:
    return responses.Response(
        self.host.metrics.render(),
        media_type='text/plain; version=0.0.4; charset=utf-8',
    )

  async def _model_info(self, _: requests.Request) -> responses.Response:
    return _json(
        {
            **self._identity(),
            'is_generation': True,
            'preferred_sampling_params': None,
            'weight_version': self.host.weight_version,
            'max_context_length': self.host.settings.context_tokens,
        }
    )

  async def _server_info(self, _: requests.Request) -> responses.Response:
    settings = self.host.settings
    return _json(
        {
            **self._identity(),
            'context_length': settings.context_tokens,
            'max_req_input_len': settings.context_tokens - 1,
            'max_new_tokens': settings.sampled_tokens,
            'max_samples_per_request': settings.max_samples,
            'version': evojax.__version__,
            **settings.info,
            **self.host.info(),
        }
    )

  def _identity(self) -> dict[str, Any]:
    """Return the fields that name the policy in both infos."""
    settings = self.host.settings
    return {
        'model_path': settings.model_path,
        'tokenizer_path': settings.model_path,
        'served_model_name': settings.model_name,
        'vocab_size': settings.vocab_size,
    }

  @property
  def _is_up(self) -> bool:
    return self.host.phase == 'up'

  # Sampling.

  async def _sample(
      self, model: type[protocol.M], request: requests.Request
  ) -> responses.Response:
    """Sample what a body of that model asks for."""
    prepare, family = _SAMPLING[model]
    asked = await self._read(request, model)
    ready = await prepare(self.host, asked)
    batch = self.host.run(
        ready.asks,
        live=asked.stream,
        names=ready.names,
        caller=request.scope['caller'],
    )
    if asked.stream:
      events = family.stream(self.host, ready, batch)
      return EventStream(batch, events, self.host.settings.client_seconds)
    with batch:  # Ends the samples if the client leaves.
      await _unless_gone(request.receive, batch.finished())
      return _json(family.answer(self.host, ready, batch))

  async def _models(self, _: requests.Request) -> responses.Response:
    return _json({'object': 'list', 'data': [self._card()]})

  async def _model(self, request: requests.Request) -> responses.Response:
    model = request.path_params['model']
    if model != self.host.settings.model_name:
      raise errors.ApiError(404, f'model: there is no {model!r}', param='model')
    return _json(self._card())

  def _card(self) -> dict[str, Any]:
    settings = self.host.settings
    return {
        'id': settings.model_name,
        'object': 'model',
        'created': self._created,
        'owned_by': 'evojax',
        'root': settings.model_path,
        'parent': None,
        'max_model_len': settings.context_tokens,
    }

  # Managing.

  async def _abort(self, request: requests.Request) -> responses.Response:
    asked = await self._read(request, protocol.Abort)
    message = asked.abort_message or 'aborted by /abort_request'
    if asked.abort_all:
      if not request.scope['is_admin']:
        raise errors.ApiError(401, 'abort_all: needs the admin key')
      self.host.abort_all(message)
    elif asked.rid:
      # An unknown request is no error: it may just have ended.
      self.host.abort(asked.rid, message)
    else:
      raise errors.bad_request('rid', 'missing; or set abort_all')
    return responses.Response(status_code=200)

  async def _flush(self, _: requests.Request) -> responses.Response:
    if await self.host.flush():
      return responses.PlainTextResponse('Cache flushed.\n')
    raise errors.ApiError(400, 'the cache is not flushed while samples run')

  async def _pause(self, request: requests.Request) -> responses.Response:
    asked = await self._read(request, protocol.Pause)
    await self.host.pause(asked.mode)
    return _json({'message': 'generation is paused', 'status': 'ok'})

  async def _continue(self, request: requests.Request) -> responses.Response:
    await self._read(request, protocol.Empty)
    await self.host.resume()
    return _json({'message': 'generation continues', 'status': 'ok'})

  async def _update(self, request: requests.Request) -> responses.Response:
    asked = await self._read(request, protocol.UpdateFromDisk)
    version = asked.weight_version
    try:
      version, paused = await self.host.update_weights(
          asked.model_path,
          None if version is None else str(version),
          abort_all=asked.abort_all_requests,
          flush=asked.flush_cache,
      )
    except (ValueError, OSError) as e:
      return _failure(f'the old weights stay: {e}', num_paused_requests=0)
    return _json(
        {
            'success': True,
            'message': f'the weights are of version {version!r} now',
            'num_paused_requests': paused,
            'weight_version': version,
        }
    )

  async def _begin_update(
      self, request: requests.Request
  ) -> responses.Response:
    await self._read(request, protocol.Empty)
    await self.host.begin_update()
    return _json({'success': True, 'message': 'sampling waits'})

  async def _end_update(self, request: requests.Request) -> responses.Response:
    await self._read(request, protocol.Empty)
    await self.host.end_update()
    return _json({'success': True, 'message': 'the update is closed'})

  async def _release(self, request: requests.Request) -> responses.Response:
    asked = await self._read(request, protocol.Tags)
    await self.host.release_memory(asked.tags)
    return _json(None)

  async def _resume(self, request: requests.Request) -> responses.Response:
    asked = await self._read(request, protocol.Tags)
    await self.host.resume_memory(asked.tags)
    return _json(None)

  async def _refuse(self, request: requests.Request) -> responses.Response:
    path = request.url.path
    return _failure(f'{path}: {_ELSEWHERE[path]}')

  async def _read(
      self, request: requests.Request, model: type[protocol.M]
  ) -> protocol.M:
    """Read and validate the body of a request.

    Raises:
      ApiError: 400 if it is not what the endpoint takes, 413 if it is too
        large, 408 if it does not come in time.
    """
    settings = self.host.settings
    body = bytearray()
    try:
      async with asyncio.timeout(settings.client_seconds):
        async for part in request.stream():
          body += part
          if len(body) > settings.body_bytes:
            raise errors.ApiError(
                413, f'the body exceeds {settings.body_bytes} bytes'
            )
    except TimeoutError:
      raise errors.ApiError(
          408, f'no body within {settings.client_seconds:g} seconds'
      ) from None
    except requests.ClientDisconnect:
      raise _GoneError from None
    return protocol.parse(model, bytes(body))


class _GoneError(errors.ApiError):
  """The client has left, so that nobody reads the answer."""

  def __init__(self):
    super().__init__(_CLIENT_GONE, 'the client is gone')


async def _unless_gone(receive: asgi.Receive, work: Awaitable[Any]) -> Any:
  """Await some work for as long as the client waits for it.

  Raises:
    _GoneError: If the client leaves first; the work is cancelled.
  """
  task = asyncio.ensure_future(work)
  gone = asyncio.ensure_future(_gone(receive))
  try:
    await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
      raise _GoneError
    return task.result()
  finally:
    task.cancel()
    gone.cancel()
    # Work that was cancelled still tidies up; nothing may outlive the request.
    await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(receive: asgi.Receive) -> None:
  """Return when the client has left."""
  while (await receive())['type'] != 'http.disconnect':
    pass


class EventStream(responses.Response):
  """A stream of events; its batch ends when the client leaves."""

  media_type = 'text/event-stream'

  def __init__(
      self, batch: samples.Batch, events: AsyncGenerator[bytes], seconds: float
  ):
    """Start nothing; a client may take `seconds` to read one event."""
    super().__init__(headers={'Cache-Control': 'no-cache'})
    del self.headers['content-length']
    self._batch = batch
    self._events = events
    self._seconds = seconds

  async def __call__(
      self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send
  ) -> None:
    with self._batch, contextlib.suppress(_GoneError):
      await _unless_gone(receive, self._write(send))

  async def _write(self, send: asgi.Send) -> None:
    begin = {'status': self.status_code, 'headers': self.raw_headers}
    await send({'type': 'http.response.start', **begin})
    async with contextlib.aclosing(self._events) as events:
      async for event in events:
        part = {'type': 'http.response.body', 'body': event, 'more_body': True}
        try:
          async with asyncio.timeout(self._seconds):
            await send(part)
        except TimeoutError:
          _LOG.warning('a stream was not read for %g seconds', self._seconds)
          return
    await send({'type': 'http.response.body', 'body': b''})


class _Limit:
  """Middleware that bounds the requests at once; monitoring always passes."""

  def __init__(self, app: asgi.ASGIApp, *, requests_at_once: int):
    self._app = app
    self._most = requests_at_once
    self._count = 0

  async def __call__(
      self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send
  ) -> None:
    if scope['type'] != 'http' or scope['path'] in _PUBLIC:
      await self._app(scope, receive, send)
      return
    if self._count >= self._most:
      error = errors.unavailable(f'{self._most} requests are being answered')
      response = _error(error)
      response.headers['Connection'] = 'close'  # Its body stays unread.
      await response(scope, receive, send)
      return
    self._count += 1
    try:
      await self._app(scope, receive, send)
    finally:
      self._count -= 1


class _Keys:
  """Middleware that refuses requests without the key of their path."""

  def __init__(self, app: asgi.ASGIApp, *, api_key: str, admin_key: str):
    self._app = app
    self._api_key = api_key
    self._admin_key = admin_key

  async def __call__(
      self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send
  ) -> None:
    if scope['type'] != 'http':
      await self._app(scope, receive, send)
      return
    given = dict(scope['headers']).get(b'authorization', b'')
    has_api, has_admin = (
        # Compared in a time that does not depend on the key.
        bool(key) and hmac.compare_digest(given, f'Bearer {key}'.encode())
        for key in (self._api_key, self._admin_key)
    )
    may_sample = has_api or has_admin or not self._api_key
    is_admin = has_admin if self._admin_key else may_sample
    scope['is_admin'] = is_admin
    # A wrong key counts as no key: one client could invent many.
    key = 'admin' if has_admin else 'api' if has_api else 'no'
    address, _ = scope.get('client') or ('', 0)
    scope['caller'] = f'{address}, {key} key'
    path = scope['path']
    needs_admin = path in _ADMIN or path in _ELSEWHERE
    if path in _PUBLIC or (is_admin if needs_admin else may_sample):
      await self._app(scope, receive, send)
      return
    which = 'admin key' if needs_admin and self._admin_key else 'API key'
    error = errors.ApiError(401, f'{path} needs the {which}: Bearer KEY')
    await _error(error)(scope, receive, send)


def _json(value: Any, status: int = 200) -> responses.Response:
  return responses.Response(protocol.dumps(value), status, media_type=_JSON)


def _failure(message: str, **more: Any) -> responses.Response:
  """Return a 400 as the endpoints for weights report it."""
  error = errors.body(errors.ApiError(400, message))
  return _json({'success': False, 'message': message, **more, **error}, 400)


def _error(error: errors.ApiError) -> responses.Response:
  response = _json(errors.body(error), error.status)
  response.headers.update(error.headers)
  return response


async def _on_api_error(
    request: requests.Request, error: errors.ApiError
) -> responses.Response:
  del request
  return _error(error)


async def _on_http_error(
    request: requests.Request, error: exceptions.HTTPException
) -> responses.Response:
  """Answer the router's errors: unknown paths and methods."""
  where = f'{request.method} {request.url.path}'
  message = f'{where}: {error.detail}'
  return _error(errors.ApiError(error.status_code, message))


async def _on_bug(
    request: requests.Request, error: Exception
) -> responses.Response:
  """Answer 500; the web server logs the error itself."""
  del request, error
  return _error(errors.ApiError(500, 'internal error; see the log'))
