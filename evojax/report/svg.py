"""Charts as inline SVG whose text is crisp at every width.

Places are percentages, so a chart is as wide as the page and its text keeps
its size; only lines lie in a nested picture that stretches, with strokes that
do not. Colours are classes, so that the page's style knows both themes.
"""

from collections.abc import Iterable, Sequence
import dataclasses
import html
import math
import re
from typing import Any

Real = float | int
_HARMLESS = str.maketrans('', '', '\n\t')
# Bidirectional controls, escape sequences, lone surrogates: what reorders or
# breaks the page around a text is shown by its code. Joiners belong to emoji.
_JOINERS = '\u200c\u200d\ufe0f'


class Markup(str):
  """Text that is markup already; templates do not escape it."""

  __slots__ = ()

  def __html__(self) -> str:
    return self


def visible(text: str) -> str:
  """Return a text whose control characters are shown, not obeyed."""
  if text.translate(_HARMLESS).isprintable():
    return text
  return ''.join(
      c if c.isprintable() or c in '\n\t' or c in _JOINERS else repr(c)[1:-1]
      for c in text
  )


def element(name: str, *children: Any, **attributes: Any) -> Markup:
  """Return one element; text and attribute values are escaped.

  Args:
    name: Tag.
    *children: Markup, or values shown as text.
    **attributes: `class_` is class, `text_anchor` text-anchor; those that are
      None or '' are left out.
  """
  head = ''.join(
      f' {key.rstrip("_").replace("_", "-")}='
      f'"{html.escape(visible(str(value)))}"'
      for key, value in attributes.items()
      if value is not None and value != ''
  )
  body = ''.join(
      child if isinstance(child, Markup) else html.escape(visible(str(child)))
      for child in children
  )
  return Markup(f'<{name}{head}>{body}</{name}>')


def percent(share: Real) -> str:
  """Return a share as an SVG length: 0.25 -> '25%'."""
  return re.sub(r'\.?0+%$', '%', f'{100 * share:.2f}%')


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
    lack = max(least - (high - low), 0.0) / 2
    margin = pad * max(high - low, least)
    return cls(low - lack - margin, high + lack + margin)

  def __call__(self, value: Real) -> Real:
    return (value - self.low) / (self.high - self.low)

  def ticks(self, count: int) -> list[Real]:
    """Return about `count` round numbers inside the scale."""
    raw = (self.high - self.low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(self.low / step - 1e-9)
    last = math.floor(self.high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


class Chart:
  """Marks on two axes, drawn in the order in which they are added."""

  def __init__(
      self, x: Scale, y: Scale, *, height: int, label: str, class_: str = ''
  ):
    """Make an empty chart.

    Args:
      x: Scale of the horizontal axis.
      y: Scale of the vertical axis, upwards.
      height: Height of the plot, in pixels.
      label: Description that a screen reader says.
      class_: Further classes of the picture.
    """
    self.x, self.y = x, y
    self._height, self._label, self._class = height, label, class_
    self._marks: list[Markup] = []

  def place(self, x: Real, y: Real) -> tuple[str, str]:
    """Return the place of a point as two percentages."""
    return percent(self.x(x)), percent(1 - self.y(y))

  def line(
      self, points: Sequence[tuple[Real, Real]], class_: str, title: str = ''
  ) -> None:
    """Draw a line through the points."""
    # Not by `Scale`: a long run has a hundred thousand points.
    left, across = self.x.low, 1000 / (self.x.high - self.x.low)
    top, down = self.y.high, 1000 / (self.y.high - self.y.low)
    path = ' '.join(
        f'{(x - left) * across:.1f},{(top - y) * down:.1f}' for x, y in points
    )
    line = element(
        'polyline',
        *_title(title),
        points=path,
        class_=f'line {class_}',
        vector_effect='non-scaling-stroke',
    )
    self._marks.append(_stretched(line))

  def segment(
      self, start: tuple[Real, Real], end: tuple[Real, Real], class_: str
  ) -> None:
    """Draw a straight line."""
    (x1, y1), (x2, y2) = self.place(*start), self.place(*end)
    self._marks.append(
        element('line', x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)
    )

  def dot(
      self,
      x: Real,
      y: Real,
      class_: str,
      *,
      radius: Real = 3.5,
      title: str = '',
      href: str = '',
  ) -> None:
    """Draw a point with a text shown on hovering and a link within the page."""
    cx, cy = self.place(x, y)
    dot = element(
        'circle', *_title(title), cx=cx, cy=cy, r=f'{radius:g}', class_=class_
    )
    self._marks.append(element('a', dot, href=href) if href else dot)

  def text(
      self,
      x: Real,
      y: Real,
      text: str,
      class_: str = '',
      *,
      dx: Real = 0.0,
      dy: Real = 0.0,
      anchor: str = 'middle',
      title: str = '',
      href: str = '',
  ) -> None:
    """Write a label at a point, moved by dx and dy pixels."""
    place_x, place_y = self.place(x, y)
    label = element(
        'text',
        text,
        *_title(title),
        x=place_x,
        y=place_y,
        dx=f'{dx:g}',
        dy=f'{dy:g}',
        class_=class_,
        text_anchor=anchor,
    )
    self._marks.append(element('a', label, href=href) if href else label)

  def column(
      self, x: Real, low: Real, high: Real, class_: str, title: str = ''
  ) -> None:
    """Draw a bar around x, 0.7 wide."""
    left, top = self.place(x - 0.35, high)
    self._marks.append(
        element(
            'rect',
            *_title(title),
            x=left,
            y=top,
            width=percent(self.x(x + 0.35) - self.x(x - 0.35)),
            height=percent(self.y(high) - self.y(low)),
            class_=class_,
        )
    )

  def y_axis(self, ticks: Iterable[tuple[Real, str]]) -> None:
    """Draw horizontal rules with labels at the left."""
    for value, text in ticks:
      self.segment((self.x.low, value), (self.x.high, value), 'rule')
      self.text(self.x.low, value, text, 'tick', dx=-7, dy=4, anchor='end')

  def x_axis(self, ticks: Iterable[tuple[Real, str]], class_: str = '') -> None:
    """Write labels below the plot."""
    for value, text in ticks:
      self.text(value, self.y.low, text, f'tick {class_}'.strip(), dy=17)

  def render(self, style: str = '') -> Markup:
    """Return the picture."""
    return element(
        'svg',
        *self._marks,
        class_=f'chart {self._class}'.strip(),
        height=self._height,
        role='img',
        aria_label=self._label,
        style=style,
    )


def _title(text: str) -> list[Markup]:
  return [element('title', text)] if text else []


def _stretched(*marks: Markup) -> Markup:
  return element(
      'svg',
      *marks,
      viewBox='0 0 1000 1000',
      preserveAspectRatio='none',
      width='100%',
      height='100%',
      overflow='visible',
  )


def _edge_or_dot(share: Real, class_: str) -> Markup:
  """Return a dot, or an arrow at the end beyond which the dot would lie."""
  if 0 <= share <= 1:
    return element('circle', cx=percent(share), cy='12', r='4', class_=class_)
  arrow, x, anchor = ('◂', '0', 'start') if share < 0 else ('▸', '100%', 'end')
  return element('text', arrow, x=x, y='17', class_='edge', text_anchor=anchor)


def strip(scale: Scale, marks: Iterable[tuple], *, label: str) -> Markup:
  """Return a thin picture of intervals; marks outside the scale are cut.

  Args:
    scale: Scale of the horizontal axis.
    marks: ('bar' | 'whisker', low, high, class), ('dot' | 'rule', x, class).
    label: Description that a screen reader says and hovering shows.
  """
  place = lambda x: percent(min(max(scale(x), 0.0), 1.0))
  parts = [element('title', label)]
  for kind, *values, class_ in marks:
    if kind == 'bar':
      low, high = (min(max(scale(v), 0.0), 1.0) for v in values)
      parts.append(
          element(
              'rect',
              x=percent(low),
              width=percent(max(high - low, 0.004)),
              y='5',
              height='14',
              rx='3',
              class_=class_,
          )
      )
    elif kind == 'whisker':
      x1, x2 = map(place, values)
      if x1 != x2:
        parts.append(
            element('line', x1=x1, x2=x2, y1='12', y2='12', class_=class_)
        )
    elif kind == 'dot':
      parts.append(_edge_or_dot(scale(*values), class_))
    else:
      x = place(*values)
      parts.append(element('line', x1=x, x2=x, y1='0', y2='24', class_=class_))
  return element('svg', *parts, class_='strip', height='24', role='img')
