"""Numbers as a reader wants them."""

Real = float | int


def points(value: Real | None, form: str = '+.1f') -> str:
  """A fraction in percentage points, with its sign: 0.021 -> '+2.1'."""
  return '–' if value is None else signed(100 * value, form)


def signed(value: Real, form: str = '+.2f') -> str:
  """A number with its sign; zero has none."""
  text = format(value, form)
  if not float(text):
    text = text.lstrip('+-')
  return text.replace('-', '−')


def share(value: Real | None) -> str:
  """0.413 -> '41.3 %'."""
  return '–' if value is None else f'{100 * value:.1f} %'


def between(interval: tuple[Real, Real] | None) -> str:
  """'[+0.4, +4.2]', in percentage points."""
  if interval is None:
    return ''
  return f'[{points(interval[0])}, {points(interval[1])}]'


def effect(value: Real | None, interval: tuple[Real, Real] | None) -> str:
  """'+2.1 [+0.4, +4.2]', in percentage points."""
  return f'{points(value)} {between(interval)}'.rstrip()


def counted(count: int, noun: str) -> str:
  """'1 change', '2 changes'."""
  return f'{count} {noun}' + ('' if count == 1 else 's')


def short(number: Real | None) -> str:
  """A number of any size in three or four digits."""
  if number is None:
    return '–'
  if number == int(number) and abs(number) < 1e5:
    return str(int(number)).replace('-', '−')
  return f'{number:.3g}'.replace('-', '−')


def duration(seconds: Real) -> str:
  """'42 s', '12 min', '3.4 h'."""
  if seconds < 90:
    return f'{seconds:.0f} s'
  if seconds < 5400:
    return f'{seconds / 60:.0f} min'
  return f'{seconds / 3600:.1f} h'


def tokens(count: Real) -> str:
  """'640', '82 k', '3.1 M'."""
  for size, unit in ((1e9, ' G'), (1e6, ' M'), (1e3, ' k')):
    if count >= size:
      return f'{count / size:.3g}{unit}'
  return f'{count:.0f}'
