"""The ASGI application: routes, keys, request bodies, answers."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
import functools
import logging
import time
from typing import Any

import fastapi
from fastapi import responses
from starlette import exceptions
from starlette import requests
from starlette import types as asgi

import evojax
from evojax.rollout import service as service_lib
from evojax.rollout.server import errors
from evojax.rollout.server import gate
from evojax.rollout.server import host as host_lib
from evojax.rollout.server import native
from evojax.rollout.server import openai
from evojax.rollout.server import protocol
from evojax.rollout.server import samples
from evojax.rollout.server import settings as settings_lib
from evojax.rollout.server import tokens

_LOG = logging.getLogger(__name__)
_HOST = host_lib.Host
_Response, _json = responses.Response, responses.JSONResponse
# Path -> methods, model of the body, and the function that prepares samples.
_SAMPLING = {
    '/generate': ('POST PUT', protocol.Generate, native.prepare),
    '/v1/completions': ('POST', protocol.Completion, openai.prepare_completion),
    '/v1/chat/completions': ('POST', protocol.Chat, openai.prepare_chat),
}
_TENSORS = '/update_weights_from_tensor'
# Path -> methods, model of the body, and the function that returns the answer.
_MANAGING = {
    '/pause_generation': ('POST', protocol.Pause, _HOST.pause),
    '/continue_generation': ('POST', protocol.Empty, _HOST.resume),
    '/update_weights_from_disk': ('POST', protocol.Update, _HOST.update),
    _TENSORS: ('POST', protocol.Tensors, _HOST.receive),
    '/begin_weight_update': ('POST', protocol.Empty, _HOST.begin_update),
    '/end_weight_update': ('POST', protocol.Empty, _HOST.end_update),
    '/release_memory_occupation': ('POST', protocol.Tags, _HOST.release),
    '/resume_memory_occupation': ('POST', protocol.Tags, _HOST.restore),
}
_FROM_DISK = (
    'needs torch in the server; call /update_weights_from_tensor with tensors'
    ' by value, or write a Hugging Face directory and call'
    ' /update_weights_from_disk'
)
# SGLang's paths that are refused -> the reason, and what to call instead.
_ELSEWHERE = {
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
    '/pull_weights': (
        'weights are not copied; write a Hugging Face directory that the server'
        ' sees and call /update_weights_from_disk'
    ),
    '/post_process_weights': (
        'nothing is left to do after /update_weights_from_disk'
    ),
    '/weights_checker': (
        'weights are not compared here; meta_info.weight_version says which are'
        ' served since /update_weights_from_disk'
    ),
}
# Paths that need the admin key: they affect the weights or all clients.
_ADMIN = frozenset(('/flush_cache', *_MANAGING, *_ELSEWHERE))
# Number of bodies of the largest size that may be held in memory at once.
_LARGE_BODIES = 16
_SHOWN_PATH = 200  # Characters of an unknown path in a message.
# nginx's status if the client disconnects before the answer; only logged.
_CLIENT_GONE = 499


class App:
  """An ASGI application; it serves once its host has a service.

  Attributes:
    host: The state that all requests share.
    asgi: The application for a web server.
  """

  def __init__(
      self, tokenizer: tokens.ServerTokenizer, settings: settings_lib.Settings
  ):
    """Add routes and middleware; the tokenizer must not be used elsewhere."""
    self.host = host_lib.Host(tokenizer, settings)
    self._created = int(time.time())
    self._held = 0  # Bytes of large bodies being read.
    known = (errors.ApiError, exceptions.HTTPException, Exception)
    known += host_lib.SERVICE_ERRORS
    self.asgi = fastapi.FastAPI(
        openapi_url=None,
        redirect_slashes=False,
        exception_handlers=dict.fromkeys(known, _on_error),
    )
    self.asgi.add_middleware(gate.Gate, settings=settings, admin_paths=_ADMIN)
    routes = [
        ('GET', '/health', self._health),
        ('GET', '/health_generate', self._health_generate),
        ('GET', '/metrics', self._metrics),
        ('GET', '/get_model_info', self._model_info),
        ('GET', '/model_info', self._model_info),
        ('GET', '/get_weight_version', self._model_info),
        ('GET', '/v1/loads', self._loads),
        ('GET', '/get_server_info', self._server_info),
        ('GET', '/server_info', self._server_info),
        ('GET', '/v1/models', self._models),
        ('GET', '/v1/models/{model:path}', self._model),
        ('POST', '/abort_request', self._abort),
        # slime and verl use GET. This is safe: a flush changes no answer, only
        # how long it takes.
        ('GET POST', '/flush_cache', self._flush),
        *(('POST', path, self._refuse) for path in _ELSEWHERE),
    ]
    for path, (methods, model, work) in {**_SAMPLING, **_MANAGING}.items():
      answer = self._sample if path in _SAMPLING else self._manage
      routes.append((methods, path, functools.partial(answer, model, work)))
    for methods, path, endpoint in routes:
      # Starlette's routes, because FastAPI's resolve dependencies at every
      # call.
      self.asgi.add_route(path, endpoint, methods=methods.split())

  # Monitoring.

  async def _health(self, _: requests.Request) -> _Response:
    return _Response(status_code=200 if self.host.phase == 'up' else 503)

  async def _health_generate(self, request: requests.Request):
    healthy = self.host.phase == 'up' and await _unless_gone(
        request.receive, self.host.health_generate()
    )
    return _Response(status_code=200 if healthy else 503)

  async def _metrics(self, _: requests.Request) -> _Response:
    return _Response(
        self.host.metrics.render(),
        media_type='text/plain; version=0.0.4; charset=utf-8',
    )

  async def _model_info(self, _: requests.Request) -> _Response:
    info = {
        'is_generation': True,
        'preferred_sampling_params': None,
        'weight_version': self.host.weight_version,
        'max_context_length': self.host.settings.context_tokens,
    }
    return _json(self._identity() | info)

  async def _loads(self, _: requests.Request) -> _Response:
    """Return the load in SGLang's format; trainers wait until it is 0."""
    stats = self.host.service.stats()
    load = {
        'dp_rank': 0,
        'num_running_reqs': stats.running,
        'num_waiting_reqs': stats.waiting,
        'num_total_reqs': stats.running + stats.waiting,
    }
    return _json({'timestamp': time.time(), 'loads': [load]})

  async def _server_info(self, _: requests.Request) -> _Response:
    settings = self.host.settings
    info = {
        'context_length': settings.context_tokens,
        'max_req_input_len': settings.context_tokens - 1,
        'max_new_tokens': settings.sampled_tokens,
        'max_samples_per_request': settings.max_samples,
        'version': evojax.__version__,
    }
    info |= {**settings.info, **self.host.info()}
    return _json(self._identity() | info)

  def _identity(self) -> dict[str, Any]:
    """Return the fields that identify the policy in both infos."""
    settings = self.host.settings
    return {
        'model_path': settings.model_path,
        'tokenizer_path': settings.model_path,
        'served_model_name': settings.model_name,
        'vocab_size': settings.vocab_size,
    }

  async def _models(self, _: requests.Request) -> _Response:
    return _json({'object': 'list', 'data': [self._card()]})

  async def _model(self, request: requests.Request) -> _Response:
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

  # Sampling and managing.

  async def _sample(
      self,
      model: type[protocol.M],
      prepare: Callable[..., Awaitable[native.Generation]],
      request: requests.Request,
  ) -> _Response:
    """Parse a request by its model, sample, and return the answer."""
    asked = await self._read(request, model)
    ready = await prepare(self.host, asked)
    caller = request.scope['caller']
    batch = self.host.run(ready.asks, ready.names, asked.stream, caller)
    if asked.stream:
      seconds = self.host.settings.client_seconds
      return EventStream(batch, ready.stream(batch), seconds)
    with batch:  # Ends the samples if the client disconnects.
      await _unless_gone(request.receive, batch.finished())
      return _json(ready.answer(batch))

  async def _manage(
      self,
      model: type[protocol.M],
      work: Callable[[host_lib.Host, protocol.M], Awaitable[Any]],
      request: requests.Request,
  ) -> _Response:
    """Parse a request by its model, do the host's work, return the answer."""
    return _json(await work(self.host, await self._read(request, model)))

  async def _abort(self, request: requests.Request) -> _Response:
    asked = await self._read(request, protocol.Abort)
    message = asked.abort_message or 'aborted by /abort_request'
    if asked.abort_all:
      if not request.scope['is_admin']:
        raise errors.ApiError(401, 'abort_all: needs the admin key')
      self.host.service.abort_all(message)
    elif asked.rid:
      # An unknown name is not an error: the request may just have ended.
      self.host.abort(asked.rid, message)
    else:
      raise errors.bad_request('rid', 'missing; or set abort_all')
    return _Response(status_code=200)

  async def _flush(self, _: requests.Request) -> _Response:
    if await self.host.flush():
      return responses.PlainTextResponse('Cache flushed.\n')
    raise errors.ApiError(400, 'the cache is not flushed while samples run')

  async def _refuse(self, request: requests.Request) -> _Response:
    path = request.url.path
    message = f'{path}: {_ELSEWHERE[path]}; or run SGLang'
    raise errors.failure(message, status=501)

  async def _read(
      self, request: requests.Request, model: type[protocol.M]
  ) -> protocol.M:
    """Read and validate the body of a request.

    Raises:
      ApiError: 400 if it is not valid for the endpoint, 413 if it is too large,
        408 if it does not arrive in time, 503 if there are too many.
    """
    settings = self.host.settings
    body, most = bytearray(), settings.body_bytes
    if model is protocol.Tensors:
      # Base64 takes 4 bytes for 3, and each rank may get its own copy.
      most += 3 * settings.tensor_bytes

    def check(size: int) -> None:
      if size > most:
        raise errors.ApiError(413, f'the body exceeds {most} bytes')

    check(int(request.headers.get('content-length', 0)))
    held = 0  # Bytes of this body counted in self._held.
    try:
      async with asyncio.timeout(settings.client_seconds):
        async for part in request.stream():
          check(len(body) + len(part))
          body += part
          if len(body) > host_lib.SMALL_BODY:
            self._held += len(body) - held
            held = len(body)
            if self._held > _LARGE_BODIES * most:
              raise errors.ApiError(503, 'too many large requests are arriving')
      return await self.host.parse(model, bytes(body))
    except TimeoutError:
      message = f'no body within {settings.client_seconds:g} seconds'
      raise errors.ApiError(408, message) from None
    except requests.ClientDisconnect:
      raise errors.ApiError(_CLIENT_GONE, 'the client is gone') from None
    finally:
      self._held -= held


async def _unless_gone(receive: asgi.Receive, work: Awaitable[Any]) -> Any:
  """Await work, but only while the client stays connected.

  Returns:
    The result of the work.

  Raises:
    ApiError: 499 if the client disconnects first; the work is cancelled.
  """

  async def gone() -> None:
    while (await receive())['type'] != 'http.disconnect':
      pass

  tasks = [asyncio.ensure_future(one) for one in (work, gone())]
  try:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    if not tasks[0].done():
      raise errors.ApiError(_CLIENT_GONE, 'the client is gone')
    return tasks[0].result()
  finally:
    for task in tasks:
      task.cancel()
    # Cancelled work still cleans up; none of it may outlive the request.
    await asyncio.gather(*tasks, return_exceptions=True)


class EventStream(responses.StreamingResponse):
  """A stream of events; when it ends, so do the samples of its batch."""

  media_type = 'text/event-stream'

  def __init__(
      self, batch: samples.Batch, events: AsyncGenerator[bytes], seconds: float
  ):
    """Start nothing yet; a client may take `seconds` to read one event."""
    # The second header keeps nginx from collecting events before it sends them.
    headers = {'Cache-Control': 'no-cache', 'X-Accel-Buffering': 'no'}
    super().__init__(events, headers=headers)
    self._batch = batch
    self._seconds = seconds

  async def __call__(
      self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send
  ) -> None:
    async def write(message: asgi.Message) -> None:
      async with asyncio.timeout(self._seconds):
        await send(message)

    try:
      with self._batch:
        await super().__call__(scope, receive, write)
    except TimeoutError:
      _LOG.warning('a stream was not read for %g seconds', self._seconds)


async def _on_error(request: requests.Request, error: Exception) -> _Response:
  """Return the answer to an error; the web server itself logs bugs."""
  match error:
    case errors.ApiError():
      return error.response()
    case exceptions.HTTPException(status_code=405 as status):
      allowed = (error.headers or {}).get('Allow', '')
      message = f'{_place(request)}: use {allowed}'
    case exceptions.HTTPException():  # From the router, for a wrong path.
      status = error.status_code
      message = f'{_place(request)}: {error.detail}'
      if status == 404:
        message += '; run SGLang for what a trainer does not need'
    case service_lib.QueueFullError():
      status, message = 503, str(error) or 'the queue is full'
    case service_lib.ServiceFailedError():
      status, message = 500, str(error)
    case _:
      status, message = 500, 'internal error; see the log'
  return errors.ApiError(status, message).response()


def _place(request: requests.Request) -> str:
  return f'{request.method} {request.url.path[:_SHOWN_PATH]}'
