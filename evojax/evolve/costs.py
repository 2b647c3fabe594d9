"""Token costs of rounds, and the arms that the remaining tokens pay for.

The costs of a round are estimated from the arms of earlier rounds alone. The
estimates are therefore the same before and after the round's own row is
written, and in a process that resumes the round.
"""

from collections.abc import Sequence
import math

from evojax.evolve import opening
from evojax.ledger import records

# Factor for the growth of completions while a policy learns. Before the first
# round, their length is only known from the first updates.
_GROWTH = 1.1
# If the tokens do not pay for all pairs of a round with candidates, the round
# has fewer, but at least this many.
LEAST_PAIRS = 3


def payable(run: opening.Run, number: int, *, dev: bool = False) -> float:
  """Return how many harnesses evolve.tokens pays for in a round.

  Tokens for the perturbed scores of one candidate are set aside.

  Args:
    run: The run.
    number: Number of the round.
    dev: Whether the arms of the round are scored on dev problems.

  Returns:
    The number of harnesses with all their pairs, not rounded; infinite without
    a limit.
  """
  left, pairs = _left(run, number), run.config.evolve.pairs
  if math.isinf(left):
    return left
  left -= pairs * _perturbed(run, number)
  return left / (pairs * _of_arm(run, number, dev=dev))


def pairs_of(
    run: opening.Run, number: int, harnesses: int, *, dev: bool
) -> int:
  """Return how many pairs of a round with candidates the tokens pay for.

  Unlike `payable`, this counts the replays of the round, which are all in the
  ledger once its candidates are known.

  Args:
    run: The run.
    number: Number of the round.
    harnesses: How many harnesses train in it.
    dev: Whether their arms are scored on dev problems.

  Returns:
    evolve.pairs, or fewer, but at least LEAST_PAIRS; 0 if not even those are
    paid for.
  """
  left, pairs = _left(run, number), run.config.evolve.pairs
  if math.isinf(left):
    return pairs
  left -= _replayed(run, [number])
  arms = harnesses * _of_arm(run, number, dev=dev)
  paid = math.floor(left / (arms + _perturbed(run, number)))
  return min(paid, pairs) if paid >= LEAST_PAIRS else 0


def payable_pairs(run: opening.Run, number: int) -> int:
  """Return how many pairs the tokens pay for if only the incumbent trains.

  Without a candidate, no arm needs a dev score, and the length of completions
  is estimated from arms of the current harness only: the harness after the last
  round. (A change kept since then trains nothing, and so changes no lengths.)
  """
  left, pairs = _left(run, number), run.config.evolve.pairs
  if math.isinf(left):
    return pairs
  harness = ''
  for made in run.recorder.history.all(records.Promote):
    if made.round is not None and made.round < number:
      harness = made.harness
  paid = math.floor(left / _of_arm(run, number, harness=harness))
  return min(max(paid, 0), pairs)


def of_harness(run: opening.Run, number: int) -> float:
  """Return the tokens that the arms of a harness take in a round."""
  return run.config.evolve.pairs * _of_arm(run, number)


def of_replay(run: opening.Run) -> float:
  """Return the completions of a replay, relative to those of a harness's arms.

  From each of two checkpoints, one policy is updated under the change and one
  without it, and both are scored; see `replay.effect`.
  """
  e, grpo = run.config.evolve, run.config.grpo
  replay = 2 * 2 * e.replay_problems * e.samples
  return replay / (e.pairs * e.updates * grpo.prompts * grpo.group_size)


def rounds_left(
    run: opening.Run, number: int, candidates: int, *, dev: bool = True
) -> int:
  """Return in how many rounds, from this one on, candidates can race.

  A further round counts only if the tokens pay for all its pairs. Fewer pairs
  would do, but the round's replays cost tokens first, and completions may
  become longer.

  Args:
    run: The run.
    number: Number of the round.
    candidates: How many candidates race in it.
    dev: Whether the round's arms are scored on dev problems; True if that is
      not known yet. If they are not, neither are those of later rounds in which
      its candidates race on.
  """
  planned = run.config.evolve.rounds - number
  # A further round trains at least the incumbent and one candidate.
  further = (payable(run, number, dev=dev) - (1 + candidates)) / 2
  return max(1, min(planned, 1 + math.floor(min(further, planned))))


def is_last(
    run: opening.Run, number: int, candidates: int, *, dev: bool = True
) -> bool:
  """Return whether a round is the last one that candidates can race in.

  The arguments are those of `rounds_left`.
  """
  return rounds_left(run, number, candidates, dev=dev) == 1


def _left(run: opening.Run, number: int) -> float:
  """Return the tokens that are left for a round and those after it."""
  if not run.config.evolve.tokens:
    return math.inf
  history = run.recorder.history
  races = [race for race in history.races if race.round < number]
  spent = float(history.base.sampled_tokens) if history.base else 0.0
  for race in races:
    spent += sum(arm.sampled_tokens for arm in race.arms)
    scored = _scored_arms(race, history.all(records.Audit))
    spent += scored * _dev(run) * _longest(race.arms)
  # Replays of this round do not count: a killed process may have made some.
  spent += _replayed(run, range(number))
  return run.config.evolve.tokens - spent


def _replayed(run: opening.Run, rounds: Sequence[int]) -> int:
  """Return the tokens of the replays that some rounds made."""
  return sum(
      trial.backtest.sampled_tokens
      for trial in run.recorder.history.trials
      if trial.backtest and trial.diagnose.round in rounds
  )


def _scored_arms(race: records.Race, audits: Sequence[records.Audit]) -> int:
  """Return how often a round scored an arm on dev or perturbed problems."""
  perturbed = [len(a.differences) for a in audits if a.round == race.round]
  return len(race.arms) * (race.scored_by == 'dev') + 2 * sum(perturbed)


def _dev(run: opening.Run) -> float:
  """Return the completions of a dev score, relative to those of an update."""
  e, grpo = run.config.evolve, run.config.grpo
  return e.problems * e.samples / (grpo.prompts * grpo.group_size)


def _longest(arms: Sequence[records.Train | records.RacedArm]) -> float:
  """Return the tokens per update of the arm that used most."""
  return max(arm.sampled_tokens / max(arm.updates, 1) for arm in arms)


def _of_arm(
    run: opening.Run, number: int, *, dev: bool = False, harness: str = ''
) -> float:
  """Estimate the tokens of an arm, with a score on dev problems if wanted."""
  updates = run.config.evolve.updates + dev * _dev(run)
  return updates * _of_update(run, number, harness)


def _perturbed(run: opening.Run, number: int) -> float:
  """Estimate the tokens of the perturbed scores of a pair."""
  return 2 * _dev(run) * _of_update(run, number)


def _of_update(run: opening.Run, number: int, harness: str = '') -> float:
  """Estimate the tokens of an update from the arms of the last round.

  The arm with the most tokens counts, since a harness may make completions
  longer; arms of the last round that had candidates count, too, since a
  candidate that lifts a limit may enter again.

  Args:
    run: The run.
    number: Number of the round.
    harness: Only arms of this harness count, if there are any; '': all.
  """
  grpo, history = run.config.grpo, run.recorder.history
  if races := [race for race in history.races if race.round < number]:
    if own := [arm for arm in races[-1].arms if arm.harness == harness]:
      return _longest(own)
    raced = [race for race in races if race.standings]
    return max(_longest(race.arms) for race in (races[-1], *raced[-1:]))
  update = _GROWTH * _longest([history.base])
  if run.config.rollout.token_limit or not update:
    # A candidate may lift the token limit of the first arm, and a fork has no
    # first arm. Completions then use about half of rollout.max_tokens.
    most = run.config.rollout.max_tokens * grpo.prompts * grpo.group_size
    update = max(update, most / 2)
  return update
