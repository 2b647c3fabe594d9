"""Charts as data; `templates/svg.html` draws them as inline SVG.

Positions are shares of a picture's width and height, so that a chart is as wide
as the page while its text keeps its size; only lines are in a nested picture
that stretches, with strokes that do not. Colours are classes, defined for both
themes in the page's style.
"""

from collections.abc import Iterable
import dataclasses
import math
import re
from typing import Any

from evojax.ledger import records

Real = float | int
Point = tuple[Real, Real]
# Minimum width of a scale, as a share of its largest number.
_LEAST_SHARE = 0.03
_HARMLESS = str.maketrans('', '', '\n\t')
# Characters that reorder or break the text around them (bidirectional controls,
# escape sequences, lone surrogates) are shown by their codes. Joiners are kept,
# since emoji need them.
_JOINERS = '\u200c\u200d\ufe0f'


def visible(text: str) -> str:
  """Return a text with its control characters made visible."""
  if text.translate(_HARMLESS).isprintable():
    return text
  return ''.join(
      c if c.isprintable() or c in '\n\t' or c in _JOINERS else repr(c)[1:-1]
      for c in text
  )


def length(share: float | int) -> str:
  """Return a fraction of the drawing as a length: 0.25 -> '25%'."""
  return re.sub(r'\.?0+%$', '%', f'{100 * share:.2f}%')


def path(points: Iterable[Point]) -> str:
  """Return points, as shares, in the form of a polyline in thousandths."""
  return ' '.join(f'{1000 * x:.1f},{1000 * y:.1f}' for x, y in points)


@dataclasses.dataclass(frozen=True)
class Scale:
  """A linear map of low..high to 0..1."""

  low: Real
  high: Real

  @classmethod
  def over(
      cls, values: Iterable[Real], *, pad: Real = 0.06, least: Real = 1e-9
  ) -> 'Scale':
    """Return a scale with room for all values, at least `least` wide."""
    values = list(values)
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    # Tick labels have three digits, and must differ.
    least = max(least, _LEAST_SHARE * max(abs(low), abs(high)))
    # Equal values would otherwise give a scale of width 0.
    lack = max(least - (high - low), 0.0) / 2
    margin = pad * max(high - low, least)
    return cls(low - lack - margin, high + lack + margin)

  def __call__(self, value: Real) -> Real:
    return (value - self.low) / (self.high - self.low)

  def ticks(self, count: int) -> list[Real]:
    """Return about `count` round numbers inside the scale, two or more."""
    # The margins of 0.999 and 1e-9 keep a tick that only rounding excludes.
    raw = (self.high - self.low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    steps = [m * power for m in (0.2, 0.5, 1, 2, 5, 10)]
    step = next(s for s in steps[2:] if s >= raw * 0.999)
    if len(found := self._multiples(step)) > 1:
      return found
    # A single tick would not show how wide the scale is.
    return self._multiples(steps[steps.index(step) - 1])

  def _multiples(self, step: Real) -> list[Real]:
    """Return the multiples of a step inside the scale."""
    first = math.ceil(self.low / step - 1e-9)
    last = math.floor(self.high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


@dataclasses.dataclass(frozen=True)
class Mark:
  """One element of a chart."""

  kind: str  # 'line', 'segment', 'dot', 'text' or 'column'.
  class_: str
  # Shares of width and height from the top left: the corners of a line, the
  # two ends of a segment, opposite corners of a column, otherwise one position.
  points: list[Point]
  text: str = ''
  title: str = ''  # Shown on hovering.
  href: str = ''  # Link within the page.
  radius: Real = 3.5  # Size of a dot, in pixels.
  dx: Real = 0  # Horizontal shift of a text, in pixels.
  dy: Real = 0
  anchor: str = 'middle'  # The part of a text that lies at its position.


@dataclasses.dataclass(frozen=True)
class Chart:
  """Marks on two axes, drawn in the order in which they are added."""

  x: Scale
  y: Scale  # Upwards.
  height: int  # Height of the plot, in pixels.
  label: str  # Description for screen readers.
  class_: str = ''
  span: int = 0  # Number of columns that need a minimum width; 0 is none.
  marks: list[Mark] = dataclasses.field(default_factory=list)

  def add(self, kind: str, class_: str, *points: Point, **more: Any) -> None:
    """Add a mark at points in the units of the axes; see `Mark`."""
    shares = [(self.x(x), 1 - self.y(y)) for x, y in points]
    self.marks.append(Mark(kind, class_, shares, **more))

  def has(self, kind: str, class_: str) -> bool:
    """Return whether there is a mark of a kind and class."""
    found = (m.class_.split() for m in self.marks if m.kind == kind)
    return any(class_ in classes for classes in found)

  def y_axis(self, ticks: Iterable[tuple[Real, str]]) -> None:
    """Draw horizontal rules with labels at the left."""
    label = {'dx': -7, 'dy': 4, 'anchor': 'end'}
    for value, text in ticks:
      start = (self.x.low, value)
      self.add('segment', 'rule', start, (self.x.high, value))
      self.add('text', 'tick', start, text=text, **label)

  def x_axis(self, ticks: Iterable[tuple[Real, str]], name: str = '') -> None:
    """Write labels below the plot."""
    for value, text in ticks:
      class_ = f'tick {name}'.strip()
      self.add('text', class_, (value, self.y.low), text=text, dy=17)


@dataclasses.dataclass(frozen=True)
class Strip:
  """A thin picture of intervals; marks outside it are cut."""

  label: str  # Description for screen readers, also shown on hovering.
  marks: list[tuple[str, str, list[Real]]]  # (kind, class, shares).


def strip(
    scale: Scale,
    label: str,
    *marks: tuple[str, str, Real | records.Interval | None],
) -> Strip:
  """Return a strip on a scale.

  Args:
    scale: Scale of the horizontal axis.
    label: See `Strip`.
    *marks: ('bar' | 'whisker', class, interval) and ('dot' | 'rule', class,
      number); those whose value is None are left out.
  """
  ends = lambda value: value if isinstance(value, tuple) else (value,)
  shares = [
      (kind, class_, [scale(end) for end in ends(value)])
      for kind, class_, value in marks
      if value is not None
  ]
  return Strip(label, shares)
