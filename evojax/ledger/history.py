"""The history of a run, from its ledger: trials, versions, lineage, cost.

Pages are built from it while a run is in progress, after it failed, and after a
kill cut off the last line of the ledger. Therefore any row may be missing, and
bytes after the longest valid prefix are ignored; `History.dropped` counts them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
import dataclasses
import functools
import itertools
import json
import math
import os
import pathlib
from typing import Any

from evojax.ledger import chain
from evojax.ledger import records
from evojax.ledger import rows as rows_lib
from evojax.runtime import run_files

# Intervention class of diagnostics and statistics, which train nothing.
MEASUREMENT = 'measurement'
# The reason for the end of a run that only its user can repair.
FAULT = 'a fault outside the harness'
# Verdict on a change that was not judged because the machine was too busy.
BUSY = 'machine_busy'
# Verdict on a change that passed its race after the last audit of the run.
UNVERIFIED = 'unverified'
# Verdicts on changes that were not judged and so may be proposed again.
UNTRIED = (BUSY, 'superseded')


def _of(step: str, field: str, before: Any = None) -> property:
  """Return a property: a field of a step's record, or `before` without one."""
  return property(lambda trial: getattr(getattr(trial, step), field, before))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
  """A change under test, with the last record of each of its steps.

  A round races several changes, and its cost is split equally between them.
  """

  index: int  # 0, 1, ... in the order in which trials began.
  number: int  # The ledger's `trial`.
  seconds: Mapping[str, float]  # Step -> device-seconds of all its rows.
  races: Sequence[records.Race] = ()  # Rounds in which it was raced.
  # Diagnoses between its backtest and its verdict.
  later: Sequence[records.Diagnose] = ()
  queued: records.Queued | None = None  # Its last place in the queue.
  diagnose: records.Diagnose | None = None
  hypothesize: records.Hypothesize | None = None
  design: records.Design | None = None
  admit: records.Admit | None = None
  backtest: records.Backtest | None = None
  audit: records.Audit | None = None
  verify: records.Verify | None = None
  shadow: records.Shadow | None = None
  accumulate: records.Accumulate | None = None

  parent = _of('hypothesize', 'version', '')  # The version that it changes.
  proposer = _of('hypothesize', 'proposer', '')
  expected = _of('hypothesize', 'expected')  # The proposer's prediction.
  delta = _of('design', 'delta')
  intervention_class = _of('delta', 'intervention_class', '')
  backtested = _of('backtest', 'predicted')
  made = _of('verify', 'version', '')  # The new version if it is kept, else ''.
  effect = _of('verify', 'effect')
  standard_error = _of('verify', 'standard_error')
  mde = _of('standing', 'detectable')  # The minimum detectable effect.

  @property
  def name(self) -> str:
    """The version that it made, or 'trial 3' if it was not kept."""
    return self.made or f'trial {self.number}'

  @property
  def status(self) -> str:
    """The verdict, or how far the trial got."""
    if self.shadow and self.shadow.decision == 'drop':
      return 'taken back'
    if self.verify:
      return self.verify.status
    if self.admit and self.admit.reasons:
      return 'refused'
    waits = self.queued and not self.queued.enters and not self.races
    return 'not raced' if waits else 'running'

  @property
  def trains(self) -> bool:
    """False if the change cannot alter any policy, such as a diagnostic."""
    return self.intervention_class != MEASUREMENT

  @property
  def tried(self) -> bool:
    """True if it has a verdict, so that it neither races nor waits."""
    return self.kind not in ('running', 'waiting')

  @property
  def judged(self) -> bool:
    """True if its verdict is about the change itself; see UNTRIED."""
    return bool(self.verify) and self.status not in UNTRIED

  @property
  def kind(self) -> str:
    """The class of the status.

    It is 'keep', 'discard', 'failed', 'running', or 'waiting' before a race.
    """
    if self.status == 'not raced':
      return 'waiting'
    if self.status in ('vetoed', 'superseded', 'taken back', UNVERIFIED):
      return 'discard'
    # Each kind of failure has its own status.
    known = ('keep', 'discard', 'running')
    return self.status if self.status in known else 'failed'

  @property
  def realised(self) -> records.Interval | None:
    """The 95 % interval of the measured effect; None without an effect."""
    if self.effect is None:
      return None
    return self.verify.low, self.verify.high

  @property
  def decided(self) -> bool:
    """True if the interval of the effect excludes 0."""
    low, high = self.realised or (0.0, 0.0)
    return low > 0 or high < 0

  @property
  def standing(self) -> records.Standing | None:
    """Its standing after its last round; None if it was never raced."""
    found = [s for race in self.races for s in race.standings]
    return next((s for s in found[::-1] if s.trial == self.number), None)

  @property
  def arms(self) -> list[records.RacedArm]:
    """The arms of its last round: its own and the incumbent's."""
    arms = self.races[-1].arms if self.races else ()
    raced = [arm for arm in arms if arm.role != 'shadow']
    return [arm for arm in raced if arm.trial in (None, self.number)]

  def role(self, role: str) -> list[records.RacedArm]:
    """Return the arms of a role, 'incumbent' or 'candidate'."""
    return [arm for arm in self.arms if arm.role == role]

  @property
  def device_seconds(self) -> float:
    return math.fsum(self.seconds.values())


@dataclasses.dataclass(frozen=True)
class History:
  """The rows of a run, and properties computed from them."""

  rows: Sequence[rows_lib.Row]
  dropped: int = 0  # Bytes at the end of the file that are not valid rows.
  ended: str = ''  # Why the run ended; '' if it has not ended or it is unknown.

  def find(self, step: type[rows_lib.R], **match: Any) -> rows_lib.R | None:
    """Return the last record of a step whose fields have these values."""
    return rows_lib.find(self.rows, step, **match)

  def all(self, step: type[rows_lib.R]) -> list[rows_lib.R]:
    """Return all records of a step, oldest first."""
    found = (row.record for row in self.rows)
    return [record for record in found if isinstance(record, step)]

  def unchecked(self, trial: Trial) -> str:
    """Return why a kept change was not checked at a longer horizon, or ''."""
    if trial.kind != 'keep' or trial.effect is None:
      return ''
    if trial.shadow is None:
      opened = self.find(records.Open)
      if opened and not opened.config.get('evolve', {}).get('horizon', 1):
        return 'evolve.horizon is 0'
      return 'the former harness could not catch up, or did not train on'
    if trial.shadow.decision == 'go_on':
      return 'its shadow is still to be trained'
    unchecked = trial.shadow.decision == 'unchecked'
    return trial.shadow.reason if unchecked else ''

  # ------------------------------------------------------------------- trials

  @functools.cached_property
  def trials(self) -> list[Trial]:
    """All trials in the order in which they began.

    A diagnosis without a proposal is not a trial.
    """
    steps: dict[int, dict[str, Any]] = defaultdict(dict)
    seconds: dict[int, dict[str, float]] = defaultdict(
        lambda: defaultdict(float)
    )
    racing: set[int] = set()
    for row in self.rows:
      record, spent = row.record, row.measured.device_seconds
      if isinstance(record, records.Diagnose):
        for number in racing:
          steps[number].setdefault('later', []).append(record)
      elif isinstance(record, records.Backtest):
        racing.add(record.trial)
      elif isinstance(record, records.Verify):
        racing.discard(record.trial)
      if isinstance(record, records.OfTrial):
        steps[record.trial][record.STEP] = record
        seconds[record.trial][record.STEP] += spent
      elif isinstance(record, records.Race):
        for place in record.queue:
          steps[place.trial]['queued'] = place
        for standing in record.standings:
          steps[standing.trial].setdefault('races', []).append(record)
          share = spent / len(record.standings)
          seconds[standing.trial][record.STEP] += share
    idle = {'diagnose', 'hypothesize'}
    proposed = lambda found: getattr(found.get('hypothesize'), 'proposer', '')
    began = [n for n, f in steps.items() if f.keys() - idle or proposed(f)]
    return [
        Trial(index=i, number=n, seconds=seconds[n], **steps[n])
        for i, n in enumerate(began)
    ]

  @property
  def tried(self) -> list[Trial]:
    """The trials whose change may alter the policy and has its verdict."""
    return [t for t in self.trials if t.tried and t.trains]

  @property
  def kept(self) -> list[Trial]:
    """The trials whose change was kept and may alter the policy."""
    return [t for t in self.trials if t.kind == 'keep' and t.trains]

  @property
  def added(self) -> list[Trial]:
    """The trials whose diagnostic or statistic was added."""
    return [t for t in self.trials if t.kind == 'keep' and not t.trains]

  @functools.cached_property
  def races(self) -> list[records.Race]:
    """All rounds, each by its last row."""
    return list({race.round: race for race in self.all(records.Race)}.values())

  @property
  def dev_draws(self) -> int:
    """Number of draws of fresh dev problems: one per round that scored any."""
    return sum(race.scored_by == 'dev' for race in self.races)

  # ----------------------------------------------------------------- versions

  @property
  def versions(self) -> list[records.Version]:
    """All versions of the run, oldest first."""
    return self.all(records.Version)

  def version(self, name: str) -> records.Version:
    """Return the version of this name."""
    return next(v for v in self.versions if v.version == name)

  @property
  def policy_arms(self) -> list[str]:
    """Folders of the arms that trained the policy, oldest first."""
    trained = [v for v in self.versions if _trained_by(v)]
    return [*dict.fromkeys(f for v in trained for f in in_a_row(v))]

  def trained_under(self, harness: str) -> list[str]:
    """Return the folders of the policy's arms under a harness, oldest first."""
    own = [self.base, *(arm for race in self.races for arm in race.arms)]
    harnesses = {arm.folder: arm.harness for arm in own if arm}
    # A fork starts with a version of another run, none of whose arms are here.
    return [f for f in self.policy_arms if harnesses.get(f) == harness]

  def arms_of(self, version: records.Version) -> list[str]:
    """Return the consecutive arms that trained a version under one harness.

    They are the last ones of `in_a_row` with the harness of the very last one,
    since a kept candidate may continue arms of the incumbent. A version that
    trained nothing has the arms of the version whose policy it has.
    """
    made = next(v for v in self.versions if v.folder == version.folder)
    raced = {arm.folder: arm for race in self.races for arm in race.arms}
    harness = lambda folder: raced[folder].harness if folder in raced else ''
    folders = in_a_row(made)
    last = harness(folders[-1])
    own = itertools.takewhile(lambda f: harness(f) == last, folders[::-1])
    return [*own][::-1]

  def arms_before(self, version: records.Version) -> list[str]:
    """Return the arms that trained the parent of a version.

    The list is empty for the first version, if the parent has another harness,
    and if the parent's training is left out (`records.Train.is_left_out`).
    """
    made = next(v for v in self.versions if v.folder == version.folder)
    before = next((v for v in self.versions if v.version == made.parent), None)
    if before is None or before.harness != made.harness:
      return []
    left_out = isinstance(before, records.Train) and before.is_left_out
    return [] if left_out else self.arms_of(before)

  @functools.cached_property
  def base(self) -> records.Train | None:
    """The training of the first version."""
    return next(iter(self.all(records.Train)), None)

  @functools.cached_property
  def base_version(self) -> str:
    return self.base.version if self.base else 'v0'

  @functools.cached_property
  def head(self) -> str:
    """The newest version, from which training continues."""
    return self.versions[-1].version if self.versions else self.base_version

  @functools.cached_property
  def parents(self) -> dict[str, str]:
    """Version or trial -> its parent version. The base is not in it."""
    made = {v.version: v.parent for v in self.versions if v.parent}
    tried = {t.name: t.parent for t in self.trials if t.name not in made}
    known = {self.base_version}
    parents = {}
    for name, parent in {**made, **tried}.items():
      # A parent that comes later could make a cycle, so the base replaces it.
      parents[name] = parent if parent in known else self.base_version
      if name in made:
        known.add(name)
    return parents

  @functools.cached_property
  def lineage(self) -> list[str]:
    """Names of the versions from the base to the head."""
    line = [self.head]
    while line[-1] in self.parents:
      line.append(self.parents[line[-1]])
    return line[::-1]

  @functools.cached_property
  def levels(self) -> dict[str, float]:
    """Version or trial -> sum of effects from the base to it, a fraction.

    A version that takes a change back loses the effect of that change.
    """
    effects = {trial.name: trial.effect or 0.0 for trial in self.trials}
    taken = {t.shadow.round: t for t in self.trials if t.status == 'taken back'}
    for version in self.all(records.Promote):
      if trial := taken.get(version.round):
        effects[version.version] = -(trial.effect or 0.0)
    found = {self.base_version: 0.0}
    for name, parent in self.parents.items():
      found[name] = found.get(parent, 0.0) + effects.get(name, 0.0)
    return found

  # --------------------------------------------------------------------- cost

  @property
  def sandboxes(self) -> list[str]:
    """The tiers of the box under which the run's rows were made, sorted."""
    return sorted({row.sandbox for row in self.rows if row.sandbox})

  @property
  def seconds_by_step(self) -> dict[str, float]:
    """Device-seconds of each step, over the whole run."""
    spent: dict[str, float] = defaultdict(float)
    for row in self.rows:
      spent[row.record.STEP] += row.measured.device_seconds
    return dict(spent)

  @property
  def wall_seconds(self) -> float:
    return math.fsum(row.measured.seconds for row in self.rows)

  @property
  def trained_tokens(self) -> int:
    """Tokens sampled to train all arms; each arm counts once."""
    own = [*self.all(records.Retrain), *([self.base] if self.base else [])]
    raced = [arm for race in self.races for arm in race.arms]
    # An arm that is in two rows was trained once, so arms are keyed by folder.
    once = {arm.folder: arm.sampled_tokens for arm in [*own, *raced]}
    return sum(once.values())

  @property
  def policy_tokens(self) -> int:
    """Tokens sampled to train the states that became the policy."""
    return self._base_tokens + sum(
        version.sampled_tokens for version in self.all(records.Promote)
    )

  @property
  def _base_tokens(self) -> int:
    """Tokens sampled to train version 0; 0 if its training was left out."""
    if self.base is None or self.base.is_left_out:
      return 0
    return self.base.sampled_tokens

  @property
  def replayed_tokens(self) -> int:
    """Tokens sampled to score the replays of all backtests."""
    return sum(row.sampled_tokens for row in self.all(records.Backtest))

  @functools.cached_property
  def tokens_by_use(self) -> dict[str, int]:
    """Tokens sampled to train, by their use; and 'scores', those to score.

    Tokens of scores are known only after the sealed scores of the run.
    """
    in_policy = {
        folder
        for version in self.all(records.Promote)
        for folder in _trained_by(version)
    }
    uses = dict.fromkeys(
        ('policy', 'incumbents', 'candidates', 'shadows', 'replays'), 0
    )
    uses['policy'] = self._base_tokens
    if self.base and self.base.is_left_out:
      uses['incumbents'] = self.base.sampled_tokens
    once = {arm.folder: arm for race in self.races for arm in race.arms}
    for folder, arm in once.items():
      use = 'policy' if folder in in_policy else f'{arm.role}s'
      uses[use] += arm.sampled_tokens
    uses['replays'] = self.replayed_tokens
    if final := self.find(records.Final):
      # Older runs name this policy 'continued', see `records.Final`.
      raced = final.compute.get('continued', final.compute['evolved'])
      uses['scores'] = max(0, raced.total - sum(uses.values()))
    return uses

  @functools.cached_property
  def tokens_by_trial(self) -> dict[int, int]:
    """Number of a trial -> tokens sampled to train its own arms."""
    found = {
        (arm.trial, arm.folder): arm.sampled_tokens
        for race in self.races
        for arm in race.arms
    }
    tokens = dict.fromkeys((trial.number for trial in self.trials), 0)
    for (trial, _), count in found.items():
      if trial in tokens:
        tokens[trial] += count
    return tokens


def _ended(path: pathlib.Path, head: str) -> str:
  """Return why the run ended, if its summary was written at this head."""
  try:
    summary = json.loads(path.read_bytes())
  except (OSError, ValueError):
    return ''
  # A summary with another head is outdated: the run was continued after it.
  if not isinstance(summary, dict) or summary.get('ledger_head') != head:
    return ''
  return str(summary.get('ended', ''))


def read(workdir: str | os.PathLike[str]) -> History:
  """Return the history of a run, from the valid prefix of its ledger.

  Args:
    workdir: The run's directory; nothing in it is changed.

  Raises:
    ValueError: If there is no ledger, if it holds no valid row, or if a row
      does not match the declaration of its record.
  """
  path = pathlib.Path(workdir, run_files.LEDGER)
  if not path.is_file():
    raise ValueError(
        f'{workdir} holds no {path.name}; a run that evolves writes it with its'
        ' first step. Pass the --workdir of such a run'
    )
  rows = chain.read(path)
  lines = path.read_bytes().splitlines(keepends=True)
  dropped = sum(map(len, lines[len(rows) :]))
  if not rows:
    raise ValueError(
        f'{path} ({dropped:,} bytes) holds no whole row; build the page again'
        ' once the run has opened'
    )
  try:
    parsed = [rows_lib.parse(row) for row in rows]
  except rows_lib.RecordError as error:
    raise ValueError(f'{path}: {error}') from error
  ended = _ended(path.with_name(run_files.SUMMARY), parsed[-1].hash)
  return History(parsed, dropped, ended)


def _trained_by(version: records.Version) -> list[str]:
  """Return the folders of the arms whose training made a version.

  A version after a round whose arms are all left out, or made by a change
  that trains nothing, has none, although it reads the evidence of one.
  """
  if isinstance(version, records.Promote):
    return [source.folder for source in version.sources]
  return [version.folder]


def in_a_row(version: records.Version) -> list[str]:
  """Return the folders of a version's arms, each continuing the one before.

  If the version is a mean of arms, one arm represents all of them.
  """
  sources = getattr(version, 'sources', ())
  if sources and sources[-1].weight == 1:
    return [source.folder for source in sources]
  return [version.folder]
