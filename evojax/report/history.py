"""What a ledger says, arranged by trial; every row may still be missing.

A page is built while a run goes on, after it failed, and from ledgers whose
last line a kill has torn: the longest true prefix counts, the rest is left out
and said to be.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import json
import math
import os
import pathlib
from typing import Any

from evojax.ledger import chain


def number(value: Any) -> float | None:
  """A finite number as a float, None for anything else."""
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    return None
  return float(value) if math.isfinite(value) else None


def interval(value: Any) -> tuple[float, float] | None:
  """[low, high] as two floats, None for anything else."""
  if not isinstance(value, (list, tuple)) or len(value) != 2:
    return None
  low, high = map(number, value)
  return None if low is None or high is None else (low, high)


@dataclasses.dataclass(frozen=True)
class Trial:
  """All rows of one trial; of two rows of one step the later counts."""

  index: int  # 0, 1, ... in the order of the ledger.
  number: int  # The ledger's `trial`.
  rows: Mapping[str, Mapping[str, Any]]  # Step -> payload.
  seconds: Mapping[str, float]  # Step -> device-seconds, all rows of it.

  def get(self, step: str, name: str, default: Any = None) -> Any:
    """A field of a step's row; the default where either is missing."""
    value = self.rows.get(step, {}).get(name)
    return default if value is None else value

  @property
  def anchor(self) -> str:
    return f'trial-{self.number}'

  @property
  def name(self) -> str:
    """The version it made, or 'trial 3' if nothing was kept."""
    return str(self.get('verify', 'version') or f'trial {self.number}')

  @property
  def label(self) -> str:
    """The name where there is little room."""
    return str(self.get('verify', 'version') or f't{self.number}')

  @property
  def parent(self) -> str:
    return str(self.get('hypothesize', 'version', ''))

  @property
  def status(self) -> str:
    """The verdict, or how far the trial got."""
    verdict = self.get('verify', 'status')
    if verdict is not None:
      return str(verdict)
    if self.get('admit', 'reasons'):
      return 'refused'
    return 'running'

  @property
  def kind(self) -> str:
    """'keep', 'discard', 'failed' or 'running': how a verdict is drawn."""
    if self.status == 'running':
      return 'running'
    if self.status == 'keep':
      return 'keep'
    # Every failure has a status of its own.
    return 'discard' if self.status == 'discard' else 'failed'

  @property
  def delta(self) -> Mapping[str, Any]:
    return self.get('design', 'delta', {})

  @property
  def arms(self) -> list[Mapping[str, Any]]:
    return list(self.get('trial', 'arms', ()))

  @property
  def effect(self) -> float | None:
    return number(self.get('verify', 'effect'))

  @property
  def realised(self) -> tuple[float, float] | None:
    """The interval of the effect."""
    ends = [self.get('verify', 'low'), self.get('verify', 'high')]
    return interval(ends)

  @property
  def expected(self) -> tuple[float, float] | None:
    """The effect that the proposer predicted."""
    return interval(self.get('hypothesize', 'expected'))

  @property
  def backtested(self) -> tuple[float, float] | None:
    """The effect that the backtest predicted."""
    return interval(self.get('backtest', 'predicted'))

  @property
  def device_seconds(self) -> float:
    return sum(self.seconds.values())

  def folders(self, role: str, name: str) -> list[str]:
    """Folders of the role's arms: name 'arm' is scored, 'trained' learned."""
    own = [a for a in self.arms if a.get('role') == role]
    return [str(arm.get(name) or '') for arm in own]


@dataclasses.dataclass(frozen=True)
class History:
  """A run as its ledger tells it."""

  rows: Sequence[Mapping[str, Any]]  # Payloads.
  measured: Sequence[Mapping[str, Any]]  # Of each row.
  dropped: int  # Bytes at the end that are no true rows.
  ended: str  # Why the run ended, '' while it runs or where nothing says so.

  def of(self, step: str) -> list[Mapping[str, Any]]:
    """Payloads of a step."""
    return [row for row in self.rows if row['step'] == step]

  @property
  def dev_draws(self) -> int:
    return chain.dev_draws(self.rows)

  @property
  def sandboxes(self) -> list[str]:
    """Tiers of the box that the run's rows were made in, sorted."""
    return sorted({str(r['sandbox']) for r in self.rows if r.get('sandbox')})

  def last(self, step: str) -> Mapping[str, Any]:
    """The newest payload of a step, empty if there is none."""
    found = self.of(step)
    return found[-1] if found else {}

  @functools.cached_property
  def trials(self) -> list[Trial]:
    """In the order in which they began; nothing proposed is no trial."""
    rows: dict[int, dict[str, Mapping[str, Any]]] = {}
    seconds: dict[int, dict[str, float]] = {}
    for row, measured in zip(self.rows, self.measured, strict=True):
      key = row.get('trial')
      if isinstance(key, bool) or not isinstance(key, int):
        continue
      step = row['step']
      rows.setdefault(key, {})[step] = row
      spent = number(measured.get('device_seconds')) or 0.0
      of_trial = seconds.setdefault(key, {})
      of_trial[step] = of_trial.get(step, 0.0) + spent
    proposed = lambda key: rows[key].get('hypothesize', {}).get('proposer')
    idle = {'diagnose', 'hypothesize'}
    began = [key for key in rows if proposed(key) or rows[key].keys() - idle]
    return [
        Trial(index, key, rows[key], seconds[key])
        for index, key in enumerate(began)
    ]

  @functools.cached_property
  def base(self) -> Mapping[str, Any]:
    """The training of the first version."""
    trained = self.of('train')
    return trained[0] if trained else {}

  @functools.cached_property
  def base_version(self) -> str:
    return str(self.base.get('version', 'v0'))

  @functools.cached_property
  def head(self) -> str:
    """The version that training goes on from."""
    return str(
        self.last('accumulate').get('head')
        or next(
            (t.name for t in reversed(self.trials) if t.kind == 'keep'),
            self.base_version,
        )
    )

  @functools.cached_property
  def parents(self) -> dict[str, str]:
    """Version or trial -> the version that it changed; the base has none."""
    known = {self.base_version}
    parents = {}
    for trial in self.trials:
      parent = trial.parent
      parents[trial.name] = parent if parent in known else self.base_version
      known.add(trial.name)
    return parents

  @functools.cached_property
  def lineage(self) -> list[str]:
    """From the base to the head."""
    chain = [self.head]
    while chain[-1] in self.parents:
      chain.append(self.parents[chain[-1]])
    return chain[::-1]

  @property
  def seconds_by_step(self) -> dict[str, float]:
    """Device-seconds of each step, over the whole run."""
    spent: dict[str, float] = {}
    for row, measured in zip(self.rows, self.measured, strict=True):
      seconds = number(measured.get('device_seconds')) or 0.0
      spent[row['step']] = spent.get(row['step'], 0.0) + seconds
    return spent

  @property
  def wall_seconds(self) -> float:
    return sum(number(m.get('seconds')) or 0.0 for m in self.measured)


def _ended(path: pathlib.Path, head: str) -> str:
  """Why the run ended, from a summary that was written at this head."""
  try:
    summary = json.loads(path.read_bytes())
  except (OSError, ValueError):
    return ''
  if not isinstance(summary, dict) or summary.get('ledger_head') != head:
    return ''
  return str(summary.get('ended', ''))


def read(workdir: str | os.PathLike[str]) -> History:
  """The ledger of a run, as far as it is true.

  Args:
    workdir: The run's directory.

  Raises:
    ValueError: If there is no ledger, or no whole row in it.
  """
  path = pathlib.Path(workdir, 'ledger.jsonl')
  if not path.is_file():
    raise ValueError(
        f'{workdir} holds no {path.name}; a run that evolves writes it with its'
        ' first step. Pass the --workdir of such a run'
    )
  rows = chain.read(path)
  data = path.read_bytes()
  if not rows:
    raise ValueError(
        f'{path} ({len(data):,} bytes) holds no whole row; build the page again'
        ' once the run has opened'
    )
  lines = data.splitlines(keepends=True)
  return History(
      rows=[row['payload'] for row in rows],
      measured=[row['measured'] for row in rows],
      dropped=sum(map(len, lines[len(rows) :])),
      ended=_ended(path.with_name('summary.json'), rows[-1]['hash']),
  )
