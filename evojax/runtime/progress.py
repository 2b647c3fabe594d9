"""Progress of a run: a live block in a terminal, plain lines elsewhere."""

from collections.abc import Mapping
import contextlib
import io
import math
import sys
import time
from typing import Any

import numpy as np

# (metric, heading, format); a metric that a step lacks is shown as '-'.
FIELDS = (
    ('reward', 'reward', '{:.3f}'),
    ('outcome', 'solved', '{:.1%}'),
    ('dead_groups', 'dead', '{:.0%}'),
    ('n_tokens', 'tokens', '{:.1f}'),
    ('tokens_per_second', 'tok/s', '{:,.0f}'),
    ('step_seconds', 's/step', '{:.2f}'),
)
_WIDTH = 9


def duration(seconds: float) -> str:
  """Return a duration as 42 s, 3 min 05 s or 2 h 07 min."""
  minutes, rest = divmod(round(seconds), 60)
  if minutes >= 60:
    return f'{minutes // 60} h {minutes % 60:02} min'
  return f'{minutes} min {rest:02} s' if minutes else f'{rest} s'


def sparkline(values: list[float], width: int) -> str:
  """Return values as at most `width` blocks, averages where there are more."""
  if not values:
    return ''
  cuts = np.array_split(np.asarray(values, np.float64), min(width, len(values)))
  points = np.array([cut.mean() for cut in cuts])
  span = np.ptp(points)
  levels = (points - points.min()) / span * 7 if span else points * 0 + 3
  return ''.join('▁▂▃▄▅▆▇█'[round(level)] for level in levels)


def _cells(metrics: Mapping[str, Any]) -> list[str]:
  """Return the formatted FIELDS of one step."""
  values = ((metrics.get(name), form) for name, _, form in FIELDS)
  return [
      '-' if value is None or not math.isfinite(value) else form.format(value)
      for value, form in values
  ]


class Progress(contextlib.AbstractContextManager):
  """Shows every step of a run; a context manager.

  In a terminal, one row per step scrolls by above a bar with the time left and
  the solved share so far. Elsewhere (a log file, CI, a notebook) one plain line
  per step, without control characters.
  """

  def __init__(
      self,
      steps: int,
      *,
      start: int = 0,
      every: int = 1,
      out: io.TextIOBase | None = None,
      clock=time.monotonic,
  ):
    """Prepare the display.

    Args:
      steps: Last step of the run.
      start: Step the run starts from.
      every: Steps between rows; the last step always has one.
      out: Where to show it, stdout by default.
      clock: Seconds.
    """
    self._steps, self._done, self._every = steps, start, every
    self._out, self._clock = out or sys.stdout, clock
    # The first step compiles, so the time left counts from its end.
    self._first: tuple[int, float] | None = None
    self._solved: list[float] = []
    self._live = None
    if self._out.isatty():
      from rich import console  # Imported here: plain lines do not need it.
      from rich import live

      terminal = console.Console(file=self._out, highlight=False)
      if not terminal.is_dumb_terminal:
        # A thread that refreshes would write between the lines of others.
        self._live = live.Live(console=terminal, auto_refresh=False)

  def __enter__(self) -> 'Progress':
    if self._live is not None:
      self._live.start()
      heads = ''.join(f'{head:>{_WIDTH}}' for _, head, _ in FIELDS)
      self._live.console.print(f'[bold]{"step":>10}{heads}[/bold]')
    return self

  def __exit__(self, *_) -> None:
    if self._live is not None:
      self._live.stop()

  def print(self, text: str) -> None:
    """Print a line, above the live block if there is one."""
    if self._live is not None:
      self._live.console.print(text, markup=False)
    else:
      print(text, file=self._out, flush=True)

  def eta(self) -> str:
    """Return the time left at the pace so far; '-' before the second step."""
    if self._first is None or self._done == self._first[0]:
      return '-'
    step, time_then = self._first
    pace = (self._clock() - time_then) / (self._done - step)
    return duration(pace * (self._steps - self._done))

  def update(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Show a finished step.

    Args:
      step: The step, counted from 1.
      metrics: Host numbers by name, of which FIELDS are shown.
    """
    self._done = step
    if self._first is None:
      self._first = (step, self._clock())
    if metrics.get('outcome') is not None:
      self._solved.append(float(metrics['outcome']))
    row = step % self._every == 0 or step == self._steps
    cells = _cells(metrics)
    label = f'{step}/{self._steps}'
    if self._live is not None:
      if row:
        values = ''.join(f'{cell:>{_WIDTH}}' for cell in cells)
        self._live.console.print(f'[dim]{label:>10}[/dim]{values}')
      self._live.update(self._block(), refresh=True)
    elif row:
      values = '  '.join(
          f'{head} {cell}'
          for (_, head, _), cell in zip(FIELDS, cells, strict=True)
          if cell != '-'
      )
      self.print(f'step {label}  {values}  left {self.eta()}')

  def _block(self) -> Any:
    """Return a bar, the time left, and the solved share as a sparkline."""
    from rich import progress_bar
    from rich import table

    done, steps = self._done, self._steps
    bar = progress_bar.ProgressBar(steps, done, 40, complete_style='cyan')
    grid = table.Table.grid(padding=(0, 1))
    grid.add_row('  steps', bar, f'{done}/{steps}, left {self.eta()}')
    if self._solved:
      span = f'{self._solved[0]:.1%} → {self._solved[-1]:.1%}'
      grid.add_row(' solved', f'[cyan]{sparkline(self._solved, 40)}[/]', span)
    return grid
