"""One episode of several turns: its requests, turns and replies."""

from collections.abc import Sequence
import dataclasses
import hashlib
from typing import Any

import numpy as np

from evojax import records
from evojax.domains import environments


def turn_request(
    request: records.Request,
    tokens: Sequence[int],
    turn: int,
    left: int,
) -> records.Request:
  """Return the request of a turn of an episode.

  Args:
    request: Request of the episode.
    tokens: Tokens after the prompt so far.
    turn: Number of the turn, from 0.
    left: Number of tokens that the episode may still have.
  """
  p = request.params
  # Every turn counts its tokens from 0, so each needs a seed of its own, or it
  # would repeat the noise of the first turn. The first turn keeps the seed.
  seed = request.seed
  if turn:
    digest = hashlib.blake2b(f'{seed} {turn}'.encode(), digest_size=4).digest()
    seed = int.from_bytes(digest, 'little')
  longest = min(p.turn_tokens or left, left)
  return dataclasses.replace(
      request,
      prompt_tokens=(*request.prompt_tokens, *tokens),
      seed=seed,
      params=dataclasses.replace(p, max_tokens=longest, turn_tokens=0),
  )


@dataclasses.dataclass
class Play:
  """The state of one episode while it is played."""

  problem: records.Problem
  request: records.Request
  environment: environments.Environment | None = None
  opened: bool = False
  tokens: list[int] = dataclasses.field(default_factory=list)
  logprobs: list[np.ndarray] = dataclasses.field(default_factory=list)
  versions: list[tuple[int, int]] = dataclasses.field(default_factory=list)
  turns: list[records.Turn] = dataclasses.field(default_factory=list)
  last: records.Episode | None = None  # The last turn.
  end: str = ''  # Why the episode ended; '' while it goes on.
  seconds: float = 0.0  # Total time of all replies.
  error: str = ''
  state: Any = None

  @property
  def left(self) -> int:
    """The number of tokens that the episode may still have."""
    return self.request.params.max_tokens - len(self.tokens)

  def next_request(self) -> records.Request:
    """Return the request of the next turn."""
    return turn_request(self.request, self.tokens, len(self.turns), self.left)

  def add_turn(self, turn: records.Episode) -> None:
    """Add a sampled turn."""
    begin = len(self.tokens)
    spans = turn.version_spans or ((turn.policy_version, len(turn.tokens)),)
    self.versions += [(version, begin + end) for version, end in spans]
    self.tokens += turn.tokens.tolist()
    self.logprobs.append(turn.logprobs)
    self.turns.append(records.Turn(len(turn.tokens), text=turn.text))
    self.last = turn

  def add_reply(
      self, reply: environments.Reply, ids: Sequence[int], text: str
  ) -> None:
    """Add the environment's reply to the last turn."""
    self.turns[-1] = dataclasses.replace(
        self.turns[-1],
        observed=len(ids),
        action=reply.action,
        argument=reply.argument,
        ok=reply.ok,
        observation=text,
    )
    self.tokens += ids
    self.logprobs.append(np.zeros(len(ids), np.float32))
    if ids:  # These were not sampled; they belong to the previous turn.
      self.versions[-1] = self.versions[-1][0], len(self.tokens)

  def episode(self) -> records.Episode:
    """Return the finished episode as a record."""
    spans = []
    for version, end in self.versions:
      if spans and spans[-1][0] == version:
        spans.pop()
      spans.append((version, end))
    return records.Episode(
        tokens=np.array(self.tokens, np.int32),
        logprobs=np.concatenate(self.logprobs).astype(np.float32),
        finish_reason=self.end,
        policy_version=min(version for version, _ in spans),
        text=self.last.text,
        version_spans=tuple(spans) if len(spans) > 1 else (),
        turns=tuple(self.turns),
        state=self.state,
        error=self.error,
    )


@dataclasses.dataclass(frozen=True)
class Answer:
  """The reply to a turn, in the form that all processes receive."""

  reply: environments.Reply
  ids: Sequence[int]  # Its tokens.
  text: str  # The reply as the policy reads it.
  end: str  # Why the episode ends with it; '' if that is not decided here.
  seconds: float  # Total time of the episode's replies.
  error: str
