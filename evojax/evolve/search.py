"""Search: a diagnostic that a run writes by itself, from its own rollouts.

A run searches for what distinguishes two groups of its rollouts (named after
each colon) when

- a second judge refuses a change that gains by the run's own grader, and no
  critical alert explains it: the arms of the change, and the incumbent's;
- a race contradicts the backtest of a change: the same arms;
- three changes have failed in a row: the solved and the unsolved completions of
  the same problems;
- the policy has gained another 10 points: again the solved and the unsolved
  completions, but only predicates whose share among solved completions has
  changed since the first version; if there are none, those whose share among
  all completions has. What nearly every solved completion does, such as edit a
  file, explains no gain.

`predicates.mine` finds the simplest predicate that does. It is written as a
diagnostic of the harness, whose alert begins half-way between the two groups,
and passes the gate like any other change. It is kept if it holds on evidence on
which it was not chosen: other versions, and pairs of the race that were left
out (`steps.validation`). From then on it measures every version. Its alert can
call for changes that reward or penalise what was found (`propose.discovered`);
where a second judge refused a change, the alert is critical, so that later
changes that do the same are not kept.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import itertools
import statistics

from jaxtyping import Bool, Int
import ml_collections
import numpy as np
import pandas as pd

from evojax.episodes import collect
from evojax.eval import paired
from evojax.eval import race as race_lib
from evojax.evidence import schema
from evojax.evidence import store
from evojax.evidence import views
from evojax.evolve import opening
from evojax.evolve import pairs
from evojax.evolve import predicates
from evojax.evolve import propose as propose_lib
from evojax.evolve import recorded
from evojax.ledger import history as history_lib
from evojax.ledger import records
from evojax.runtime import numerals

PROPOSER = 'search'
# Triggers; the first two end with the number of a trial.
_AUDIT, _RACE, _FAILURES, _GAIN = (
    'search/audit_of_trial_',
    'search/race_of_trial_',
    'search/failures',
    'search/gain',
)
_IN_A_ROW = 3  # Failed changes: EvoTrainer, arXiv:2606.03108.
_GAINED = 0.1  # Gain of the solved share after which the run searches again.
# A predicate that holds in at least this share of the solved completions counts
# as needed to solve a problem, and explains no gain.
_NEEDED = 0.995
_MOST = 4  # Once searches have added so many, they only add critical ones.


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Question:
  """Two groups of rollouts, and why a run searches for their difference."""

  trigger: str
  why: str  # A sentence.
  sides: tuple[str, str]  # Their names, for the explanation.
  # Folders of the arms of the first side, or of both if `others` is empty: then
  # the sides are the solved and the unsolved rollouts.
  arms: tuple[str, ...]
  others: tuple[str, ...] = ()
  earlier: str = ''  # Folder of the first version's arm, to find what changed.
  critical: bool = False


def propose(
    run: opening.Run, context: propose_lib.Context, version: records.Version
) -> propose_lib.Proposal | None:
  """Return a diagnostic to add, or None. Only process 0 may call it.

  Args:
    run: The run.
    context: What the proposers see.
    version: The version whose harness gets the diagnostic.
  """
  full = len(_written(context)) >= _MOST
  for question in _questions(run, version):
    if full and not question.critical:
      continue
    if proposal := _answer(run, context, question):
      return proposal
  return None


def _written(context: propose_lib.Context) -> list[predicates.Written]:
  """Return the diagnostics of the parent that a search made."""
  files = context.parent.files.items()
  return list(filter(None, itertools.starmap(predicates.read, files)))


def raced(trigger: str) -> int | None:
  """Return the trial whose race a search compared; None if it compared none."""
  for prefix in (_AUDIT, _RACE):
    if trigger.startswith(prefix):
      return int(trigger.removeprefix(prefix))
  return None


def compared(
    trial: history_lib.Trial, *, held_out: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
  """Return the folders of a trial's arms and the incumbent's, pair by pair.

  Args:
    trial: A trial that was raced.
    held_out: Whether to return the second half of its pairs, on which no
      predicate is chosen, instead of the first half.
  """
  done = [
      {a.pair: a.folder for a in trial.role(role) if pairs.is_scored(a, 'dev')}
      for role in ('candidate', 'incumbent')
  ]
  both = sorted(done[0].keys() & done[1].keys())
  half = paired.first_half(len(both))
  chosen = both[half:] if held_out else both[:half]
  one, other = (tuple(side[pair] for pair in chosen) for side in done)
  return one, other


# ------------------------------------------------------------------- questions


def _questions(
    run: opening.Run, version: records.Version
) -> Iterator[_Question]:
  """Yield what the run has reason to ask, the most urgent first."""
  trials = run.recorder.history.trials
  asked = {t.hypothesize.trigger for t in trials if t.proposer == PROPOSER}
  for trial in reversed(trials):
    for trigger, holds, why, critical in (
        (_AUDIT, _is_refused, 'a second judge refused it', True),
        (_RACE, _is_contradicted, 'its race contradicted its backtest', False),
    ):
      name = f'{trigger}{trial.number}'
      if name in asked or not holds(trial):
        continue
      one, other = compared(trial, held_out=False)
      if one:
        yield _Question(
            trigger=name,
            why=f'Trial {trial.number} ({trial.delta.text}): {why}.',
            sides=('its arms', "the incumbent's"),
            arms=one,
            others=other,
            critical=critical,
        )
  # Validation needs a version other than the one that is searched.
  history = run.recorder.history
  if len({v.folder for v in history.versions}) < 2:
    return
  solved = dict(
      sides=('what is solved', 'what is not'),
      arms=tuple(history.arms_of(version)),
  )
  if _failures(trials) >= _IN_A_ROW:
    why = f'{_IN_A_ROW} changes failed in a row.'
    yield _Question(trigger=_FAILURES, why=why, **solved)
  gain = _gain(history.versions[0], version)
  explained = [
      history.version(t.parent).folder
      for t in trials
      if t.proposer == PROPOSER and t.hypothesize.trigger == _GAIN
  ]
  due = gain >= _GAINED * (1 + len(explained))
  if due and version.folder not in explained:
    why = f'The policy has gained {100 * gain:.0f} points by {version.version}.'
    earlier = history.versions[0].folder
    yield _Question(trigger=_GAIN, why=why, earlier=earlier, **solved)


def _is_refused(trial: history_lib.Trial) -> bool:
  """Return whether the second judge refused a gain that no alert explains."""
  verdict, audit = trial.verify, trial.audit
  if not (verdict and audit) or verdict.alerts or verdict.status != 'discard':
    return False
  if audit.round != trial.races[-1].round:
    return False  # Its last race was not judged.
  gate = race_lib.gate(
      trial.standing.differences, audit.differences, audit.errors
  )
  return gate.status == 'fails'


def _is_contradicted(trial: history_lib.Trial) -> bool:
  """Return whether the intervals of prediction and race are apart."""
  if not (trial.verify and trial.backtested and trial.realised):
    return False
  (low, high), (bottom, top) = trial.backtested, trial.realised
  return high < bottom or top < low


def _failures(trials: Sequence[history_lib.Trial]) -> int:
  """Return how many changes failed since one was kept, or since a search."""
  count = 0
  for trial in trials:
    if trial.proposer == PROPOSER or trial.kind == 'keep':
      count = 0
    elif trial.judged:
      count += 1
  return count


def _gain(first: records.Version, last: records.Version) -> float:
  """Return by how much the solved share rose, from first to last updates."""
  if not first.outcome or not last.outcome:
    return 0.0
  half = lambda updates: (len(updates) + 1) // 2
  early = first.outcome[: half(first.outcome)]
  late = last.outcome[-half(last.outcome) :]
  return statistics.fmean(late) - statistics.fmean(early)


# --------------------------------------------------------------------- answers


def _answer(
    run: opening.Run, context: propose_lib.Context, question: _Question
) -> propose_lib.Proposal | None:
  """Return the diagnostic that answers a question; None if nothing does."""
  config = run.harnesses.config_under(context.parent.sha256)
  columns = collect.columns(run.setup.domain, config)
  # A name that was tried once is not searched again.
  tried = {t.delta.factor for t in context.history}
  written = _written(context)
  critical = {w.name for w in written if w.critical}
  measured = [predicates.columns_of(w.text) for w in written]

  def is_new(predicate: predicates.Predicate) -> bool:
    name = predicates.name_of(predicate)
    if question.critical:  # It replaces one that only warns.
      return name not in critical
    # Another value of the same columns would say much the same.
    reads = predicates.columns_of(predicate.text)
    return reads not in measured and f'diagnostic:{name}' not in tried

  e = _evidence(run, question, columns, config)
  known = [t for t in predicates.terms(e.view, columns) if is_new(t)]
  searched = [known]
  if question.earlier:
    # Terms whose frequency changed among the solved completions are searched
    # first, then those whose frequency changed among all completions.
    solved = (e.one | e.earlier) & e.view.outcome
    known = [t for t in known if t.there[solved].mean() < _NEEDED]
    searched = [
        predicates.spread(known, e.one, e.earlier & e.view.outcome, e.other),
        predicates.spread(known, e.one | e.other, e.earlier, e.other),
    ]
  each = (predicates.mine(s, e.one, e.other, e.units) for s in searched)
  found = next(filter(None, each), None)
  if found is None or not is_new(found.predicate):
    return None
  middle = (found.one + found.other) / 2
  more = found.one > found.other
  # The alert asks for more of what solved completions do, and for less of what
  # sets the arms of a refused or mispredicted change apart.
  rises = more if question.others else not more
  said = (
      f'{question.why} In {numerals.counted(found.units, "problem")}'
      f' "{found.predicate.means}" holds in {100 * found.one:.0f} % of'
      f' {question.sides[0]} and {100 * found.other:.0f} % of'
      f' {question.sides[1]} ({_p(found.p)}).'
  )
  path, text = predicates.source(
      found, said, ('>' if rises else '<', middle), question.critical
  )
  try:
    return dataclasses.replace(
        propose_lib.make(
            context,
            context.parent.with_file(path, text),
            hypothesis=said,
            expected=(0.0, 0.0),  # It trains nothing.
            source='evojax.evolve.search',
            trigger=question.trigger,
        ),
        proposer=PROPOSER,
    )
  except propose_lib.ProposalError:
    return None


def _p(p: float) -> str:
  return 'p < 1e-6' if p < 1e-6 else f'p {p:.2g}'


@dataclasses.dataclass(frozen=True)
class _Evidence:
  """Rollouts that answer a question; the masks choose completions."""

  view: views.View
  one: Bool[np.ndarray, 'P G']
  other: Bool[np.ndarray, 'P G']
  earlier: Bool[np.ndarray, 'P G']
  units: Int[np.ndarray, 'P G']


def _evidence(
    run: opening.Run,
    question: _Question,
    columns: Sequence[schema.Column],
    config: ml_collections.ConfigDict,
) -> _Evidence:
  """Return the rollouts of a question, its two sides, and their units."""
  needed = ['problem_id', 'step', 'group', 'sample', 'graded', 'outcome']
  needed += [c.name for c in columns if predicates.is_used(c)]
  beside = question.others or tuple(filter(None, [question.earlier]))
  frames = []
  for side, folders in enumerate((question.arms, beside)):
    for pair, folder in enumerate(folders):
      frame = store.read(run.path / folder, 'train', columns=needed)
      frames.append(frame.assign(side=side, pair=pair))
  rows = pd.concat(frames, ignore_index=True)
  group = rows.groupby(['side', 'pair', 'step', 'group'], sort=False).ngroup()
  rows['group'] = group.astype(np.int32)
  values = {name: rows[name].to_numpy() for name in needed}
  view = recorded.view_of(values, columns, config)
  # Groups are in the order of the rows.
  first = rows.drop_duplicates('group')
  mine = view.valid & (first['side'] == 0).to_numpy()[:, None]
  rest = view.valid & ~mine
  if question.others:  # Arms of a pair have the same problems.
    units = first.groupby(['pair', 'problem_id'], sort=False).ngroup()
    one, other, earlier = mine, rest, np.zeros_like(mine)
  else:
    units = first['group']
    one, other = mine & view.outcome, mine & ~view.outcome
    earlier = rest
  units = units.to_numpy(np.int64)[:, None]
  return _Evidence(
      view, one, other, earlier, np.broadcast_to(units, one.shape)
  )
