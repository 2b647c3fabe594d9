"""Numbers as text, for people: in tables, in sentences and on pages.

The templates of the pages use these functions as filters.
"""

from collections.abc import Mapping
import re
from typing import Any

Real = float | int


def points(value: Real | None, form: str = '+.1f') -> str:
  """Return a fraction in percentage points with its sign: 0.021 -> '+2.1'."""
  return '–' if value is None else signed(100 * value, form)


def signed(value: Real, form: str = '+.2f') -> str:
  """Return a number with its sign; zero gets none."""
  text = format(value, form)
  if not float(text):  # '-0.0' is a rounded loss; it must not look negative.
    text = text.lstrip('+-')
  return text.replace('-', '−')


def share(value: Real | None) -> str:
  """Return a fraction in percent: 0.413 -> '41.3 %'."""
  return '–' if value is None else f'{100 * value:.1f} %'


def between(ends: tuple[Real, Real] | None, form: str = '+.1f') -> str:
  """Return an interval in percentage points: '[+0.4, +4.2]'."""
  if ends is None:
    return ''
  return f'[{points(ends[0], form)}, {points(ends[1], form)}]'


def interval(estimate: Mapping[str, Any], form: str = '.1f') -> str:
  """Return the interval from low to high in percent: '[36.1, 47.2]'."""
  return between((estimate['low'], estimate['high']), form)


def effect(value: Real | None, interval: tuple[Real, Real] | None) -> str:
  """Return an effect with its interval: '+2.1 [+0.4, +4.2]', in points."""
  return f'{points(value)} {between(interval)}'.rstrip()


def counted(count: int, noun: str) -> str:
  """Return a count with its noun: '1 change', '2 changes'."""
  return f'{count} {noun}' + ('' if count == 1 else 's')


def short(number: Real | None) -> str:
  """Return a number of any magnitude in three or four digits."""
  if number is None:
    return '–'
  if number == int(number) and abs(number) < 1e5:
    return str(int(number)).replace('-', '−')
  form = '.0f' if 999.5 <= abs(number) < 1e6 else '.3g'
  text = re.sub('e([+-])0', r'e\1', format(number, form))  # Not '9.5e-08'.
  return text.replace('-', '−')


def duration(seconds: Real) -> str:
  """Return a duration: '42 s', '3 min 05 s', '12 min', '2 h 07 min'."""
  minutes, rest = divmod(round(seconds), 60)
  if minutes >= 60:
    return f'{minutes // 60} h {minutes % 60:02} min'
  if minutes >= 10:
    return f'{minutes} min'
  return f'{minutes} min {rest:02} s' if minutes else f'{rest} s'


def tokens(count: Real) -> str:
  """Return a count in three digits: '640', '82 k', '3.1 M'."""
  for size, unit in ((1e9, ' G'), (1e6, ' M'), (1e3, ' k')):
    text = f'{count / size:.3g}'
    if float(text) >= 1:  # As rounded: 999,800 are '1 M', not '1e+03 k'.
      return text + unit
  return f'{count:.0f}'
