"""Comparisons of servers with the policy of this process.

First, the server's description of its model is checked, then how it tokenizes a
test text. After every update of the weights, each server samples completions of
a short prompt, the probe. Their log-probs must equal those of the trainer's own
forward pass, up to rounding. A server that joins between two updates is
compared with a server that has passed this comparison.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

from absl import logging
import numpy as np

from evojax import records
from evojax.rollout import answers
from evojax.rollout import fleet as fleet_lib
from evojax.rollout import packed as packed_lib
from evojax.rollout import parity
from evojax.rollout import servers as servers_lib

PROBE_TOKENS = 16
_PROBE_TEMPERATURES = (1.0, 0.6)
PROBES = len(_PROBE_TEMPERATURES)  # Samples of each server after an update.
# Mean difference of log-probs, in nats per token, that is allowed between this
# process and a server with the same weights.
_TOLERANCE = {'float32': 1e-4, 'bfloat16': 0.05}
# How much bfloat16 changes the log-probs of this process is measured. A server
# that computes in bfloat16 may differ from float32 by this many times as much,
# because it adds the same numbers in another order.
_ROUNDING = 4.0
# The difference that is allowed when one server scores the same text twice with
# the same weights, in nats per token.
_READ_TWICE = {'float32': 1e-3, 'bfloat16': 0.05}
# Digits, white space and rare letters: tokenizers differ more on these than on
# plain words.
_TEXT = 'Add 12 + 345: "naïve"?\n\t数'
_Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Model:
  """The parts of the policy that the client of the servers needs."""

  vocab_size: int  # Rows of the embedding table.
  eos_ids: tuple[int, ...]
  decode: Callable[[Sequence[int]], str]  # Without special tokens.
  decode_all: Callable[[Sequence[int]], str]  # With them.
  encode: Callable[[str], Sequence[int]]  # Adds no special tokens.
  max_prompt_tokens: int  # Most tokens of the prompt of one request.
  max_tokens: int  # Most sampled tokens of one request.
  # Most tokens of a prompt and its completion together. In episodes of several
  # turns this is less than the sum of both limits: the more of an episode the
  # prompt already holds, the fewer tokens may follow.
  context_tokens: int
  # 'bfloat16' if anything is computed or stored in it, else 'float32'.
  dtype: str
  # export(params, path, dtype) writes a Hugging Face directory; the dtype is
  # 'bfloat16', or '' for that of the config. All processes must call `export`
  # and `score` together, since their arrays are sharded over all processes.
  export: Callable[[Any, pathlib.Path, str], None]
  score: parity.Scorer
  score_bfloat16: parity.Scorer  # The same, computed in bfloat16.
  corrected: bool  # Whether the update corrects for small differences.
  probe: tuple[int, ...]  # A short prompt.


class Comparison:
  """Compares the servers of one fleet with the policy.

  Attributes:
    fleet: The servers; None except in process 0.
    gap: Largest mean difference of log-probs at the last comparison, in nats
      per token.
  """

  def __init__(
      self,
      model: Model,
      *,
      sample: Callable[..., Awaitable[records.Episode]],
      on_primary: Callable[..., Any],
  ):
    """Store the arguments; nothing is compared yet.

    Args:
      model: The policy.
      sample: (request, url) -> an episode that the server at `url` sampled.
      on_primary: See `SGLangEngine._on_primary`.
    """
    self._model = model
    self._sample, self._on_primary = sample, on_primary
    self.fleet: fleet_lib.Fleet | None = None
    self.gap = 0.0
    # URLs of servers that differ from the policy by the rounding of bfloat16.
    self._rounding: set[str] = set()
    # URL -> version of the weights at the last comparison, and the log-probs of
    # `_TEXT` under them.
    self._read: dict[str, tuple[str, np.ndarray]] = {}
    self._version = -1  # Version of the policy at the last comparison.
    # Version of the weights at the last comparison, and the probes of one
    # server that passed it.
    self._probed: tuple[str, list[records.Episode]] = '', []

  async def check_server(
      self, server: servers_lib.Server, info: Mapping[str, Any]
  ) -> None:
    """Compare a server's description of its model with the policy.

    Raises:
      answers.DisagreementError: If they do not match.
    """
    if not server.abilities.seeds:
      logging.warning(
          '%s does not say that it uses sampling_seed: a resumed run will'
          ' sample differently; start it with launch/sglang.sh or'
          ' launch/sglang_jax.sh, or with --enable-deterministic-inference'
          ' (sglang-jax: --enable-deterministic-sampling)',
          server.url,
      )
    need = self._model.context_tokens
    sizes = 'config.data.max_prompt_tokens + config.rollout.max_tokens'
    for field, least, remedy in (
        ('vocab_size', self._model.vocab_size, 'serve config.model.path'),
        ('max_total_num_tokens', need, f'raise --max-total-tokens to {sizes}'),
        ('context_length', need, f'raise --context-length to {sizes}'),
    ):
      value = info.get(field)
      says = isinstance(value, int) and value != 0
      exact = field == 'vocab_size'
      if says and (value < least or (exact and value != least)):
        raise answers.DisagreementError(
            f'{server.url} has {field}={value}, this run needs {least}:'
            f' {remedy}'
        )
    await self._check_tokenizer(server)

  async def _check_tokenizer(self, server: servers_lib.Server) -> None:
    """Check how a server tokenises a text, if it reports the tokens.

    The client sends and reads tokens only, but the server uses its own
    tokenizer to find the stop strings and special tokens that end a completion.

    Raises:
      answers.DisagreementError: If its tokens are not those of the policy.
    """
    read = await self.fleet.read_text(server, _TEXT)
    theirs = read and [token for _, token in read]
    ours = list(self._model.encode(_TEXT))
    # A server may put a beginning-of-sequence token before the text.
    if theirs is not None and ours not in (theirs, theirs[1:]):
      raise answers.DisagreementError(
          f'{server.url} reads {_TEXT!r} as tokens {theirs}, this run as'
          f' {ours}: it has another tokenizer; start it with the policy of'
          ' config.model.path'
      )

  async def _read_text(self, server: servers_lib.Server) -> np.ndarray:
    """Return a server's log-probs of `_TEXT`; empty if it reports none."""
    read = await self.fleet.read_text(server, _TEXT) or ()
    return np.array([x for x, _ in read if x is not None], np.float64)

  async def _check_unchanged(self, server: servers_lib.Server) -> None:
    """Check that a server still has the weights that were compared.

    If another client replaces the weights, the version that the server reports
    usually changes. It stays the same if the new weights have the same name
    (the default in mainline SGLang) or if memory is corrupted. The log-probs of
    a fixed text reveal these cases, too.

    Raises:
      answers.DisagreementError: If the weights differ, so that the samples are
        not those of this run's policy.
    """
    version, before = self._read.get(server.url, ('', np.zeros(0)))
    now = await self._read_text(server)
    given = server.up and not server.taking and server.weights == version
    if not given or not len(before) or len(before) != len(now):
      return
    exact = self._model.dtype == 'float32' and server.url not in self._rounding
    allowed = _READ_TWICE['float32' if exact else 'bfloat16']
    if (gap := _mean_gap(before, now)) > allowed:
      raise answers.DisagreementError(
          f'{server.url} reads the same text as after its last update, also as'
          f' weight_version={version!r}, but its log-probs differ by'
          f' {gap:.3g} nats per token (allowed: {allowed:g}): somebody'
          ' exchanged its weights without a name for them, or started it again'
          ' with another --dtype; give each run its own servers'
      )

  async def check_all_unchanged(self) -> None:
    """Check that all servers still have the weights that were compared.

    Raises:
      answers.DisagreementError: If a server has other weights.
    """
    up = [server for server in self.fleet.servers if server.up]
    await asyncio.gather(*map(self._check_unchanged, up))

  async def vouch(self, server: servers_lib.Server) -> None:
    """Trust a server if its probes equal those of a server that was compared.

    A server that joins between two updates can then sample at once; otherwise
    it waits for the next comparison with the policy.
    """
    version, known = self._probed
    if not known or server.weights != version:
      return
    asked = [self._probe(k, version) for k in range(PROBES)]
    found = await asyncio.gather(*(self._sample(r, server.url) for r in asked))
    read = await self._read_text(server)
    if not server.up or server.weights != version or self._probed[1] != known:
      return  # Another server answered, or newer weights were installed.
    pairs = list(zip(known, found, strict=True))
    if all(np.array_equal(a.tokens, b.tokens) for a, b in pairs):
      gap = max(_mean_gap(a.logprobs, b.logprobs) for a, b in pairs)
      # Each of the two servers may differ from the policy by the tolerance.
      if gap <= 2 * _TOLERANCE[self._model.dtype]:
        self._read[server.url] = version, read
        self.fleet.trust((server.url,))

  def check_parity(self, params: Any, version: int) -> None:
    """Compare log-probs of samples with the forward pass in this process.

    Equal log-probs show that weights, vocabulary, order of the tokens and the
    meaning of temperature agree. All processes must call this method together.

    Args:
      params: The weights that the servers were given.
      version: Version of these weights.

    Raises:
      answers.DisagreementError: If a server samples with other weights. A
        server that joined since the last comparison is left out instead.
    """
    self._version, self.gap = version, 0.0
    count = min(PROBE_TOKENS, self._model.max_tokens)
    servers = list(self.fleet.servers) if self.fleet else []
    probes: dict[str, list[records.Episode]] = {}
    rows = dict(rows=np.array(len(servers) * PROBES))

    async def known() -> _Arrays:
      return rows

    # All processes need the same number of rows; only process 0 knows it.
    rows = int(self._on_primary(known, rows)['rows'])
    weights = lambda: self.fleet.weights.version
    url_of = lambda i: servers[i].url if servers else f'server {i}'

    def packed(found: list[records.Episode | None], asked: list[int]):
      empty = rows - len(found)
      arrays = packed_lib.pack([*found, *[None] * empty], count)
      asked = [*asked, *[-1] * empty]  # -1: an empty row.
      new = [i >= 0 and servers[i].newcomer for i in asked]
      return arrays | {
          'server': np.array(asked, np.int32),
          'new': np.array(new, bool),
      }

    async def probe(i: int, k: int) -> records.Episode | None:
      server = servers[i]
      try:
        return await self._sample(self._probe(k, weights()), server.url)
      except answers.DisagreementError as error:
        if not server.newcomer:
          raise
        self.fleet.refuse(server.url, error)
        return None

    async def sample() -> _Arrays:
      up = [i for i, server in enumerate(servers) if server.up]
      asked = [(i, k) for i in up for k in range(PROBES)]
      found = await asyncio.gather(*(probe(i, k) for i, k in asked))
      reads = await asyncio.gather(*(self._read_text(servers[i]) for i in up))
      for i, read in zip(up, reads, strict=True):
        self._read[servers[i].url] = servers[i].weights, read
      pairs = list(zip(asked, found, strict=True))
      for (i, _), episode in pairs:
        probes.setdefault(servers[i].url, []).append(episode)
      # If a server died meanwhile, another server answered its probes.
      lost = {i for (i, _), e in pairs if e is None or not servers[i].up}
      return packed(found, [-1 if i in lost else i for i, _ in asked])

    arrays = self._on_primary(sample, packed([], []))
    live = np.flatnonzero(arrays['server'] >= 0)
    pairs = [(self._model.probe, arrays['tokens'][b].tolist()) for b in live]
    scale = [_PROBE_TEMPERATURES[b % PROBES] for b in live]
    scaled = self._model.score(params, pairs, scale)
    plain = self._model.score(params, pairs, [1.0] * len(live))
    sampled = arrays['logprobs'][live]
    gaps, raws = (
        list(map(_mean_gap, sampled, theirs)) for theirs in (scaled, plain)
    )
    exact = allowed = _TOLERANCE[self._model.dtype]
    if max(gaps, default=0) > exact:
      rounded = self._model.score_bfloat16(params, pairs, scale)
      rounding = np.mean(list(map(_mean_gap, rounded, scaled)))
      allowed = max(allowed, _ROUNDING * float(rounding))
    good = {url_of(i) for i in arrays['server'][live]}
    for i, b in enumerate(live):
      url = url_of(arrays['server'][b])
      error = self._misfit(url, gaps[i], raws[i], scale[i], exact, allowed)
      if error is not None and not arrays['new'][b]:
        raise error
      if error is not None:
        good.discard(url)
        if self.fleet is not None:
          self.fleet.refuse(url, error)
      else:
        self.gap = max(self.gap, gaps[i])
    if self.fleet is not None:
      same = [url for url in sorted(good) if url not in self._rounding]
      known = probes.get(same[0], []) if same else []
      self._probed = weights(), known
      self.fleet.trust(good)

  def _misfit(
      self,
      url: str,
      gap: float,
      raw: float,
      temperature: float,
      exact: float,
      allowed: float,
  ) -> answers.DisagreementError | None:
    """Return the error that a probe reveals; None if the server agrees.

    Args:
      url: URL of the server.
      gap: Mean difference between its log-probs and the policy's, in nats per
        token.
      raw: The same, with the policy's log-probs at temperature 1.
      temperature: Temperature of the probe.
      exact: Largest gap that rounding in the run's own dtype explains.
      allowed: Largest gap that rounding in bfloat16 explains.
    """
    if temperature != 1 and gap > allowed >= raw:
      return answers.DisagreementError(
          f'{url} reports log-probs of softmax(logits) at temperature'
          f' {temperature}, this run needs softmax(logits / temperature): start'
          ' it without SGLANG_RETURN_ORIGINAL_LOGPROB'
      )
    if gap > allowed:
      return answers.DisagreementError(
          f'{url} and this run differ by {gap:.3g} nats per token (allowed:'
          f' {exact:g}; computing in bfloat16 would explain {allowed:.2g}) on'
          f' a probe at temperature {temperature} with the weights of version'
          f' {self._version}: it samples from other weights; start it'
          ' with the policy of config.model.path and'
          f' --dtype={self._model.dtype}'
      )
    if gap > exact and url not in self._rounding:
      try:
        self._accept_rounding(url, gap)
      except answers.DisagreementError as error:
        return error
    return None

  def _accept_rounding(self, url: str, gap: float) -> None:
    """Accept a server that computes in bfloat16, unlike this run; log it once.

    Raises:
      answers.DisagreementError: If the update does not correct for the
        difference.
    """
    message = (
        f'{url} and this run differ by {gap:.2g} nats per token, as bfloat16'
        f' does from {self._model.dtype}'
    )
    if not self._model.corrected:
      raise answers.DisagreementError(
          f'{message}, which nothing corrects: set --config.grpo.tis_cap=2, or'
          ' start the server with'
          f' --dtype={self._model.dtype}'
      )
    self._rounding.add(url)
    logging.warning('%s: the update corrects for it', message)

  def _probe(self, sample: int, weights: str) -> records.Request:
    """Return request number `sample` of the probe, for a version of weights."""
    return records.Request(
        prompt_tokens=self._model.probe,
        seed=int(weights.partition('-')[0]),  # The version of the policy.
        problem_key=0,
        sample=sample,
        params=records.SamplingParams(
            max_tokens=min(PROBE_TOKENS, self._model.max_tokens),
            temperature=_PROBE_TEMPERATURES[sample],
            ignore_eos=True,
        ),
    )


def _mean_gap(a: np.ndarray, b: np.ndarray) -> float:
  """Return the mean difference of log-probs, in nats per token."""
  return float(np.abs(a - b).mean())
