"""Comparisons of servers with the policy of this process.

A server that says it fits is asked for its tokens of a text, and for samples of
a probe after every update: their log-probs must be those of the trainer's own
forward pass. One that joins between two updates is compared with servers that
were.
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
# Mean difference of log-probs, in nats, that the same weights may show.
_TOLERANCE = {'float32': 1e-4, 'bfloat16': 0.05}
# A server that computes in bfloat16 may differ from float32 by this many times
# what the forward pass of this process does: another order of the same sums.
_ROUNDING = 4.0
# The same of a text that one server reads twice with the same weights.
_READ_TWICE = {'float32': 1e-3, 'bfloat16': 0.05}
# Says more of a tokenizer than plain words: digits, white space, rare letters.
_TEXT = 'Add 12 + 345: "naïve"?\n\t数'
_Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Model:
  """The policy that the servers serve, as far as the client needs it."""

  vocab_size: int  # Rows of the embedding table.
  eos_ids: tuple[int, ...]
  decode: Callable[[Sequence[int]], str]  # Without special tokens.
  encode: Callable[[str], Sequence[int]]  # Adds nothing.
  max_prompt_tokens: int
  max_tokens: int
  dtype: str  # 'float32', or 'bfloat16' if anything is computed or sent so.
  # Writes a Hugging Face directory. All processes must call it and `score` at
  # the same time: both compute on arrays that are spread over them.
  # (params, path, dtype): the dtype is 'bfloat16' or the parameters' own, ''.
  export: Callable[[Any, pathlib.Path, str], None]
  score: parity.Scorer
  score_bfloat16: parity.Scorer  # The same, computed in bfloat16.
  corrected: bool  # The update corrects for log-probs that differ a little.
  probe: tuple[int, ...]  # A short prompt.


class Comparison:
  """Compares the servers of one fleet with the policy.

  Attributes:
    fleet: The servers; None in all processes but 0.
    gap: Largest gap of log-probs at the last comparison, in nats per token.
  """

  def __init__(
      self,
      model: Model,
      *,
      sample: Callable[..., Awaitable[records.Episode]],
      on_primary: Callable[..., Any],
  ):
    """Compare nothing yet.

    Args:
      model: The policy.
      sample: (request, url) -> an episode of that server.
      on_primary: See `SGLangEngine._on_primary`.
    """
    self._model = model
    self._sample, self._on_primary = sample, on_primary
    self.fleet: fleet_lib.Fleet | None = None
    self.gap = 0.0
    self._rounding: set[str] = set()  # URLs that differ as bfloat16 does.
    # URL -> the weights that were compared, and a text's log-probs with them.
    self._read: dict[str, tuple[str, np.ndarray]] = {}
    self._version = -1  # Of the policy, at the last comparison.
    # The weights of the last comparison, and the probes of one server whose
    # log-probs were the policy's.
    self._probed: tuple[str, list[records.Episode]] = '', []

  async def check_server(
      self, server: servers_lib.Server, info: Mapping[str, Any]
  ) -> None:
    """Compare what a server says of its model with the policy."""
    if not server.abilities.seeds:
      logging.warning(
          '%s does not say that it heeds sampling_seed: a resumed run will'
          ' sample otherwise; start it with launch/sglang.sh, or with'
          ' --enable-deterministic-inference',
          server.url,
      )
    need = self._model.max_prompt_tokens + self._model.max_tokens
    for field, least, remedy in (
        ('vocab_size', self._model.vocab_size, 'serve config.model.path'),
        ('max_total_num_tokens', need, 'raise --max-total-tokens'),
        ('context_length', need, 'raise --context-length'),
    ):
      value = info.get(field)
      says = isinstance(value, int) and value != 0
      exact = field == 'vocab_size'
      if says and (value < least or (exact and value != least)):
        raise answers.DisagreementError(
            f'{server.url} has {field}={value}, this run needs {least}'
            ' (config.data.max_prompt_tokens + config.rollout.max_tokens ='
            f' {need}): {remedy}'
        )
    await self._check_tokenizer(server)

  async def _check_tokenizer(self, server: servers_lib.Server) -> None:
    """Let a server tokenise a text, where it reports the tokens.

    The client sends and reads tokens, but a server ends a completion at
    strings and special tokens, which it finds with its own tokenizer.
    """
    read = await self.fleet.read_text(server, _TEXT)
    theirs = read and [token for _, token in read]
    ours = list(self._model.encode(_TEXT))
    # A server may put a token for the beginning in front of a text.
    if theirs is not None and ours not in (theirs, theirs[1:]):
      raise answers.DisagreementError(
          f'{server.url} reads {_TEXT!r} as tokens {theirs}, this run as'
          f' {ours}: it has another tokenizer; start it with the policy of'
          ' config.model.path'
      )

  async def _read_text(self, server: servers_lib.Server) -> np.ndarray:
    """Return a server's log-probs of a text; empty if it tells none."""
    read = await self.fleet.read_text(server, _TEXT) or ()
    return np.array([x for x, _ in read if x is not None], np.float64)

  async def _check_unchanged(self, server: servers_lib.Server) -> None:
    """Check that a server still has the weights that were compared.

    Versions tell most exchanges by others; not those that keep the name, as
    mainline SGLang's do by default, and no broken memory.

    Raises:
      answers.DisagreementError: If it has not: what it sampled is not ours.
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
      answers.DisagreementError: If one has not.
    """
    up = [server for server in self.fleet.servers if server.up]
    await asyncio.gather(*map(self._check_unchanged, up))

  async def vouch(self, server: servers_lib.Server) -> None:
    """Trust a server whose probes are those of servers that were compared.

    One that joins between two updates samples at once then; otherwise it waits
    for the next comparison with the policy.
    """
    version, known = self._probed
    if not known or server.weights != version:
      return
    asked = [self._probe(k, version) for k in range(PROBES)]
    found = await asyncio.gather(*(self._sample(r, server.url) for r in asked))
    read = await self._read_text(server)
    if not server.up or server.weights != version or self._probed[1] != known:
      return  # Another answered, or there are newer weights to compare.
    pairs = list(zip(known, found, strict=True))
    if all(np.array_equal(a.tokens, b.tokens) for a, b in pairs):
      gap = max(_mean_gap(a.logprobs, b.logprobs) for a, b in pairs)
      # Each may differ from the policy by the tolerance.
      if gap <= 2 * _TOLERANCE[self._model.dtype]:
        self._read[server.url] = version, read
        self.fleet.trust((server.url,))

  def check_parity(self, params: Any, version: int) -> None:
    """Compare log-probs of samples with the forward pass in this process.

    It proves at once that weights, vocabulary, order of tokens and the meaning
    of temperature agree. All processes call it.

    Args:
      params: The weights that the servers were given.
      version: Of these weights.

    Raises:
      answers.DisagreementError: If a server samples from other weights, unless
        it has only just joined: then it is left out.
    """
    self._version, self.gap = version, 0.0
    count = min(PROBE_TOKENS, self._model.max_tokens)
    servers = list(self.fleet.servers) if self.fleet else []
    probes: dict[str, list[records.Episode]] = {}
    rows = dict(rows=np.array(len(servers) * PROBES))

    async def known() -> _Arrays:
      return rows

    # As many rows in every process; only one knows the servers.
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
      # Another server answered the probes of one that died meanwhile.
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
    """Return what a probe says against a server, None if it fits.

    Args:
      url: Of the server.
      gap: Between its log-probs and the policy's, in nats per token.
      raw: The same, of the policy's log-probs at temperature 1.
      temperature: Of the probe.
      exact: Gap that rounding may make in the run's own dtype.
      allowed: The same in bfloat16.
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
    """Say once that a server computes in bfloat16, unlike this run.

    Raises:
      answers.DisagreementError: If the training would not correct for it.
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
    """Return a request at one of the temperatures, for some weights."""
    return records.Request(
        prompt_tokens=self._model.probe,
        seed=int(weights.partition('-')[0]),  # As the version of the policy.
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
