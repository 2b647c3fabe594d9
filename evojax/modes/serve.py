"""--mode=serve: the policy behind SGLang's HTTP contract."""

import asyncio
from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import gc
import ipaddress
import logging
import pathlib
import signal
import socket
import threading
import types as python_types

import jax
import ml_collections
import uvicorn

from evojax import domains
from evojax.models import decoder
from evojax.models import policy as policy_lib
from evojax.models import tokenizer as tokenizer_lib
from evojax.modes import policies
from evojax.rollout import local_service
from evojax.rollout import sampling
from evojax.rollout import service as service_lib
from evojax.rollout import slots as slots_lib
from evojax.rollout.server import app as app_lib
from evojax.rollout.server import settings as settings_lib
from evojax.rollout.server import tokens
from evojax.rollout.server import web
from evojax.runtime import config_checks
from evojax.runtime import devices
from evojax.runtime import environment
from evojax.runtime import log_limit
from evojax.runtime import output
from evojax.runtime import preemption
from evojax.runtime import sharding

# Time to write the last answers after the last sample has ended.
_GOODBYE_SECONDS = 5
# Arguments of gc.set_threshold, above Python's own; `_Server._open` says why.
_GARBAGE_THRESHOLDS = (10_000, 20, 20)
_LIMITS = sampling.Limits()  # How much a request may ask for.
_Config, _Policy = ml_collections.ConfigDict, policy_lib.Policy


def run(
    config: _Config,
    port: int,
    host: str = '127.0.0.1',
    workdir: str = '',
    *,
    hosts: Sequence[str] = (),
    weights_root: Sequence[str] = (),
    insecure: bool = False,
) -> None:
  """Serve a policy until SIGTERM or SIGINT.

  The port answers at once; /health says 503 until the weights are loaded and
  the programs are compiled. After a signal, new requests are refused, and
  running ones get config.serve.shutdown_seconds to finish.

  Args:
    config: The config, with overrides applied.
    port: The port to listen on; 0 takes a free one, which is printed.
    host: The address to listen on; 0.0.0.0 means all addresses.
    workdir: Directory of a finished run, whose policy is served under the name
      of the directory; '' serves config.model.path under its own name.
    hosts: Further host names that clients may use in URLs; '*' allows any.
    weights_root: Directories below which clients may name new weights; see
      `_roots`.
    insecure: Whether other machines may be served without a key.

  Raises:
    ValueError: If the config, the model or the workdir is wrong, there are
      several processes, or other machines would be served without a key.
    OSError: If the port is taken.
  """
  if not insecure:
    _check_public(config, host)
  devices.trim_memory_after_compiling()
  config_checks.validate(config, trains=False)
  name = pathlib.Path(config.model.path.removeprefix('package:')).name
  if workdir:
    trained = policies.of_run(config, workdir)
    if trained is None:
      raise ValueError(
          f'--workdir={workdir} holds no run that trained a policy; leave it'
          f' out to serve config.model.path={config.model.path!r}'
      )
    config, name = trained, pathlib.Path(workdir).absolute().name
  if jax.process_count() > 1:
    raise ValueError(
        f'--mode=serve runs in one process, not in {jax.process_count()}: start'
        ' one server per host, without --distributed, and list them in the'
        " trainer's config.rollout.urls"
    )
  policy = _open_policy(config, config.model.path)
  settings = dataclasses.replace(
      _settings(config, policy, name),
      hosts=(host, *hosts),
      weight_roots=_roots(config, policy, weights_root),
  )
  output.say(f'policy: {policy.path}, served as {settings.model_name}')
  template = tokenizer_lib.template_options(config.model.to_dict())
  tokenizer = tokens.ServerTokenizer(policy.path, **template)
  serve(
      app_lib.App(tokenizer, settings),
      lambda: make_service(config, policy),
      listen(host, port, config.serve.client_seconds),
      shutdown_seconds=config.serve.shutdown_seconds,
  )


def _check_public(config: _Config, host: str) -> None:
  """Check that no other machine is served without a key."""
  if config.serve.api_key_env:
    return
  try:
    found = socket.getaddrinfo(host or '0.0.0.0', None)
    addresses = [ipaddress.ip_address(a[4][0].split('%')[0]) for a in found]
  except OSError:
    return  # `listen` reports what is wrong with the address.
  if not all(address.is_loopback for address in addresses):
    raise ValueError(
        f'--host={host}: anybody who reaches this address could sample and'
        ' replace the weights: name the environment variable with a key'
        ' in --config.serve.api_key_env, or add --insecure'
    )


def _roots(
    config: _Config, policy: _Policy, weights_root: Sequence[str]
) -> tuple[str, ...]:
  """Return the resolved directories that new weights may lie in or below.

  The policy's own directory is always one of them. Without --weights_root, the
  others are those that a trainer on this machine writes to: ./runs and
  config.rollout.weights_dir.
  """
  given = weights_root or ('runs', config.rollout.weights_dir)
  paths = [pathlib.Path(path).expanduser() for path in given if path]
  return tuple(str(path.resolve()) for path in (*paths, policy.path))


def _settings(
    config: _Config, policy: _Policy, name: str
) -> settings_lib.Settings:
  c = config.serve
  key = lambda name: environment.read_key(c[name], f'config.serve.{name}')
  return settings_lib.Settings(
      model_name=c.model_name or name,
      model_path=str(policy.path),
      vocab_size=policy.cfg.vocab_size,
      context_tokens=c.context_tokens,
      sampled_tokens=c.context_tokens - 1,
      max_samples=config.rollout.decode_slots + c.max_waiting,
      max_top_logprobs=_LIMITS.top_logprobs,
      max_stop_tokens=_LIMITS.stop_ids,
      max_logit_biases=_LIMITS.logit_bias,
      api_key=key('api_key_env'),
      admin_key=key('admin_key_env'),
      connections=c.connections,
      body_bytes=c.body_bytes,
      # Tensors of an update may have a wider dtype than the files.
      tensor_bytes=2
      * sum(file.stat().st_size for file in policy.path.glob('*.safetensors')),
      client_seconds=c.client_seconds,
      info={
          'max_queued_requests': c.max_waiting,
          'chunked_prefill_size': c.prefill_chunk,
          'dtype': config.model.compute_dtype,
          'enable_deterministic_sampling': True,  # Seeds of requests are used.
      },
  )


def make_service(config: _Config, policy: _Policy) -> service_lib.Service:
  """Read the weights and start the thread that samples.

  Raises:
    ValueError: If the weights cannot be read, or do not fit the mesh.
  """
  c, r = config.serve, config.rollout
  mesh = sharding.make_mesh(**config.mesh.to_dict())

  def load(path: str) -> decoder.Params:
    found = _open_policy(config, path)
    served = dataclasses.asdict(policy.cfg)
    differ = [
        f'{name}={value!r} instead of {served[name]!r}'
        for name, value in dataclasses.asdict(found.cfg).items()
        if value != served[name]
    ]
    if differ:
      raise ValueError(
          f'{found.path} is no policy of the shape that is served:'
          f' {", ".join(differ)}'
      )
    dtype = config.model.param_dtype
    return policy_lib.load_params(found, mesh, param_dtype=dtype)

  slots = slots_lib.Slots(
      policy.cfg,
      slots_lib.Shapes(
          max_prompt_tokens=c.context_tokens,
          max_tokens=c.context_tokens - 1,
          context_tokens=c.context_tokens,
          decode_slots=r.decode_slots,
          prefill_rows=r.prefill_rows,
          prefill_chunk=c.prefill_chunk,
          prefix_chunks=c.prefix_chunks,
      ),
      eos_ids=policy.tokenizer.eos_ids,
      limits=_LIMITS,
      mesh=mesh,
  )
  return local_service.LocalService(
      slots,
      decode_text=policy.tokenizer.decode_all,
      load=load,
      path=config.model.path,
      version=c.weight_version,
      refill_every=r.refill_every,
      max_waiting=c.max_waiting,
  )


def _open_policy(config: _Config, path: str) -> _Policy:
  """Open the policy at a path, with the shards and context of the server."""
  return policy_lib.open_policy(
      fsdp_shards=config.mesh.fsdp,
      tensor_shards=config.mesh.tensor,
      max_tokens=config.serve.context_tokens,
      **config.model.to_dict() | {'path': domains.policy_path(path)},
  )


def listen(host: str, port: int, client_seconds: float) -> socket.socket:
  """Return a listening socket; the kernel ends its dead connections.

  Args:
    host: IPv4 or IPv6 address, or a host name.
    port: 0 takes a free one.
    client_seconds: Time that a client may leave sent data unread.

  Raises:
    OSError: If the port is taken.
  """
  v6 = {'family': socket.AF_INET6, 'dualstack_ipv6': True}
  try:
    options = v6 if ':' in host else {}
    sock = socket.create_server((host, port), backlog=2048, **options)
  except OSError as e:
    raise OSError(f'--port={port}: cannot listen on {host}: {e}') from e
  # Connections inherit these options. Without them, a peer that vanished or
  # that reads nothing would hold its buffers for ever.
  sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
  if hasattr(socket, 'TCP_USER_TIMEOUT'):  # Linux.
    timeout = int(client_seconds * 1000)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout)
  return sock


def url_of(sock: socket.socket) -> str:
  """Return the URL of a listening socket; IPv6 addresses have brackets."""
  host, port = sock.getsockname()[:2]
  return f'http://[{host}]:{port}' if ':' in host else f'http://{host}:{port}'


def serve(
    app: app_lib.App,
    make: Callable[[], service_lib.Service],
    sock: socket.socket,
    *,
    shutdown_seconds: float,
) -> None:
  """Answer on a socket until SIGTERM or SIGINT; call it in the main thread.

  Args:
    app: The app; it gets its service here.
    make: Makes the service; it is called in a thread of its own.
    sock: The socket from `listen`, which is closed at the end.
    shutdown_seconds: Time for requests that run when the signal comes.

  Raises:
    Exception: The error of `make`, if it failed.
  """
  preemption.note()  # The server handles signals itself.
  limit = log_limit.Limit()
  for handler in logging.getLogger().handlers:
    handler.addFilter(limit)
  server = _Server(app, make, shutdown_seconds)
  output.say(f'listening on {url_of(sock)}')
  try:
    asyncio.run(server.main(sock))
  finally:
    sock.close()
    app.host.close()
    if server.service:
      server.service.close(0)
  if server.error and not server.signalled:
    raise server.error


class _Server(uvicorn.Server):
  """A server that answers while a thread makes the service behind it.

  It lets running samples finish after a signal: uvicorn itself would raise the
  signal again, and the process would not exit with code 0.
  """

  def __init__(
      self,
      app: app_lib.App,
      make: Callable[[], service_lib.Service],
      seconds: float,
  ):
    super().__init__(
        web.config(
            app.asgi,
            app.host.settings,
            log_level='warning',
            timeout_graceful_shutdown=int(seconds + _GOODBYE_SECONDS),
        )
    )
    self.service: service_lib.Service | None = None
    self.error: BaseException | None = None  # Raised by `make` or `warm_up`.
    self.signalled = ''  # Name of the signal that ends the server.
    self._host = app.host
    self._make = make
    self._seconds = seconds
    self._drain: asyncio.Task[None] | None = None
    self._loop: asyncio.AbstractEventLoop | None = None

  async def main(self, sock: socket.socket) -> None:
    """Serve until a signal comes or the start of the service fails."""
    self._loop = asyncio.get_running_loop()
    # The thread is a daemon, so that after a signal a long load of weights does
    # not keep the process alive longer than its requests may.
    thread = threading.Thread(target=self._start, name='start', daemon=True)
    thread.start()
    await self.serve(sockets=[sock])
    if self._drain:
      await self._drain
    await asyncio.to_thread(thread.join, self._seconds)

  def _start(self) -> None:
    """Make the service and hand it to the host, or stop the server."""
    try:
      self.service = self._make()
      self.service.warm_up()
    # The error is raised again where the server was called.
    except BaseException as e:  # pylint: disable=broad-except
      self.error = e
    # If a signal came first, the event loop is closed already.
    with contextlib.suppress(RuntimeError):
      self._loop.call_soon_threadsafe(self._open)

  def _open(self) -> None:
    if self.error:
      self.should_exit = True
      return
    # The objects that exist now will stay. Searching them for garbage again and
    # again took a tenth of the server's time, so they are frozen, and younger
    # objects are searched less often.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GARBAGE_THRESHOLDS)
    self._host.open(self.service)
    if self._host.phase == 'up':
      output.say('ready')

  def handle_exit(self, sig: int, frame: python_types.FrameType | None) -> None:
    """Handle a signal: the first lets samples finish, the second does not."""
    del frame
    self.force_exit, self.should_exit = self.should_exit, True
    if not self.signalled:
      self.signalled = signal.Signals(sig).name
      self._loop.call_soon_threadsafe(self._begin_drain)

  def _begin_drain(self) -> None:
    output.say(f'{self.signalled}: shutting down')
    self._drain = asyncio.ensure_future(self._host.drain(self._seconds))
