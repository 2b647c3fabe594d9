"""The in-process rollout engine: JAX, a key/value cache, continuous batching.

A request batch goes in, its episodes come out. `slots` computes and `scheduler`
assigns the slots, as they do for a server; here the caller's thread drives
them, so that all processes of a run make the same calls in the same order. At
the engine's shapes a sample's tokens and log-probs are bit-equal whatever runs
beside it.
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
  """A sampler with weights of its own; see `records.RolloutEngine`."""

  def __init__(
      self,
      cfg: decoder.DecoderConfig,
      shapes: slots.Shapes,
      *,
      eos_ids: tuple[int, ...],
      decode_text: Callable[[Sequence[int]], str],
      refill_every: int,
      copy_weights: bool = False,
      mesh: sharding.AnyMesh | None = None,
      stopping: Callable[[], bool] = lambda: False,
  ):
    """Compile nothing yet.

    Args:
      cfg: Shape of the policy.
      shapes: Sizes of the sampler's arrays. Longer prompts and larger
        `SamplingParams.max_tokens` are refused.
      eos_ids: Tokens that end a completion.
      decode_text: Token ids -> text without special tokens.
      refill_every: Decode steps between refills; 0 waits for all rows.
      copy_weights: Whether the weights that it is given may be donated while
        it samples.
      mesh: Where to run; default: the first device.
      stopping: Asked before each segment of decoding, see
        `records.RolloutEngine`. Processes that sample together must agree.
    """
    self.stopping = stopping
    self.policy_version = -1
    self._decode_text = decode_text
    self._copy_weights = copy_weights
    self._thread = concurrent.futures.ThreadPoolExecutor(1, 'rollout')
    self.slots = slots.Slots(cfg, shapes, eos_ids=eos_ids, mesh=mesh)
    self._new_schedule = functools.partial(
        scheduler.Scheduler,
        self.slots,
        decode_text=decode_text,
        refill_every=refill_every,
        jobs_may_come=False,
    )
    self._schedule = self._new_schedule()

  def compilations(self) -> int:
    """Return the number of programs compiled so far.

    At most 3 for the life of the engine, plus 2 that copy chunks where it has a
    prefix cache, and 1 per doubling of the chunk up to the longest prompt.
    """
    return self.slots.programs

  def metrics(self) -> Mapping[str, float]:
    """Return nothing: there are no servers, and no weights to send to them."""
    return {}

  def close(self) -> None:
    """Wait for what `begin` started."""
    self._thread.shutdown()

  def update_weights(self, params: decoder.Params, version: int) -> None:
    """Install weights; keys computed with the old ones are never read again.

    Args:
      params: On the device. The engine keeps references, not copies, where
        their dtype is the compute dtype already and fsdp splits nothing,
        unless it was made with `copy_weights`.
      version: Stamped on every completion sampled from now on.
    """
    if self._copy_weights:
      self.slots.params = None  # Freed before the new ones are made.
      params = jax.tree.map(jnp.copy, params)
    self.slots.install(params)
    self._schedule.forget_prefixes()
    self.policy_version = version

  def begin(
      self, requests: Sequence[records.Request]
  ) -> concurrent.futures.Future[list[records.Episode]]:
    """Start `generate` in a thread; the weights must stay until `finish`."""
    return self._thread.submit(self.generate, requests)

  def finish(
      self, pending: concurrent.futures.Future[list[records.Episode]]
  ) -> list[records.Episode]:
    """Return the episodes of what `begin` started, or raise its error."""
    return pending.result()

  def generate(
      self, requests: Sequence[records.Request]
  ) -> list[records.Episode]:
    """Sample every request; episodes come in the order of the requests.

    Equal prompts should be neighbours: as long as a row holds a prompt, it is
    prefilled once. A later turn of an episode, whose prompt begins with the
    prompt of an earlier one, takes those whole chunks from the prefix cache
    until the weights change. What an earlier turn sampled is prefilled once
    more, with the next turn: the cache holds nothing that decoding computed,
    or a sample's bits would depend on whether it was found there.

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
    """Return what samples requests that come while others run.

    `generate` is a stream that gets all of them at once. The caller's thread
    samples, in `work`.
    """
    return _Stream(self, ended, expecting=True)

  def check(self, requests: Iterable[records.Request]) -> None:
    """Refuse requests that do not fit.

    Raises:
      ValueError: As `generate`.
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
  """The requests of one call, or of the turns of some episodes."""

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
    if self._schedule.busy:  # An error: the next call must not go on with this.
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
    """Decode a segment; False if there is nothing to sample."""
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
  """Refuse what the programs for training do not compile.

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
