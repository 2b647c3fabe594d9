"""Race: the arms of a round, trained side by side and compared in pairs.

The incumbent harness and each candidate get one arm per seed, all of them from
the state of the newest version. After a change was kept, its former harness
trains on beside them for some rounds, from a state of its own: the shadow.
"""

from collections.abc import Sequence
import dataclasses
import itertools

from evojax.eval import race as race_rules
from evojax.evolve import arms
from evojax.evolve import opening
from evojax.evolve import pairs
from evojax.evolve import recorder
from evojax.evolve import standings
from evojax.ledger import history as history_lib
from evojax.ledger import records
from evojax.training import stages


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Entrant:
  """A harness of a round, and where its arms start."""

  role: str  # 'incumbent', 'candidate' or 'shadow'.
  trial: int | None  # The change that it is about.
  name: str  # Part of the names of its arms.
  harness: str  # Hash.
  checkpoint: str
  start: str  # Fingerprint of that state.
  alike: bool  # True if its rollouts compare with the incumbent's.


def race(
    run: opening.Run,
    version: records.Version,
    number: int,
    field: Sequence[history_lib.Trial],
    shadow: records.Shadow | None,
) -> records.Race:
  """Train the arms of a round, score them, and say how candidates stand.

  Args:
    run: The run.
    version: Whose state arms start from, and whose harness is the incumbent.
    number: Of the round.
    field: The candidates; none trains the incumbent alone.
    shadow: The former harness of the last kept change, while it trains on.

  Raises:
    ValueError: If no arm of the incumbent trains.
    RuntimeError: If arms did not start where they should.
  """
  standings.announce(run, number, field)
  entrants = _entrants(run, version, field, shadow)
  first, *others = entrants
  every = range(run.config.evolve.pairs)
  trained = _train(run, number, [first], every, 'incumbent')
  incumbents = tuple(a.outcome for _, _, a in trained if a.status == 'done')
  if not incumbents:
    arm = trained[0][2]
    raise ValueError(
        f'{version.version}: its harness does not train any more:'
        f' {arm.status} {arm.why}'
    )
  scored_by = 'rollouts' if all(e.alike for e in entrants) else 'dev'
  half = race_rules.first_half(len(every))
  trained += _train(run, number, others, every[:half], 'candidates', incumbents)
  raced = _scored(run, number, trained, scored_by)
  ahead = standings.ahead(run, number, field, raced, scored_by)
  left = [e for e in others if e.role == 'shadow' or e.trial in ahead]
  trained = _train(run, number, left, every[half:], 'leaders', incumbents)
  raced += _scored(run, number, trained, scored_by)
  return records.Race(
      round=number,
      version=version.version,
      start=version.end,
      scored_by=scored_by,
      arms=raced,
      standings=standings.after_race(run, number, field, raced, scored_by),
  )


def _entrants(
    run: opening.Run,
    version: records.Version,
    field: Sequence[history_lib.Trial],
    shadow: records.Shadow | None,
) -> list[_Entrant]:
  """Return the harnesses of a round, the incumbent first."""
  state = dict(checkpoint=version.checkpoint, start=version.end)
  alike = lambda trial: (
      trial.intervention_class not in pairs.SAMPLED_OTHERWISE
  )
  found = [
      _Entrant(
          role='incumbent',
          trial=None,
          name='incumbent',
          harness=version.harness,
          alike=True,
          **state,
      )
  ]
  for trial in field:
    # A change that trains nothing may have been kept since it was made.
    harness = run.harnesses.rebased(
        trial.delta.before, trial.design.harness, version.harness
    )
    found.append(
        _Entrant(
            role='candidate',
            trial=trial.number,
            name=f't{trial.number:03d}',
            harness=harness,
            alike=alike(trial),
            **state,
        )
    )
  if shadow:
    trials = {t.number: t for t in run.recorder.history.trials}
    found.append(
        _Entrant(
            role='shadow',
            trial=shadow.trial,
            name='shadow',
            harness=shadow.harness,
            checkpoint=shadow.checkpoint,
            start=shadow.end,
            alike=alike(trials[shadow.trial]),
        )
    )
  return found


def _scored(
    run: opening.Run,
    number: int,
    trained: Sequence[tuple[_Entrant, int, records.Arm]],
    scored_by: str,
) -> tuple[records.RacedArm, ...]:
  """Return what the ledger says of arms, with their scores."""
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
) -> list[tuple[_Entrant, int, records.Arm]]:
  """Train the arms of some harnesses; return each with its pair.

  Args:
    run: The run.
    number: Of the round.
    entrants: Whose arms.
    wanted: The pairs.
    stage: Name of the stage.
    incumbents: Outcomes of the incumbent's arms, which a candidate's are
      compared with at their half.
  """
  e = run.config.evolve
  places = list(itertools.product(entrants, wanted))
  jobs = [
      arms.job(
          run,
          folder=f'arms/r{number:03d}-{entrant.name}-{pair}',
          harness=entrant.harness,
          changes=arms.changes(
              run, arms.seed_of(run, 'arm', number, pair), e.updates
          ),
          start=entrant.checkpoint,
          label=f'round {number}: {entrant.name}, pair {pair}',
          # Others would compare what is sampled, not what is learned, or would
          # end a shadow that did nothing wrong.
          incumbents=incumbents
          if entrant.role == 'candidate'
          and entrant.alike
          and len(incumbents) > 1
          else (),
      )
      for entrant, pair in places
  ]
  # The first arm that fails decides about a candidate.
  groups = [entrants.index(entrant) for entrant, _ in places]
  trained = arms.train_all(
      run,
      jobs,
      stages.round_name(run.config, number, stage),
      groups if incumbents else None,
  )
  found = []
  for (entrant, pair), arm in zip(places, trained, strict=True):
    if arm is None:
      continue
    # From different states, arms would compare policies and not harnesses.
    if arm.start != entrant.start:
      raise RuntimeError(
          f'{arm.folder} started from {arm.start}, not from {entrant.start}'
      )
    found.append((entrant, pair, arm))
  return found


def _score(
    run: opening.Run, number: int, pair: int, arm: records.Arm, scored_by: str
) -> float | None:
  """Return the share solved that an arm is compared by, where it has one."""
  if not pairs.is_scored(arm, scored_by):
    return None
  if scored_by == 'dev':
    wanted = pairs.on_dev(run, number, pair, arm)
    return float(run.scorer.scores(wanted).mean())
  return float(pairs.own_scores(run, arm)[0].mean())
