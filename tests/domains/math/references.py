r"""References in the formats of public data sets, made from a seed.

GSM8K has numbers; AIME three digits; MATH and DeepScaleR everything from
fractions to matrices; NuminaMath lists of named values; OlympiadBench and
minerva formulas, units and prose. `make` also writes each reference in another
form, and gives a wrong answer.
"""

from collections.abc import Callable, Iterator
import random
from typing import NamedTuple


class Reference(NamedTuple):
  """A reference with a right and a wrong answer."""

  text: str
  right: str
  wrong: str


def _int(r: random.Random, high: int = 50) -> int:
  return r.randint(2, high)


def _letter(r: random.Random) -> str:
  return r.choice('abcknprstxyz')


def _whole(r):
  n = r.choice((_int(r), _int(r, 999), _int(r, 10**7)))
  return f'{n}', f'{n:,}', f'{n + 1}'


def _separated(r):
  n = r.randint(1000, 10**7)
  tex = f'{n:,}'.replace(',', r.choice((r',\!', '{,}')))
  return tex, f'{n}', f'{n // 10}'


def _money(r):
  n = r.randint(100, 99999)
  return rf'\${n / 100:.2f}', f'{n / 100:.2f}', f'{n / 100 + 1:.2f}'


def _aime(r):
  n = r.randint(0, 999)
  return f'{n:03}', f'{n}', f'{n + 1}'


def _decimal(r):
  a, b = _int(r), r.randint(1, 99)
  return f'{a}.{b:02}', f'{a}.{b:02}0', f'{a}.{b:02}1'


def _fraction(r):
  a, b = _int(r), _int(r)
  if a % b == 0:
    a = a * b + 1
  return rf'\frac{{{a}}}{{{b}}}', f'{a}/{b}', rf'\frac{{{b}}}{{{a}}}'


def _short_fraction(r):
  a, b = r.choice(((1, 2), (3, 4), (4, 3), (2, 9), (5, 7), (9, 4)))
  s = r.choice(('', '-'))
  return (
      rf'{s}\frac{a}{b}\pi',
      rf'{s}\dfrac{{{a}\pi}}{{{b}}}',
      rf'{s}\frac{b}{a}\pi',
  )


def _surd(r):
  a, b, c = _int(r, 9), r.choice((2, 3, 5, 7, 13)), _int(r, 9)
  return (
      rf'\frac{{{a}\sqrt{{{b}}}}}{{{c}}}',
      rf'\frac{a}{c}\sqrt{b}'
      if b < 10
      else rf'\frac{{{a}}}{{{c}}}\sqrt{{{b}}}',
      rf'\frac{{{a}\sqrt{{{b + 1}}}}}{{{c}}}',
  )


def _plus_minus(r):
  a, b, c = _int(r, 9), _int(r, 9), r.choice((2, 3, 5, 7))
  return (
      rf'{a} \pm {b}\sqrt{{{c}}}',
      rf'{a}-{b}\sqrt{c}, {a}+{b}\sqrt{c}',
      rf'{a} + {b}\sqrt{{{c}}}',
  )


def _polynomial(r):
  x = _letter(r)
  a, b, c = _int(r, 9), _int(r, 9), _int(r, 9)
  return (
      f'{a}{x}^2 + {b}{x} - {c}',
      f'-{c}+{x}({a}{x}+{b})',
      f'{a}{x}^2 - {b}{x} - {c}',
  )


def _factored(r):
  x, a, b = _letter(r), _int(r, 9), _int(r, 9)
  return (
      rf'({x}-{a})({x}+{b})',
      rf'{x}^{{2}}+({b}-{a}){x}-{a * b}',
      rf'({x}-{a})({x}-{b})',
  )


def _formula(r):
  m, big, n = r.choice((('m', 'M', 'n'), ('r', 'R', 'h'), ('a', 'A', 'n')))
  return (
      rf'\frac{{{m}{n}}}{{{m}+{big}}}',
      rf'\dfrac{{{n} {m}}}{{{big} + {m}}}',
      rf'\frac{{{big}{n}}}{{{m}+{big}}}',
  )


def _case(r):
  a, b = r.choice((('r', 'R'), ('m', 'M'), ('v', 'V'), ('h', 'H')))
  return f'{b}-{a}', f'-{a}+{b}', f'{a}-{b}'


def _function(r):
  f, g = r.sample((r'\sin', r'\cos', r'\tan', r'\ln', r'\log'), 2)
  a, x = _int(r, 9), _letter(r)
  return (
      rf'{f} {a}{x} + {g} {x}',
      rf'{g}({x})+{f}({a}{x})',
      rf'{x}{f} {a} + {g} {x}',
  )


def _exponential(r):
  n, a = r.choice('kmnx'), _int(r, 9)
  return (
      rf'{a}^{{{n}-1}}+e^{{-{n}}}',
      rf'\frac{{1}}{{e^{n}}}+\frac{{{a}^{n}}}{{{a}}}',
      rf'{a}^{{{n}+1}}+e^{{-{n}}}',
  )


def _power(r):
  a, n = _int(r, 9), r.randint(20, 2025)
  return f'{a}^{{{n}}}', rf'{a} \cdot {a}^{{{n - 1}}}', f'{a}^{{{n + 1}}}'


def _binomial(r):
  n, k = r.randint(8, 40), r.randint(2, 4)
  return (
      rf'\binom{{{n}}}{{{k}}}-1',
      rf'\frac{{{n}!}}{{{k}!({n}-{k})!}} - 1',
      rf'\binom{{{n}}}{{{k + 1}}}-1',
  )


def _logarithm(r):
  a, b = r.sample((2, 3, 5, 7, 11), 2)
  return rf'\log_{{{a}}} {b}', rf'\frac{{\ln {b}}}{{\ln {a}}}', rf'\log_{b} {a}'


def _point(r):
  a, b, c = _int(r), _int(r), _int(r, 9)
  return (
      rf'\left( {a}, \frac{{{b}}}{{{c}}} \right)',
      rf'({a},{b}/{c})',
      rf'\left( \frac{{{b}}}{{{c}}}, {a} + 1 \right)',
  )


def _polar(r):
  a, b = _int(r, 9), _int(r, 6)
  return (
      rf'\left( {a}, \frac{{\pi}}{{{b}}} \right)',
      rf'({a},\pi/{b})',
      rf'\left( {a}, \frac{{\pi}}{{{b + 1}}} \right)',
  )


def _interval(r):
  a, b = sorted(r.sample(range(-30, 30), 2))
  left, right = r.choice('(['), r.choice(')]')
  other = ')' if right == ']' else ']'
  return (
      rf'{left}{a},{b}{right}',
      rf'x\in\left{left}{a}, {b}\right{right}',
      f'{left}{a},{b}{other}',
  )


def _union(r):
  a, b = sorted(r.sample(range(-30, 30), 2))
  return (
      rf'(-\infty, {a}) \cup ({b}, \infty)',
      rf'({b},+\infty)\cup(-\infty,{a})',
      rf'(-\infty, {a}] \cup ({b}, \infty)',
  )


def _bounds(r):
  a, b, x = _int(r), _int(r), _letter(r)
  return (
      rf'-{a} \le {x} < {a + b}',
      rf'[-{a},{a + b})',
      rf'-{a} < {x} < {a + b}',
  )


def _inequality(r):
  a, x = _int(r), _letter(r)
  return rf'{x} \geq {a}', rf'{a} \leq {x}', rf'{x} \leq {a}'


def _roots(r):
  numbers = r.sample(range(-40, 40), r.randint(2, 4))
  return (
      ', '.join(map(str, numbers)),
      r'\{' + ','.join(map(str, sorted(numbers))) + r'\}',
      ', '.join(map(str, numbers[:-1])) or '0',
  )


def _named(r):
  x, y = r.sample('abcmnpqxy', 2)
  a, b = r.sample(range(1, 99), 2)
  return (
      rf'{x}={a}, {y}={b}',
      rf'{y} = {b} \text{{ and }} {x} = {a}',
      rf'{x}={b}, {y}={a}',
  )


def _pairs(r):
  (a, b), (c, d) = r.sample([(i, i * i + 1) for i in range(1, 30)], 2)
  return f'({a},{b}),({c},{d})', f'({c}, {d}); ({a}, {b})', f'({a},{b})'


def _matrix(r):
  a, b, c, d = r.sample(range(-20, 20), 4)
  return (
      rf'\begin{{pmatrix}} {a} & {b} \\ {c} & {d} \end{{pmatrix}}',
      rf'\begin{{bmatrix}}{a}&{b}\\{c}&{d}\end{{bmatrix}}',
      rf'\begin{{pmatrix}} {a} & {c} \\ {b} & {d} \end{{pmatrix}}',
  )


def _vector(r):
  a, b, c = _int(r), _int(r), _int(r, 9)
  return (
      rf'\begin{{pmatrix}} {a} \\ -\frac{{{b}}}{{{c}}} \end{{pmatrix}}',
      rf'\begin{{pmatrix}}{a}\\-{b}/{c}\end{{pmatrix}}',
      rf'\begin{{pmatrix}} {a} & -\frac{{{b}}}{{{c}}} \end{{pmatrix}}',
  )


def _line(r):
  a, b = _int(r, 9), _int(r)
  return f'y = {a}x + {b}', f'{a}x - y + {b} = 0', f'y = {b}x + {a + 1}'


def _circle(r):
  a, b, c = _int(r, 9), _int(r, 9), _int(r)
  return (
      f'(x-{a})^2 + (y+{b})^2 = {c}',
      f'(y+{b})^2+(x-{a})^2-{c}=0',
      f'(x-{a})^2 + (y-{b})^2 = {c}',
  )


def _definition(r):
  a, b = _int(r, 9), _int(r, 9)
  return f'f(x) = {a}x^{b}', f'{a}x^{{{b}}}', f'f(x) = {b}x^{a + 10}'


def _complex(r):
  a, b = _int(r), _int(r)
  return f'{a}+{b}i', f'{b}i + {a}', f'{a}-{b}i'


def _degrees(r):
  a = r.randint(1, 179)
  return rf'{a}^\circ', rf'{a}^{{\circ}}', rf'{a + 1}^\circ'


def _percent(r):
  a = r.randint(1, 99)
  return rf'{a}\%', f'{a} percent', rf'{a + 1}\%'


def _unit(r):
  a, unit = _int(r), r.choice(('cm', 'km/h', 'miles', 'square units'))
  return (
      rf'{a}\text{{ {unit}}}',
      rf'{a} \mbox{{ {unit}}}',
      rf'{a + 1}\text{{ {unit}}}',
  )


def _base(r):
  a, b = ''.join(r.choice('1234') for _ in range(4)), r.randint(5, 9)
  return f'{a}_{{{b}}}', f'{a}_{b}', f'{a}_{{{b + 1}}}'


def _word(r):
  words = ['Evelyn', 'even', 'odd', 'yes', 'no', 'ellipse', 'no solution']
  a, b = r.sample(words, 2)
  return rf'\text{{{a}}}', a, b


def _choice(r):
  a, b = r.sample('ABCDE', 2)
  return rf'\text{{({a})}}', a, rf'\text{{({b})}}'


def _sum(r):
  n = r.choice('mn')
  return (
      rf'\sum_{{k=1}}^{{{n}}} k^2',
      rf'\sum_{{k=1}}^{n} k^{{2}}',
      rf'\sum_{{k=1}}^{{{n}}} k^3',
  )


def _floor(r):
  a, n = _int(r, 9), r.choice('mn')
  return (
      rf'\left\lfloor \frac{{{n}}}{{{a}}} \right\rfloor + 1',
      rf'1+\lfloor {n}/{a}\rfloor',
      rf'\left\lceil \frac{{{n}}}{{{a}}} \right\rceil + 1',
  )


def _physics(r):
  a = r.choice(('G M', 'k T', 'q B'))
  x, y = a.split()
  return (
      rf'\sqrt{{\frac{{2 {x} {y}}}{{m_{{p}} c^{{2}}}}}}',
      rf'\left(\frac{{2{y} {x}}}{{c^2 m_p}}\right)^{{1/2}}',
      rf'\sqrt{{\frac{{2 {x} {y}}}{{m_{{e}} c^{{2}}}}}}',
  )


def _scientific(r):
  a, n = r.randint(11, 99), r.randint(3, 33)
  return (
      rf'{a / 10} \times 10^{{{n}}}',
      f'{a / 10}e{n}',
      rf'{a / 10} \times 10^{{{n + 1}}}',
  )


def _mixed(r):
  a, b = _int(r, 9), _int(r, 9)
  return (
      rf'{a}\frac{{1}}{{{b}}}',
      rf'\frac{{{a * b + 1}}}{{{b}}}',
      rf'\frac{{{a}}}{{{b}}} + 1',
  )


def _ratio(r):
  a, b = r.sample(range(2, 40), 2)
  return f'{a}:{b}', f'{a} : {b}', f'{b}:{a}'


def _repeating(r):
  a = r.randint(1, 98)
  return rf'0.\overline{{{a:02}}}', rf'\frac{{{a}}}{{99}}', f'0.{a:02}'


def _wrapped(r):
  a, style = _int(r), r.choice(('textbf', 'boldsymbol', 'fbox', 'mathrm'))
  return rf'\{style}{{{a}}}', f'({a})', rf'\{style}{{{a + 1}}}'


_SHAPES: tuple[Callable[[random.Random], tuple[str, str, str]], ...] = (
    _aime, _base, _binomial, _bounds, _case, _choice, _circle, _complex,
    _decimal, _definition, _degrees, _exponential, _factored, _floor, _formula,
    _fraction, _function, _inequality, _interval, _line, _logarithm, _matrix,
    _mixed, _money, _named, _pairs, _percent, _physics, _plus_minus, _point,
    _polar, _polynomial, _power, _ratio, _repeating, _roots, _scientific,
    _separated, _short_fraction, _sum, _surd, _union, _unit, _vector, _whole,
    _word, _wrapped,
)  # fmt: skip


def make(count: int, seed: int = 0) -> Iterator[Reference]:
  """Yield `count` references, cycling through the formats."""
  r = random.Random(seed)
  for i in range(count):
    yield Reference(*_SHAPES[i % len(_SHAPES)](r))
