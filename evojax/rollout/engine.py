"""The in-process rollout engine: JAX, a key/value cache, continuous batching.

The engine takes a request batch and returns its episodes. As in a server,
`slots` computes and `scheduler` assigns the slots; here the caller's thread
drives both, so that all processes of a run make the same calls in the same
order. At fixed shapes, a sample's tokens and log-probs are bit-equal whatever
other samples are computed at the same time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import concurrent.futures
import functools
from typing import Any

import jax
import jax.numpy as jnp

from evojax import records
from evojax.models import decoder
from evojax.rollout import sampling
from evojax.rollout import scheduler
from evojax.rollout import service
from evojax.rollout import slots
from evojax.rollout import stops
from evojax.runtime import preemption
from evojax.runtime import sharding

_NEUTRAL = records.SamplingParams()


class Engine:
  """A sampler that computes in this process; see `records.RolloutEngine`."""

  def __init__(
      self,
      cfg: decoder.DecoderConfig,
      shapes: slots.Shapes,
      *,
      eos_ids: tuple[int, ...],
      decode_text: Callable[[Sequence[int]], str],
      decode_all: Callable[[Sequence[int]], str] | None = None,
      refill_every: int,
      copy_weights: bool = False,
      mesh: sharding.AnyMesh | None = None,
  ):
    """Create the engine; nothing is compiled yet.

    Args:
      cfg: Shape of the policy.
      shapes: Sizes of the sampler's arrays. Longer prompts and larger
        `SamplingParams.max_tokens` are refused.
      eos_ids: Tokens that end a completion.
      decode_text: Token ids -> text without special tokens.
      decode_all: The same with special tokens, which may be stop strings;
        default: decode_text.
      refill_every: Decode steps between refills; with 0, free slots are
        refilled only once all rows have ended.
      copy_weights: Whether to copy the weights; needed if the caller donates
        their buffers while the engine samples.
      mesh: Devices that compute; default: the first device.
    """
    # Called before each segment of decoding, see `records.RolloutEngine`. It
    # must return the same value in all processes that sample together.
    self.stopping: Callable[[], bool] = lambda: False
    self.policy_version = -1
    self._decode_text = decode_text
    self._copy_weights = copy_weights
    self._thread = concurrent.futures.ThreadPoolExecutor(1, 'rollout')
    self.slots = slots.Slots(cfg, shapes, eos_ids=eos_ids, mesh=mesh)
    self._new_schedule = functools.partial(
        scheduler.Scheduler,
        self.slots,
        decode_text=decode_all or decode_text,
        refill_every=refill_every,
        jobs_may_come=False,
    )
    self._schedule = self._new_schedule()

  def compilations(self) -> int:
    """Return the number of programs compiled so far.

    An engine compiles at most 3 programs, 2 more that copy chunks if it has a
    prefix cache, and 1 more per doubling of the chunk up to the longest prompt.
    """
    return self.slots.programs

  def metrics(self) -> Mapping[str, float]:
    """Return no metrics, since there are no servers to report about."""
    return {}

  def close(self) -> None:
    """Wait for the sampling that `begin` started."""
    self._thread.shutdown()

  def update_weights(self, params: decoder.Params, version: int) -> None:
    """Install weights, and drop everything computed with the old weights.

    Args:
      params: The parameters, on the device. Without `copy_weights` the engine
        keeps references to them, not copies, if they already have the compute
        dtype and are not split by fsdp.
      version: Recorded with every completion sampled from now on.
    """
    if self._copy_weights:
      self.slots.params = None  # Free the old weights before the copy is made.
      params = jax.tree.map(jnp.copy, params)
    self.slots.install(params)
    self._schedule.forget_prefixes()
    self.policy_version = version

  def begin(
      self, requests: Sequence[records.Request]
  ) -> concurrent.futures.Future[list[records.Episode]]:
    """Start `generate` in a thread; weights must not change before `finish`."""
    return self._thread.submit(self.generate, requests)

  def finish(
      self, pending: concurrent.futures.Future[list[records.Episode]]
  ) -> list[records.Episode]:
    """Wait for what `begin` started; return episodes, or raise its error."""
    return pending.result()

  def generate(
      self, requests: Sequence[records.Request]
  ) -> list[records.Episode]:
    """Sample every request; return the episodes in the order of the requests.

    Equal prompts should be neighbours: a prompt is prefilled only once while a
    row holds it. The prompt of a later turn of an episode begins with that of
    an earlier turn; its whole chunks are taken from the prefix cache, until the
    weights change. The tokens that an earlier turn sampled are prefilled again
    with the next turn. The cache holds nothing that decoding computed, because
    the bits of a sample would then depend on whether the cache had it.

    Raises:
      ValueError: If a request does not fit the engine's shapes, or no weights
        were installed.
      Interrupted: If the run was asked to stop.
    """
    episodes: dict[int, records.Episode] = {}
    with _Stream(self, episodes.__setitem__, expecting=False) as stream:
      stream.submit(dict(enumerate(requests)))
      while stream.work():
        pass
    return [episodes[i] for i in range(len(requests))]

  def stream(
      self, ended: Callable[[int, records.Episode], None]
  ) -> records.Stream:
    """Return a stream, which accepts requests while others are sampled.

    `generate` is a stream that gets all requests at once. Sampling happens in
    the caller's thread, in `work`.
    """
    return _Stream(self, ended, expecting=True)

  def check(self, requests: Iterable[records.Request]) -> None:
    """Refuse requests that do not fit the engine.

    Raises:
      ValueError: As in `generate`.
    """
    if self.slots.params is None:
      raise ValueError('Engine.generate before Engine.update_weights.')
    shapes = self.slots.shapes
    for request in requests:
      request.check(shapes.max_prompt_tokens, shapes.max_tokens)
      _refuse_adjustments(request.params)

  def _episode(
      self, entry: scheduler.Entry, finish: service.Finish
  ) -> records.Episode:
    text = self._decode_text(entry.tokens.tolist())
    if isinstance(finish.matched, str):
      text = stops.cut(text, (finish.matched,))
    return records.Episode(
        tokens=entry.tokens,
        logprobs=entry.logprobs,
        finish_reason=finish.reason,
        policy_version=self.policy_version,
        text=text,
    )


class _Stream:
  """A stream of requests; see `Engine.stream`."""

  def __init__(
      self,
      engine: Engine,
      ended: Callable[[int, records.Episode], None],
      *,
      expecting: bool,
  ):
    self._engine, self._ended = engine, ended
    self._schedule = engine._schedule
    self._schedule.expecting = expecting

  def __enter__(self) -> '_Stream':
    return self

  def __exit__(self, *_: Any) -> None:
    self._schedule.expecting = False
    if self._schedule.busy:  # After an error: drop the unfinished requests.
      self._engine._schedule = self._engine._new_schedule()

  def submit(self, requests: Mapping[int, records.Request]) -> None:
    """Queue requests; see `Engine.generate`."""
    self._engine.check(requests.values())
    entries = [
        scheduler.Entry(
            service.Job(
                str(number),
                request.prompt_tokens,
                request.params,
                request.seed,
                request.problem_key,
                request.sample,
            ),
            self._listen,
        )
        for number, request in requests.items()
    ]
    self._schedule.waiting.add(entries)

  def work(self) -> bool:
    """Decode one segment; return False if there is nothing to sample.

    Raises:
      preemption.Interrupted: If the run was asked to stop.
    """
    if not self._schedule.busy:
      return False
    if self._engine.stopping():
      raise preemption.Interrupted
    with sharding.use(self._engine.slots.mesh):
      self._schedule.step()
    return True

  def _listen(
      self, entry: scheduler.Entry, progress: scheduler.Progress
  ) -> None:
    if progress.finish:
      episode = self._engine._episode(entry, progress.finish)
      self._ended(int(entry.job.rid), episode)


def _refuse_adjustments(params: records.SamplingParams) -> None:
  """Refuse sampling parameters that the programs for training do not support.

  Raises:
    ValueError: Naming the field, its value and the remedy.
  """
  for name in sampling.ADJUSTED:
    value, neutral = getattr(params, name), getattr(_NEUTRAL, name)
    if value != neutral:
      raise ValueError(
          f'SamplingParams.{name}={value!r}: an engine for training samples'
          f' without it; leave it at {neutral!r}, or sample with --mode=serve.'
      )
