"""Milestones: the cost of a run up to when its policy reached a score."""

from collections.abc import Mapping, Sequence
import dataclasses
import math

import numpy as np

from evojax.ledger import history as history_lib
from evojax.ledger import records

SCORES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


@dataclasses.dataclass(frozen=True)
class Milestone:
  """The cost up to the round that made a version with this score."""

  score: float  # Share of problems solved, a fraction.
  version: str
  tokens: int  # Sampled for all arms and replays, search included.
  device_seconds: float


def curve(
    run: history_lib.History, scored: Mapping[int, int] | None = None
) -> list[Milestone]:
  """Return the score of each version with the cost of the run until then.

  The score of a version is the mean outcome of the rollouts that its source
  arms trained on. For version 0 it is that over the second half of its
  training. A version without a score has no entry.

  Args:
    run: The run.
    scored: Number of a round -> tokens of its dev scores, which the ledger
      does not hold; without it, they do not count.
  """
  scored = scored or {}
  tokens, seconds = 0, []
  # Arms by folder, so that an arm that a resumed run wrote twice counts once.
  arms: dict[str, records.RacedArm] = {}
  found: list[Milestone] = []
  raced: set[int] = set()
  for row in run.rows:
    seconds.append(row.measured.device_seconds)
    match row.record:
      case records.Train():
        tokens += row.record.sampled_tokens
        outcome = row.record.outcome
        score = float(np.mean(outcome[len(outcome) // 2 :])) if outcome else 0.0
      case records.Backtest():
        tokens += row.record.sampled_tokens
        continue
      case records.Race():
        new = {arm.folder: arm for arm in row.record.arms}
        tokens += sum(new[f].sampled_tokens for f in new.keys() - arms.keys())
        arms |= new
        if row.record.round not in raced:
          tokens += scored.get(row.record.round, 0)
          raced.add(row.record.round)
        continue
      case records.Promote():
        of = [arms.get(source.folder) for source in row.record.sources]
        own = [x for arm in of if arm for x in arm.outcome]
        if not own:
          continue
        score = math.fsum(own) / len(own)
      case _:
        continue
    found.append(
        Milestone(score, row.record.version, tokens, math.fsum(seconds))
    )
  return found


def first(
    points: Sequence[Milestone], scores: Sequence[float] = SCORES
) -> list[Milestone | None]:
  """Return the first entry of a curve at or above each score, or None.

  Nothing is interpolated, since there is no policy between two versions.
  """
  return [next((p for p in points if p.score >= s), None) for s in scores]


def reached(
    run: history_lib.History, scores: Sequence[float] = SCORES
) -> list[Milestone]:
  """Return the cost of the run when its policy first reached each score.

  Args:
    run: The run.
    scores: Fractions in rising order. A score never reached has no milestone.
  """
  found = zip(scores, first(curve(run), scores), strict=True)
  return [dataclasses.replace(p, score=s) for s, p in found if p]
