"""Progress of a whole run in one line, with the time left to its end.

A run is a list of stages; a stage trains a number of arms for a number of steps
each, and scores them. The number of arms may be known only when the stage
begins; until then, the expected number is used. The time for the remaining
completions is estimated from the mean seconds per completion so far, separately
in training and in scoring.
"""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import math
import sys
import time
from typing import Any

import numpy as np

from evojax.runtime import numerals
from evojax.runtime import output

# (metric, heading, format), most important first: a line omits those that do
# not fit.
FIELDS = (
    ('outcome', 'solved', '{:.1%}'),
    ('reward', 'reward', '{:.3f}'),
    ('dead_groups', 'dead', '{:.0%}'),
    ('n_tokens', 'tokens', '{:.1f}'),
    ('tokens_per_second', 'tok/s', '{:,.0f}'),
    ('step_seconds', 's/step', '{:.2f}'),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
  """A part of a run: arms that are trained and scored."""

  name: str  # Shown in the line: 'round 0 (1/6) incumbent'.
  arms: int = 1  # Largest number of arms.
  expected: float | int | None = None  # Expected arms; None: all of them.
  steps: int = 0  # Updates per arm.
  prompts: int = 0  # Prompts per step.
  group_size: int = 0  # Completions per prompt.
  side_by_side: bool = False  # Workers may train arms at the same time.
  replays: bool = False  # The steps learn from saved rollouts.
  scores: int = 1  # Times an arm is scored; the last time is at its end.
  problems: int = 0  # Problems per score.
  samples: int = 0  # Samples per problem.

  @property
  def completions(self) -> int:
    """The completions per step."""
    return self.prompts * self.group_size

  @property
  def scored(self) -> int:
    """The completions per score."""
    return self.problems * self.samples

  def left(
      self, arm: int, step: int, replay_known: bool = False
  ) -> dict[str, float | int]:
    """Return the units of work that are probably left in this stage, by kind.

    Args:
      arm: Number of finished arms.
      step: Number of finished steps of the next arm.
      replay_known: True if the time of a whole stage of replays was measured:
        such a stage then counts as one unit of 'replay'.
    """
    expected = self.arms if self.expected is None else self.expected
    arms = max(expected - arm - (step / self.steps if self.steps else 0), 0)
    whole = max(expected - arm, 0)
    if self.replays and replay_known:
      return {'replay': min(whole, 1)}
    return {
        'train': arms * self.steps * self.completions,
        'score': (whole + arms * (self.scores - 1)) * self.scored,
        'arm': arms,
    }


def sparkline(values: list[float], width: int) -> str:
  """Return values as up to `width` block characters; average if needed."""
  if not values:
    return ''
  cuts = np.array_split(np.asarray(values, np.float64), min(width, len(values)))
  points = np.array([cut.mean() for cut in cuts])
  span = np.ptp(points)
  levels = (points - points.min()) / span * 7 if span else points * 0 + 3
  return ''.join('▁▂▃▄▅▆▇█'[round(level)] for level in levels)


def _fit(line: str, cells: Sequence[str], end: str, columns: int) -> str:
  """Return a line with as many cells as fit before its end.

  If the first cell and the end do not both fit, the end is left out.
  """
  if cells and len(line + cells[0] + end) > columns:
    end = ''
  for cell in cells:
    if len(line + cell + end) <= columns:
      line += cell
  return line + end


class Progress(contextlib.AbstractContextManager):
  """A display of a run's progress; a context manager.

  In a terminal, it is two lines that are updated in place below other output.
  Elsewhere (a file, CI, a notebook), it is one plain line per `every` steps.
  """

  def __init__(
      self,
      stages: Sequence[Stage],
      *,
      every: int = 1,
      shown: bool = True,
      clock=time.monotonic,
  ):
    """Prepare the display.

    Args:
      stages: The stages of the run in order, as far as they are known.
      every: Steps between plain lines; an arm's last step always has a line.
      shown: False if another process shows the progress.
      clock: Returns seconds.
    """
    self._stages, self._every, self._clock = list(stages), every, clock
    self._shown, self._live = shown, None
    self._index = self._arm = self._step = 0
    self._whose = ''
    # Measured seconds and units of work by kind. The seconds of 'arm' are the
    # rest of the time, which `left` computes.
    self._seconds = dict.fromkeys(('train', 'score', 'replay'), 0.0)
    self._units = dict.fromkeys((*self._seconds, 'arm'), 0.0)
    # End of the first step, which contains the compilation: the pace is
    # measured from there on.
    self._since: float | None = None
    # Time at which the current arm began, or of the last `update_beside`.
    self._changed = 0.0
    self._solved: list[float] = []

  def __enter__(self) -> 'Progress':
    if self._shown and sys.stdout.isatty():
      from rich import console  # Imported here: plain lines do not need it.
      from rich import live

      terminal = console.Console(highlight=False)
      if not terminal.is_dumb_terminal:
        # A refreshing thread would write into the output of other threads.
        self._live = live.Live(console=terminal, auto_refresh=False)
        self._live.start()
    return self

  def __exit__(self, *_) -> None:
    self.close()

  def close(self) -> None:
    """End the display; later output appears below it."""
    if self._live is not None:
      self._live.stop()
      self._live = None

  # -------------------------------------------------------------- position

  def enter(
      self,
      name: str,
      *,
      arm: int = 0,
      arms: int | None = None,
      whose: str = '',
  ) -> None:
    """Begin an arm of a stage; earlier arms and stages are done or skipped.

    Args:
      name: Name of the stage.
      arm: Number of arms of the stage before this one.
      arms: New number of arms, if it has become known only now.
      whose: Owner of the arm, in a stage with arms of several harnesses; shown
        in place of the last word of the name.
    """
    index = [stage.name for stage in self._stages].index(name)
    if arms is not None:
      stage = dataclasses.replace(self._stages[index], arms=arms, expected=None)
      self._stages[index] = stage
    # If arms train in parallel, the display may already be ahead of this arm.
    if (index, arm) > (self._index, self._arm):
      if self._stage.replays and self._since is not None:
        self._units['replay'] += 1
        self._seconds['replay'] += self._clock() - self._changed
      self._index, self._arm, self._step, self._solved = index, arm, 0, []
      self._changed = self._clock()
    if (index, arm) == (self._index, self._arm):
      self._whose = whose

  @property
  def _stage(self) -> Stage:
    return self._stages[self._index]

  @property
  def done(self) -> int:
    """Number of finished steps of the stage."""
    return self._arm * self._stage.steps + self._step

  def update(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Show a finished step of the arm.

    Args:
      step: The step, counted from 1.
      metrics: Host numbers by name; those in FIELDS are shown.
    """
    stage = self._stage
    if self._since is None:
      self._since = self._clock()
    else:
      self._add(1, metrics.get('step_seconds', 0.0))
    self._step = step
    name = stage.name
    if self._whose:
      name = f'{name.rpartition(" ")[0]} {self._whose}'
    if stage.arms > 1:
      name += f' {self._arm + 1}/{stage.arms}'
    due = step % self._every == 0 or step == stage.steps
    self._show(f'{name} step {step}/{stage.steps}', metrics, due=due)

  def update_beside(self, steps: int, metrics: Mapping[str, Any]) -> None:
    """Show the progress of a stage whose arms train side by side.

    Args:
      steps: Number of finished steps of all arms of the stage together.
      metrics: Metrics of the newest step.
    """
    stage, now = self._stage, self._clock()
    done = self.done
    if steps <= done:
      return
    if self._since is None:
      self._since = now
    else:
      self._add(steps - done, now - self._changed)
    self._changed = now
    self._arm, self._step = divmod(steps, stage.steps)
    arms = f'{stage.arms} arms, ' if stage.arms > 1 else ''
    where = f'{stage.name} {arms}step {steps}/{stage.arms * stage.steps}'
    self._show(where, metrics, due=True)

  @contextlib.contextmanager
  def scoring(self, completions: int) -> Iterator[None]:
    """Measure the time of the completions that score a policy."""
    began = self._clock()
    yield
    if self._since is not None:
      self._units['score'] += completions
      self._seconds['score'] += self._clock() - began

  def _add(self, steps: int, seconds: float) -> None:
    stage = self._stage
    self._units['train'] += steps * stage.completions
    self._units['arm'] += steps / stage.steps
    self._seconds['train'] += seconds

  def left(self) -> float | None:
    """Return the seconds probably left to the end of the run, at its pace.

    None before the end of the second step, because nothing is measured yet.
    """
    if not self._seconds['train']:
      return None
    pace = {k: s / (self._units[k] or 1) for k, s in self._seconds.items()}
    if not self._units['score']:  # Assumption: sampling is half of a step.
      pace['score'] = pace['train'] / 2
    other = self._clock() - self._since - sum(self._seconds.values())
    pace['arm'] = max(other, 0.0) / self._units['arm']
    first, *later = self._stages[self._index :]
    known = self._units['replay'] > 0
    ahead = [first.left(self._arm, self._step, known)]
    ahead += [stage.left(0, 0, known) for stage in later]
    return sum(pace[kind] * n for left in ahead for kind, n in left.items())

  # ------------------------------------------------------------------ show

  def _show(
      self, where: str, metrics: Mapping[str, Any], *, due: bool
  ) -> None:
    """Print or log a line if one is due, and update the live block."""
    if not self._shown:
      return
    left, end = self.left(), ''
    if left is not None:
      open_ = any(s.expected is not None for s in self._stages[self._index :])
      end = f'  {"about " if open_ else ""}{numerals.duration(left)} left'
    cells = [
        f'  {heading} {form.format(metrics[name])}'
        for name, heading, form in FIELDS
        if metrics.get(name) is not None and math.isfinite(metrics[name])
    ]
    line = _fit(where.strip(), cells, end, output.width())
    logged = _fit(where.strip(), cells, end, output.LOGGED)
    if metrics.get('outcome') is not None:
      self._solved.append(float(metrics['outcome']))
    if self._live is None and due:
      output.say(line, logged=logged)
    elif self._live is not None:
      self._live.update(self._block(line, left), refresh=True)
      if due:
        output.log(logged)

  def _block(self, line: str, left: float | None) -> Any:
    """Return the line above a bar of the run and the shares solved so far."""
    from rich import console
    from rich import progress_bar
    from rich import table
    from rich import text

    spent = self._clock() - self._since
    bar = progress_bar.ProgressBar(
        spent + (left or 0) or 1, spent if left is not None else 0, 40
    )
    grid = table.Table.grid(padding=(0, 1))
    cells = [bar]
    if self._solved:
      span = f'{self._solved[0]:.1%} → {self._solved[-1]:.1%}'
      cells += [f'[cyan]{sparkline(self._solved, 20)}[/]', span]
    grid.add_row(*cells)
    return console.Group(text.Text(line, overflow='ellipsis'), grid)
