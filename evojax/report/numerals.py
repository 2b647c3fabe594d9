"""Numbers as text for the page, used as filters in its templates."""

import re

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


def percent(value: Real) -> str:
  """Return a fraction as a length in SVG: 0.25 -> '25%'."""
  return re.sub(r'\.?0+%$', '%', f'{100 * value:.2f}%')


def between(interval: tuple[Real, Real] | None) -> str:
  """Return an interval in percentage points: '[+0.4, +4.2]'."""
  if interval is None:
    return ''
  return f'[{points(interval[0])}, {points(interval[1])}]'


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
  form = '.0f' if 1e3 <= abs(number) < 1e6 else '.3g'
  text = re.sub('e([+-])0', r'e\1', format(number, form))  # Not '9.5e-08'.
  return text.replace('-', '−')


def duration(seconds: Real) -> str:
  """Return a duration in a suitable unit: '42 s', '12 min', '3.4 h'."""
  if seconds < 90:
    return f'{seconds:.0f} s'
  if seconds < 5400:
    return f'{seconds / 60:.0f} min'
  return f'{seconds / 3600:.1f} h'


def tokens(count: Real) -> str:
  """Return a count in three digits: '640', '82 k', '3.1 M'."""
  for size, unit in ((1e9, ' G'), (1e6, ' M'), (1e3, ' k')):
    if count >= size:
      return f'{count / size:.3g}{unit}'
  return f'{count:.0f}'
