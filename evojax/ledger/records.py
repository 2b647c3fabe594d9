"""The records of the ledger: one frozen dataclass per step of the loop.

`ledger.rows` writes them as rows of the ledger and reads them back; no other
package uses the keys of a row on disk. A row holds the fields of its record and
`schema`, the version of that record.

To change a record: change its fields, add 1 to its VERSION, and add to
`ledger.upgrades` a function that turns a row of the former version into a new
one.
"""

import dataclasses
import operator
from typing import Any, ClassVar

Interval = tuple[float, float]  # Lower and upper end.
Threshold = tuple[str, float]  # ('>', 0.3): too high above 0.3.
# Comparisons that a threshold may name.
_BEYOND = {'>': operator.gt, '<': operator.lt}


# -------------------------------------------------------------- parts of rows


@dataclasses.dataclass(frozen=True)
class Measure:
  """One diagnostic of a version: a number and its alarm level."""

  name: str
  layer: str  # One of `harness.run.LAYERS`.
  unit: str
  value: float | None  # None if level is 'failed'.
  warn: Threshold | None
  critical: Threshold | None
  level: str  # 'ok', 'warn', 'critical' or 'failed'.
  # Why a diagnostic failed (crash, hang, name_taken, ...), or why a value
  # beyond a threshold raises no alert.
  status: str = ''
  calls_for: tuple[str, ...] = ()  # Intervention classes that may repair it.

  @property
  def beyond(self) -> str:
    """The level that the thresholds alone give: 'ok', 'warn' or 'critical'."""
    level = 'ok'
    for name in ('warn', 'critical'):
      threshold = getattr(self, name)
      if self.value is not None and threshold:
        if _BEYOND[threshold[0]](self.value, threshold[1]):
          level = name
    return level


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remedy:
  """A change of one setting that may repair a fault found by a diagnosis."""

  setting: str  # A name of `diagnosis.words`, or a config path.
  part: str = ''  # The reward part, if the setting is 'weight'.
  # The new value; None multiplies the present value by `times`. For 'tools',
  # the tool to add.
  value: float | int | bool | str | None = None
  times: float = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
  """One finding of `evojax-diagnose`, as stored by the meta-loop."""

  check: str
  severity: str  # One of `diagnosis.findings.SEVERITIES`.
  text: str
  remedies: tuple[Remedy, ...]  # The most likely first.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Delta:
  """The one factor in which a candidate differs from its parent."""

  sha256: str  # Hash of the change, independent of the parent.
  factor: str
  kind: str  # 'recipe' (a config value) or 'harness' (a function).
  intervention_class: str
  before: str  # Hash of the parent harness.
  # (path, value before, value after) of every value that changes.
  changes: tuple[tuple[str, Any, Any], ...]
  text: str  # The change in one line.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
  """The training of a policy under a harness."""

  folder: str  # Folder of evidence and checkpoints, relative to the workdir.
  harness: str  # Hash.
  start: str  # Fingerprint of the state before training.
  end: str  # Fingerprint of the state after training.
  updates: int  # 0 if nothing was trained.
  outcome: tuple[float, ...]  # Share of solved rollouts, one for each update.
  sampled_tokens: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm(Trained):
  """A harness trained from a checkpoint, under a seed; stored in `arm.json`."""

  VERSION: ClassVar[int] = 1

  seed: int
  status: str  # 'done', or why it ended early: crash, futility, collapse, ...
  why: str  # The reason in words, '' for 'done'.


@dataclasses.dataclass(frozen=True, kw_only=True)
class RacedArm(Arm):
  """An arm of a round. Arms of one pair share problems and sampler seeds."""

  role: str  # 'incumbent', 'candidate' or 'shadow'.
  trial: int | None  # Trial whose change it tests; None for the incumbent.
  pair: int  # 0, 1, ...
  # Solved share by which the pairs of a round are compared: of the arm's own
  # rollouts or of dev problems. None if the arm ended before it had one.
  score: float | None
  dev: str  # Folder of its dev evidence, which exists only if dev was scored.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
  """The results of a candidate after a round.

  Differences are candidate minus incumbent, as fractions of solved problems.
  """

  trial: int
  index: int  # 1, 2, ...: the order in which candidates entered the run.
  rounds: int  # Number of rounds it has raced so far.
  differences: tuple[float, ...]  # One for each pair of this round.
  errors: tuple[float, ...]  # Their standard errors over problems.
  # The fields from here on are over all its rounds.
  pairs: int
  effect: float | None  # Mean difference; None if there are too few pairs.
  standard_error: float | None
  low: float | None  # 95 % interval of the effect.
  high: float | None
  e_value: float  # Evidence for an effect above 0 or, for some, above -MARGIN.
  threshold: float | None  # The e-value that keeps it; None if not tested.
  detectable: float | None  # Effect that is detected with probability 0.8.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Queued:
  """The place of a candidate in the queue for a round, see `evolve.ranking`."""

  trial: int
  predicted: Interval | None  # The interval that orders it, if there is one.
  enters: bool  # False: it waits for the next round.
  reason: str  # Why it has this place.
  # Whether the remaining rounds are unlikely to prove its predicted gain.
  hopeless: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
  """A trained state that is part of a policy's weighted mean."""

  folder: str  # Folder of the arm.
  harness: str  # Hash.
  end: str  # Fingerprint of the state.
  weight: float


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A mean fraction of solved problems, with its 95 % interval."""

  value: float
  standard_error: float
  low: float
  high: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokens:
  """Tokens sampled on behalf of one policy."""

  training: int  # To train this policy.
  total: int  # In its whole run.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Validity:
  """The predicted effects of one trial and the effect that it realised."""

  intervention_class: str
  proposer: str
  predicted: float  # Middle of the interval that the proposer expected.
  replayed: float | None  # Effect of the replayed updates; None if unknown.
  realised: float | None
  # None if nothing was realised or the prediction has no sign.
  sign_agrees: bool | None
  replay_sign_agrees: bool | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
  """The cost of a row. No chain hash covers it, as it differs between runs."""

  seconds: float = 0.0
  device_seconds: float = 0.0  # Seconds of all devices of the run.
  peak_rss_mb: float = 0.0


# --------------------------------------------------------- a record per step


STEPS: dict[str, type['Record']] = {}  # All records below, by their step.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
  """The findings and decisions of one step; the class has the step's name."""

  STEP: ClassVar[str]
  VERSION: ClassVar[int] = 1

  def __init_subclass__(cls, step: bool = True):
    """Register the step; `step=False` marks a base class of several records."""
    cls.STEP = cls.__name__.lower()
    if step:
      STEPS[cls.STEP] = cls


@dataclasses.dataclass(frozen=True, kw_only=True)
class Version(Record, Trained, step=False):
  """A harness with the policy that it trained: a node of the lineage."""

  version: str  # 'v0', 'v1', ...
  parent: str | None  # Version of the parent; None for the first.
  # Checkpoint of the state `end`, from which training continues; a path
  # relative to the workdir.
  checkpoint: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfTrial(Record, step=False):
  """A step of one trial."""

  trial: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Open(Record):
  """The start of a run."""

  config: dict[str, Any]  # Resolved, nested.
  config_sha256: str
  harness: str  # Hash of the seed harness.
  proposer: str
  jax: str  # Version of JAX.
  forked: str  # '<run>:<version>' that the run was forked from, or ''.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train(Version):
  """The first version: the seed harness, trained from the base policy."""

  prompts: int  # P of one update.
  group_size: int  # G of one update.

  @property
  def is_left_out(self) -> bool:
    """True if the training is discarded: rounds start from the base policy."""
    return not self.checkpoint.startswith(f'{self.folder}/')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Diagnose(OfTrial):
  """Measures of the version that a trial starts from."""

  VERSION: ClassVar[int] = 3

  round: int  # Round in which the trial began.
  version: str
  measures: tuple[Measure, ...]
  alerts: tuple[str, ...]  # Names of the measures that alert, worst first.
  # Findings of `evojax-diagnose` about the training so far, worst first.
  findings: tuple[Finding, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hypothesize(OfTrial):
  """A proposal; if there is none, all but `version` and `note` is empty."""

  version: str  # Version of the parent.
  proposer: str = ''
  trigger: str = ''  # Alert or rule that led to the proposal.
  hypothesis: str = ''
  expected: Interval | None = None  # Effect on Avg@k, fractions.
  criterion: str = ''
  rollback: str = ''
  source: str = ''  # Paper, equation or earlier trial.
  skill: str = ''  # Hash of the skill that it applies.
  note: str = ''  # Why a change is tried again, or why there is none.
  harness: str = ''  # Hash of the candidate.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Design(OfTrial):
  """The candidate and its checked difference from the parent."""

  harness: str
  delta: Delta


@dataclasses.dataclass(frozen=True, kw_only=True)
class Admit(OfTrial):
  """The decision of the gate on a candidate."""

  reasons: tuple[str, ...]  # Reasons for a refusal; () if it is admitted.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backtest(OfTrial):
  """The effect that the candidate would have had on recorded evidence."""

  VERSION: ClassVar[int] = 2

  key: str  # Hash of all inputs, '' after a crash.
  statistics: dict[str, float | str]  # A text says why there is no number.
  predicted: Interval | None  # 95 % interval of the replayed effect.
  sampled_tokens: int = 0  # Tokens sampled to score the replays.
  crash: str = ''


@dataclasses.dataclass(frozen=True, kw_only=True)
class Race(Record):
  """The arms of a round, and the standings of candidates after it."""

  # Versions 0 and 1 were a trial of one change, under the step 'trial'.
  VERSION: ClassVar[int] = 4

  round: int
  version: str  # Version from whose state the round started.
  start: str  # Fingerprint of that state.
  scored_by: str  # 'rollouts' of the arms, or 'dev' problems.
  arms: tuple[RacedArm, ...]
  standings: tuple[Standing, ...]
  # The candidates that had not raced before the round, first come first.
  queue: tuple[Queued, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verify(OfTrial):
  """The verdict on a candidate; numbers are None if it was not raced."""

  VERSION: ClassVar[int] = 2

  version: str  # The version that the change made, '' unless it is kept.
  status: str  # 'keep', 'discard', 'disqualified', 'crash', ...
  reasons: tuple[str, ...]  # One sentence per condition that decided.
  alerts: tuple[str, ...] = ()  # Critical alerts that the incumbent lacks.
  effect: float | None = None  # Candidate minus incumbent, a fraction.
  standard_error: float | None = None
  low: float | None = None  # 95 % interval of the effect.
  high: float | None = None
  rounds: int | None = None
  pairs: int | None = None
  e_value: float | None = None
  threshold: float | None = None  # The e-value that keeps a change.
  perturbed_effect: float | None = None
  perturbed_error: float | None = None  # Its standard error.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit(OfTrial):
  """A candidate's score on perturbed problems; evolve.audits limits them."""

  round: int
  differences: tuple[float, ...]  # Candidate minus incumbent, one per pair.
  errors: tuple[float, ...]  # Their standard errors over problems.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shadow(OfTrial):
  """A comparison of the policy with its shadow, which lacks a kept change.

  The former harness trains the shadow for some more rounds, because a change
  that helped at first may hurt later.
  """

  round: int
  look: int  # Index of the comparison; 0 is when the change is kept.
  harness: str  # Hash of the former harness.
  checkpoint: str  # Checkpoint of the shadow, relative to the workdir.
  end: str  # Fingerprint of the shadow's state.
  folder: str  # Folder of the arm that represents it, see `promote.State`.
  differences: tuple[float, ...]  # Policy minus shadow, one per pair.
  errors: tuple[float, ...]  # Their standard errors over problems.
  # 'go_on', 'keep', 'drop', which takes the change back, or 'unchecked': the
  # change stays, but the shadow could not train long enough.
  decision: str
  reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Promote(Version):
  """The policy after a round, under the harness that won the round."""

  VERSION: ClassVar[int] = 3

  round: int | None  # None if a kept change that trains nothing made it.
  # The policy is x + outer_learning_rate (m - x), where x is the state that the
  # sources started from and m is their weighted mean.
  outer_learning_rate: float
  sources: tuple[Source, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Accumulate(OfTrial):
  """The lessons of a trial: a skill, and the validity of its predictions."""

  VERSION: ClassVar[int] = 2

  skill: str  # Hash of the skill that was written; '' if none.
  validity: Validity


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retrain(Record, Arm):
  """The final harness, trained again from the base policy."""

  version: str  # 'final'.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seal(Record):
  """The salt and the seed of the sealed problems."""

  salt: str
  seed: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Final(Record):
  """Sealed scores of all policies on the same problems.

  'evolved' is the policy of the head; 'retrained' is a policy that the head's
  harness trained from the base policy. Runs of versions of evojax without races
  named these 'continued' and 'evolved'.
  """

  harness: str
  version: str  # Version of the head.
  problems: int
  samples: int  # Completions of each problem.
  scores: dict[str, Estimate | None]  # By policy; None for a policy not scored.
  gains: dict[str, Estimate]  # Over the base policy.
  evolved_over: dict[str, Estimate]  # The evolved policy minus another.
  compute: dict[str, Tokens]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stop(Record):
  """The reason why a run stopped early; the same command may continue it."""

  reason: str
