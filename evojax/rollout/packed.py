"""Completions as arrays whose shapes are known, to broadcast and to save."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from evojax import records
from evojax.rollout import stops


@runtime_checkable
class Decodes(Protocol):
  """Turns tokens into text."""

  def decode(self, tokens: Sequence[int]) -> str:
    """Return the text without special tokens."""

  def decode_all(self, tokens: Sequence[int]) -> str:
    """Return the text with special tokens."""


def pack(
    completions: Sequence[records.Episode | None], width: int
) -> dict[str, np.ndarray]:
  """Pack all fields of completions except the text, which the tokens determine.

  Args:
    completions: [B]; None leaves a row of zeros.
    width: L, at least the length of the longest completion.

  Returns:
    tokens int32 [B, L], logprobs float32 [B, L], versions int32 [B, L] of the
    weights that sampled each token, lengths int32 [B], and reasons int32 [B],
    indices into `records.EPISODE_ENDS`.
  """
  b = len(completions)
  arrays = dict(
      tokens=np.zeros((b, width), np.int32),
      logprobs=np.zeros((b, width), np.float32),
      versions=np.zeros((b, width), np.int32),
      lengths=np.zeros(b, np.int32),
      reasons=np.zeros(b, np.int32),
  )
  for i, c in ((i, c) for i, c in enumerate(completions) if c):
    n = len(c.tokens)
    arrays['tokens'][i, :n] = c.tokens
    arrays['logprobs'][i, :n] = c.logprobs
    arrays['lengths'][i] = n
    arrays['reasons'][i] = records.EPISODE_ENDS.index(c.finish_reason)
    begin = 0
    for version, end in c.version_spans or ((c.policy_version, n),):
      arrays['versions'][i, begin:end] = version
      begin = end
  return arrays


def unpack(
    arrays: Mapping[str, np.ndarray],
    requests: Sequence[records.Request],
    tokenizer: Decodes,
) -> list[records.Episode]:
  """Return the episodes of some requests, bit-equal to those that were packed.

  Args:
    arrays: Arrays from `pack`; rows beyond the requests are ignored.
    requests: The requests; their stop strings cut the texts.
    tokenizer: A tokenizer, or a `comparison.Model`.
  """
  completions = []
  for i, request in enumerate(requests):
    part = i, slice(arrays['lengths'][i])
    tokens = np.array(arrays['tokens'][part], np.int32)
    versions = np.asarray(arrays['versions'][part])
    found = spans(versions)
    text = tokenizer.decode(tokens.tolist())
    # As during sampling, search for stop strings in the text with special
    # tokens: without these, it may contain one that did not stop the sample.
    stop = request.params.stop
    if hit := stops.find(tokens.tolist(), stop, tokenizer.decode_all):
      text = stops.cut(text, (hit[1],))
    episode = records.Episode(
        tokens=tokens,
        logprobs=np.array(arrays['logprobs'][part], np.float32),
        finish_reason=records.EPISODE_ENDS[int(arrays['reasons'][i])],
        policy_version=int(versions.min()),
        text=text,
        version_spans=found if len(found) > 1 else (),
    )
    completions.append(episode)
  return completions


def spans(versions: np.ndarray) -> tuple[tuple[int, int], ...]:
  """Return (version, end) of each run of equal versions."""
  ends = [*(np.flatnonzero(np.diff(versions)) + 1), len(versions)]
  return tuple((int(versions[end - 1]), int(end)) for end in ends)
