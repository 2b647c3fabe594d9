"""Race: the arms of a round, trained and compared in pairs.

In a pair, the incumbent harness and each candidate train one arm each, from one
state, on the same problems. config.evolve.policy says how the pairs follow each
other. In a chain, a pair starts where the incumbent's arm of the previous pair
ended, so that the incumbent trains as a single run would; an arm that made no
progress, or made the policy worse, is left out, see `pairs.is_wasted`. In the
first round of the repair of a critical fault, the chain follows the repair
instead: under a broken recipe the policy learns little from the incumbent's
arms, and if the repair is kept, none of its training is thrown away. With the
mean, all pairs start from the newest version and train side by side. After a
change was kept, the former harness keeps training in the same way for some
rounds, from a state of its own: the shadow.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools

import numpy as np

from evojax.eval import paired
from evojax.evolve import arms
from evojax.evolve import costs
from evojax.evolve import opening
from evojax.evolve import pairs
from evojax.evolve import recorder
from evojax.evolve import repairs
from evojax.evolve import standings
from evojax.evolve import stream
from evojax.ledger import history as history_lib
from evojax.ledger import records
from evojax.training import arm as arm_lib
from evojax.training import stages


@dataclasses.dataclass(frozen=True)
class _State:
  """A state that arms start from."""

  checkpoint: str  # Below the workdir.
  fingerprint: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Entrant:
  """A harness of a round, and the states that its arms start from."""

  role: str  # 'incumbent', 'candidate' or 'shadow'.
  trial: int | None  # The trial that it belongs to.
  name: str  # Part of its arms' names.
  harness: str  # Hash.
  alike: bool  # Whether its rollouts are comparable with the incumbent's.
  starts: Mapping[int, _State]  # Pair -> start of its arm.
  reserve: stream.Reserve  # The problems of its arms.


# A trained arm, with its entrant and its pair.
_Trained = tuple[_Entrant, int, records.Arm]


def race(
    run: opening.Run,
    version: records.Version,
    number: int,
    field: Sequence[history_lib.Trial],
    queue: tuple[records.Queued, ...],
    shadow: records.Shadow | None,
) -> records.Race:
  """Train the arms of a round, score them, and judge the candidates.

  Args:
    run: The run.
    version: The round starts from its state, with its harness as incumbent.
    number: Number of the round.
    field: The candidates; without any, only the incumbent trains.
    queue: The queue that they came from.
    shadow: Shadow of the last kept change, while it trains.

  Raises:
    ValueError: If no arm of the incumbent trains.
    RuntimeError: If arms started from another state than they should.
  """
  scored_by = pairs.scored_by([*field, *pairs.shadowed(run, shadow)])
  standings.announce(run, number, field, scored_by)
  followed = _followed(run, number, field, shadow)
  harnesses = {trial.number: _rebased(run, version, trial) for trial in field}
  training = {version.harness, *harnesses.values()}
  training |= {shadow.harness} if shadow else set()
  reserve = stream.reserve(run, number, training)
  entrants = _incumbent_and_shadow(run, version, shadow, reserve)
  if followed:
    starts, harness = entrants[0].starts, harnesses[followed.number]
    entrants.append(_candidate(followed, harness, starts, reserve))
  racing = 1 + len(field) + (shadow is not None)
  count = _count_pairs(run, number, racing, scored_by)
  trained = _train_on(run, number, entrants, followed, scored_by, count)
  own = [(pair, e, arm) for e, pair, arm in trained if e.role == 'incumbent']
  incumbents = tuple(arm.outcome for *_, arm in own if arm.status == 'done')
  if not incumbents:
    arm = own[0][2]
    raise ValueError(
        f'{version.version}: its harness does not train any more:'
        f' {arm.status} {arm.why}'
    )
  starts = {pair: e.starts[pair] for pair, e, _ in own}
  rest = [trial for trial in field if trial is not followed]
  candidates = [
      _candidate(trial, harnesses[trial.number], starts, reserve)
      for trial in rest
  ]
  raced = _scored(run, number, trained, scored_by)
  half = paired.first_half(count)
  # In a chain the incumbent improves from arm to arm, so a candidate's arm
  # cannot be compared with the incumbent's arms of other pairs.
  measure = incumbents if run.config.evolve.policy == 'mean' else ()
  early = [pair for pair in starts if pair < half]
  trained = _train(run, number, candidates, early, 'candidates', measure)
  raced += _scored(run, number, trained, scored_by)
  hopeful = standings.hopeful(run, number, rest, raced, scored_by)
  left = [e for e in candidates if e.trial in hopeful]
  late = [pair for pair in starts if pair >= half]
  trained = _train(run, number, left, late, 'remaining candidates', measure)
  raced += _scored(run, number, trained, scored_by)
  return records.Race(
      round=number,
      version=version.version,
      start=version.end,
      scored_by=scored_by,
      arms=raced,
      standings=standings.after_race(run, number, field, raced, scored_by),
      queue=queue,
  )


def _count_pairs(
    run: opening.Run, number: int, harnesses: int, scored_by: str
) -> int:
  """Return how many pairs of a round the remaining tokens pay for."""
  if harnesses == 1:  # Nothing is compared with the incumbent.
    return costs.payable_pairs(run, number)
  dev = scored_by == 'dev'
  found = costs.pairs_of(run, number, harnesses, dev=dev)
  return max(found, costs.LEAST_PAIRS)


def _followed(
    run: opening.Run,
    number: int,
    field: Sequence[history_lib.Trial],
    shadow: records.Shadow | None,
) -> history_lib.Trial | None:
  """Return the candidate that the chain of a round follows, if any.

  It is the first repair of a critical fault that is due, see `repairs.is_due`.
  If it is not kept, the incumbent's arms that continue its arms are left out of
  the policy, which can cost part of a round.
  """
  if shadow or run.config.evolve.policy != 'chain':
    return None
  for trial in field:
    if repairs.is_due(trial, number):
      return trial
  return None


def _incumbent_and_shadow(
    run: opening.Run,
    version: records.Version,
    shadow: records.Shadow | None,
    reserve: stream.Reserve,
) -> list[_Entrant]:
  """Return the harnesses that keep training in a round, incumbent first."""

  def entrant(state: _State, **fields) -> _Entrant:
    every = range(run.config.evolve.pairs)
    first = every[:1] if run.config.evolve.policy == 'chain' else every
    starts = dict.fromkeys(first, state)
    return _Entrant(starts=starts, reserve=reserve, **fields)

  found = [
      entrant(
          _State(version.checkpoint, version.end),
          role='incumbent',
          trial=None,
          name='incumbent',
          harness=version.harness,
          alike=True,
      )
  ]
  for trial in pairs.shadowed(run, shadow):
    found.append(
        entrant(
            _State(shadow.checkpoint, shadow.end),
            role='shadow',
            trial=shadow.trial,
            name='shadow',
            harness=shadow.harness,
            alike=pairs.is_alike(trial),
        )
    )
  return found


def _rebased(
    run: opening.Run, version: records.Version, trial: history_lib.Trial
) -> str:
  """Return the hash of a candidate's harness.

  A change that trains nothing may have been kept after it was proposed.
  """
  before, after = trial.delta.before, trial.design.harness
  return run.harnesses.rebased(before, after, version.harness)


def _candidate(
    trial: history_lib.Trial,
    harness: str,
    starts: Mapping[int, _State],
    reserve: stream.Reserve,
) -> _Entrant:
  return _Entrant(
      role='candidate',
      trial=trial.number,
      name=f't{trial.number:03d}',
      harness=harness,
      alike=pairs.is_alike(trial),
      starts=starts,
      reserve=reserve,
  )


def _train_on(
    run: opening.Run,
    number: int,
    entrants: Sequence[_Entrant],
    followed: history_lib.Trial | None,
    scored_by: str,
    count: int,
) -> list[_Trained]:
  """Train the incumbent, the shadow and the followed candidate, if any.

  In a chain, a pair starts where the previous one ended. A chain ends with an
  arm that fails, which leaves no state to continue from. Without the
  incumbent's arm, there is nothing to compare.

  Args:
    run: The run.
    number: Number of the round.
    entrants: The incumbent, then the shadow and the followed candidate, if any.
    followed: The candidate whose arms the chain continues. If one of them fails
      or a gain becomes unlikely, the chain goes back to where the incumbent's
      own arms ended.
    scored_by: 'rollouts' or 'dev'.
    count: Number of pairs; fewer than evolve.pairs if the remaining tokens do
      not pay for more.
  """
  every = range(count)
  if run.config.evolve.policy == 'mean':
    return _train(run, number, entrants, every, 'incumbent')
  half = paired.first_half(len(every))
  own = entrants[0].starts[0]  # Where the incumbent's own arms end.
  found: list[_Trained] = []
  for pair in every:
    # Entrants may leave the chain, so earlier pairs may have had more of them.
    place = len(found), (len(every) - 1 - pair) * len(entrants)
    new = _train(run, number, entrants, [pair], 'incumbent', place=place)
    found += new
    done = {e.role: (e, arm) for e, _, arm in new if arm.status == 'done'}
    if 'incumbent' not in done:
      break
    if followed and pair + 1 == half:
      raced = _scored(run, number, found, scored_by)
      if not standings.hopeful(run, number, [followed], raced, scored_by):
        done.pop('candidate', None)
    ends = {
        role: _next_start(run, e, pair, arm)
        for role, (e, arm) in done.items()
        # Otherwise the incumbent's arm continued the candidate's arms.
        if role != 'incumbent' or e.starts[pair] == own
    }
    own = ends.get('incumbent', own)
    ends['incumbent'] = ends.get('candidate', own)
    entrants = [
        dataclasses.replace(e, starts={**e.starts, pair + 1: ends[e.role]})
        for e in entrants
        if e.role in ends
    ]
  return found


def _next_start(
    run: opening.Run, entrant: _Entrant, pair: int, arm: records.Arm
) -> _State:
  """Return the state that the next pair of a chain starts from.

  If the arm is left out (`pairs.is_left_out`), the next pair starts from the
  same state as this one: on a ruined policy, a candidate could not show its
  effect.
  """
  version = run.recorder.history.versions[-1]
  if pairs.is_left_out(run, version.version, entrant.role, arm):
    run.say(f'{arm.folder} is left out: it solves no more than at its start')
    return entrant.starts[pair]
  checkpoint = arm_lib.checkpoint_of(arm.folder, arm.updates)
  return _State(str(checkpoint), arm.end)


def _scored(
    run: opening.Run,
    number: int,
    trained: Sequence[_Trained],
    scored_by: str,
) -> tuple[records.RacedArm, ...]:
  """Return the records of arms, with their scores."""
  return tuple(
      recorder.made_from(
          records.RacedArm,
          arm,
          role=entrant.role,
          trial=entrant.trial,
          pair=pair,
          score=_score(run, number, pair, arm, scored_by),
          dev=pairs.dev_folder(number, arm.folder),
      )
      for entrant, pair, arm in trained
  )


def _train(
    run: opening.Run,
    number: int,
    entrants: Sequence[_Entrant],
    wanted: Sequence[int],
    stage: str,
    incumbents: tuple[tuple[float, ...], ...] = (),
    place: tuple[int, int] = (0, 0),
) -> list[_Trained]:
  """Train the arms of some harnesses; return each arm with its pair.

  Args:
    run: The run.
    number: Number of the round.
    entrants: The harnesses to train.
    wanted: Numbers of the pairs.
    stage: Name of the stage.
    incumbents: Outcomes of the incumbent's arms, with which a candidate's arm
      is compared halfway; with fewer than two, no arm is stopped early.
    place: Number of arms of the same stage before and after these.
  """
  e = run.config.evolve
  places = list(itertools.product(entrants, wanted))
  fork = stream.lineage(run)
  jobs = [
      arms.job(
          run,
          folder=f'arms/r{number:03d}-{entrant.name}-{pair}',
          harness=entrant.harness,
          changes=arms.changes(
              run, arms.seed_of(run, 'arm', number, pair, *fork), e.updates
          ),
          start=entrant.starts[pair].checkpoint,
          problems=entrant.reserve.of(pair),
          label=f'round {number}: {entrant.name}, pair {pair}',
          # If sampling differs, outcomes do not measure learning alone.
          incumbents=incumbents
          if entrant.alike and len(incumbents) > 1
          else (),
      )
      for entrant, pair in places
  ]
  # Once one of its arms fails, a candidate is out.
  groups = [entrants.index(entrant) for entrant, _ in places]
  trained = arms.train_all(
      run,
      jobs,
      stages.round_name(run.config, number, stage),
      None if stage == 'incumbent' else groups,
      place,
      # The chain holds arms of the incumbent, of its shadow and of a candidate.
      [entrant.role for entrant, _ in places] if stage == 'incumbent' else (),
  )
  found = []
  for (entrant, pair), arm in zip(places, trained, strict=True):
    if arm is None:
      continue
    # Arms from different states would compare policies instead of harnesses.
    wanted = entrant.starts[pair].fingerprint
    if arm.start != wanted:
      raise RuntimeError(
          f'{arm.folder} started from {arm.start}, not from {wanted}'
      )
    found.append((entrant, pair, arm))
  return found


def _score(
    run: opening.Run, number: int, pair: int, arm: records.Arm, scored_by: str
) -> float | None:
  """Return the solved share that an arm is compared by, or None."""
  if not pairs.is_scored(arm, scored_by):
    return None
  if scored_by == 'dev':
    wanted = pairs.on_dev(run, number, pair, arm)
    return float(run.scorer.scores(wanted).mean())
  return float(np.nanmean(pairs.own_scores(run, arm)))
