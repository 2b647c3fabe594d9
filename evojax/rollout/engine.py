"""The in-process rollout engine: JAX, a key/value cache, continuous batching.

A batch in, a batch out: `slots` computes, `scheduler` decides who is next. At
the engine's shapes a sample's tokens and log-probs are bit-equal whatever runs
beside it.
"""

from collections.abc import Callable, Mapping, Sequence
import concurrent.futures

import jax
import jax.numpy as jnp

from evojax import records
from evojax.models import decoder
from evojax.rollout import scheduler
from evojax.rollout import service
from evojax.rollout import slots
from evojax.rollout import stops
from evojax.runtime import sharding


class Engine:
  """Samples with the weights it was given; see `types.RolloutEngine`."""

  def __init__(
      self,
      cfg: decoder.DecoderConfig,
      *,
      eos_ids: tuple[int, ...],
      decode_text: Callable[[Sequence[int]], str],
      max_prompt_tokens: int,
      max_tokens: int,
      decode_slots: int,
      prefill_rows: int,
      refill_every: int,
      copy_weights: bool = False,
      mesh: jax.sharding.Mesh | None = None,
  ):
    """Compiles nothing yet.

    Args:
      cfg: Shape of the policy.
      eos_ids: Tokens that end a completion.
      decode_text: Token ids -> text without special tokens.
      max_prompt_tokens: Lp. A longer prompt is refused.
      max_tokens: Lc, the upper bound of `SamplingParams.max_tokens`.
      decode_slots: Rows decoded at once.
      prefill_rows: Prompts prefilled at once.
      refill_every: Decode steps between refills; 0 waits for all rows.
      copy_weights: Whether those it is given may be donated while it samples.
      mesh: Where to run; default: the first device.
    """
    self.policy_version = -1
    self._decode_text = decode_text
    self._refill_every = refill_every
    self._copy_weights = copy_weights
    self._thread = concurrent.futures.ThreadPoolExecutor(1, 'rollout')
    self.slots = slots.Slots(
        cfg,
        eos_ids=eos_ids,
        max_prompt_tokens=max_prompt_tokens,
        max_tokens=max_tokens,
        decode_slots=decode_slots,
        prefill_rows=prefill_rows,
        mesh=mesh,
    )

  def compilations(self) -> int:
    """Programs compiled so far; bounded by 3 for the life of the engine."""
    return self.slots.programs

  def metrics(self) -> Mapping[str, float]:
    """None: there are no servers, and no weights on their way to them."""
    return {}

  def close(self) -> None:
    """Waits for what was begun."""
    self._thread.shutdown()

  def update_weights(self, params: decoder.Params, version: int) -> None:
    """Installs weights; keys computed with the old ones are never read again.

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
    self.policy_version = version

  def begin(
      self, requests: Sequence[records.Request]
  ) -> concurrent.futures.Future[list[records.Episode]]:
    """Starts `generate` in a thread; the weights must stay until `finish`."""
    return self._thread.submit(self.generate, requests)

  def finish(
      self, begun: concurrent.futures.Future[list[records.Episode]]
  ) -> list[records.Episode]:
    """The completions, or the error, of what was begun."""
    return begun.result()

  def generate(
      self, requests: Sequence[records.Request]
  ) -> list[records.Episode]:
    """Samples every request; answers come in the order of the requests.

    Requests with the same prompt should be neighbours: a prompt is prefilled
    once per run of equal prompts.

    Raises:
      ValueError: If a request does not fit the engine's shapes, or no weights
        were installed.
    """
    if self.slots.params is None:
      raise ValueError('Engine.generate before Engine.update_weights.')
    for request in requests:
      self._check(request)
    answers: list[records.Episode | None] = [None] * len(requests)
    schedule = scheduler.Scheduler(
        self.slots,
        decode_text=self._decode_text,
        refill_every=self._refill_every,
    )

    def listen(entry: scheduler.Entry, chunk: service.Chunk) -> None:
      answers[int(entry.job.rid)] = self._answer(entry, chunk.finish)

    schedule.waiting.add(
        [
            scheduler.Entry(
                service.Job(str(i), r.prompt_tokens, r.params, r.seed),
                listen,
                r.problem_key,
                r.sample,
            )
            for i, r in enumerate(requests)
        ]
    )
    with sharding.use(self.slots.mesh):
      while schedule.busy:
        schedule.step()
    return answers

  def _answer(
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

  def _check(self, request: records.Request) -> None:
    n = len(request.prompt_tokens)
    if not 1 <= n <= self.slots.max_prompt_tokens:
      raise ValueError(
          f'prompt of {n} tokens; config.data.max_prompt_tokens is'
          f' {self.slots.max_prompt_tokens}. Raise it or drop the problem.'
      )
    if not 1 <= request.params.max_tokens <= self.slots.max_tokens:
      raise ValueError(
          f'max_tokens={request.params.max_tokens} is outside 1..'
          f'{self.slots.max_tokens} (config.rollout.max_tokens).'
      )
