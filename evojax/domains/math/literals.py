"""Parse answers to canonical text and exact numbers, without evaluation."""

import dataclasses
import fractions
import itertools
import math
import re
import unicodedata

MAX_EXPONENT = 400  # Maximum power of ten in scientific notation.

# Characters that look the same but differ by how they were typed.
_INVISIBLE = dict.fromkeys(
    (0x200B, 0x200C, 0x200D, 0x200E, 0x200F, 0x2060, 0xFEFF)
)
_SYMBOLS = str.maketrans(
    {
        **dict.fromkeys('\u2212\u2010\u2011\u2013\u2014', '-'),  # Dashes.
        **dict.fromkeys('×·⋅∗', '*'),
        **dict.fromkeys('÷\u2044\u2215', '/'),  # Fraction and division slash.
    }
)
# Letters for sets of numbers, which NFKC would turn into variables.
_BLACKBOARD = str.maketrans(
    {c: rf'\mathbb{{{n}}}' for c, n in zip('ℂℍℕℙℚℝℤ', 'CHNPQRZ', strict=True)}
)
_TRAPS = {'<super>': '^{{{}}}', '<sub>': '_{{{}}}', '<fraction>': ' {}'}
STYLES = frozenset(
    'text textbf textit textrm textnormal textsf emph mbox fbox boxed underline'
    ' boldsymbol bm mathrm mathbf mathit mathsf operatorname'.split()
)
_GROUP = r'((?:[^{}]|\{[^{}]*\})*)'
_STYLED = re.compile(rf'\\(?:{"|".join(STYLES)})\s*\{{{_GROUP}\}}')
_LATEX = (
    # Equations above each other, with a brace on the left side only.
    (
        re.compile(
            r'\\left\s*\\\{\s*\\begin\s*\{(?:array|matrix|aligned)\}'
            r'(?:\s*\{[lcr| ]*\})?(.*?)\\end\s*\{\w+\}\s*\\right\s*\.',
            re.DOTALL,
        ),
        r'\\begin{cases}\1\\end{cases}',
    ),
    (
        re.compile(
            r'\\(?:left\s*\.?|right\s*\.?|[bB]igg?[lr]?|displaystyle|limits'
            r'|large|Large|bf|rm|hfill|(?:text)?color\s*\{\w+\})(?![a-zA-Z])'
        ),
        '',
    ),
    (re.compile(r'\\(?:[hv]space\*?|[hv]?phantom)\s*\{[^{}]*\}'), ' '),
    (re.compile(rf'\{{{_GROUP}\\over(?![a-z]){_GROUP}\}}'), r'\\frac{\1}{\2}'),
    (re.compile(r'(?<!\\)\$((?:[^$\\]|\\.)*)\$'), r' \1 '),
    (re.compile(r'\\[dtc]frac(?![a-zA-Z])'), r'\\frac'),
    (re.compile(r'\\(?:cdot|times)(?![a-zA-Z])'), '*'),
    (re.compile(r'\\div(?![a-zA-Z])'), '/'),
    (re.compile(r'\\approx(?![a-zA-Z])'), '≈'),
    (re.compile(':='), '='),
    # Thousands; a comma in braces before more or fewer than three digits is a
    # decimal point.
    (
        re.compile(
            r'(?<![\w.,}])([1-9][0-9]{0,2})'
            r'((?:\s*(?:\{\s*\\?,\s*\}|,\\!|\\,)\s*[0-9]{3})+)(?![0-9])'
        ),
        lambda match: match[1] + re.sub(r'[^0-9]', '', match[2]),
    ),
    (re.compile(r'(?<=[0-9])\{,\}(?=[0-9])'), '.'),
    (re.compile(r'(?<!\\)(?:\\(?:[,;:!~ ]|q?quad(?![a-zA-Z]))|~)'), ' '),
    (re.compile(r'\\([%$])'), r'\1'),
    (re.compile(r'\s*\b(?:per ?cent(?:age)?|pct)\s*$'), '%'),
)
_DEGREES = re.compile(
    r'(.*[^a-zA-Z])\s*(?:\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree|°'
    r'|(?<!\\)degrees?$)',
    re.DOTALL,
)
_WRAPPERS = (
    ('$$', '$$'),
    ('$', '$'),
    (r'\(', r'\)'),
    (r'\[', r'\]'),
    ('**', '**'),
    *((mark, mark) for mark in '*_`"\''),
)

_INTEGER = r'(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)'
_SIGN = r'(?P<sign>[+-]?)\s*'
_TEN_TO = r'(?:[eE]|\s*[*xX]\s*10\s*\^\s*)'
_DECIMAL = re.compile(
    rf'{_SIGN}[$£€]?\s*(?P<whole>{_INTEGER}|[1-9][0-9]{{0,2}}(?: [0-9]{{3}})+)?'
    r'(?:\.(?P<places>[0-9]*)(?:\\overline\s*\{(?P<repeat>[0-9]+)\})?)?'
    rf'(?:{_TEN_TO}(?P<brace>\{{)?(?P<exponent>[+-]?[0-9]{{1,4}})'
    r'(?(brace)\}))?\s*(?:[$£€]|(?P<percent>%?))'
)
_DECIMAL_COMMA = re.compile(r'[^(\[{.,]*[0-9],[0-9][^.,]*')
_OVER = (
    rf'(?:(?P<n>{_INTEGER})\s*/\s*(?P<under>[+-]?)(?P<d>{_INTEGER})|\\frac\s*'
    rf'(?:\{{\s*(?P<inner>[+-]?)\s*(?P<ln>{_INTEGER})\s*\}}|(?P<sn>[0-9]))\s*'
    rf'(?:\{{\s*(?P<below>[+-]?)\s*(?P<ld>{_INTEGER})\s*\}}|(?P<sd>[0-9])))'
)
_FRACTION = re.compile(rf'{_SIGN}{_OVER}\s*(?P<percent>%?)')
_MIXED = re.compile(
    rf'{_SIGN}(?P<whole>{_INTEGER})(?:\s+|\s*(?=\\)){_OVER}\s*(?P<percent>%?)'
)


@dataclasses.dataclass(frozen=True)
class Number:
  """A number in the form in which it was written."""

  value: fractions.Fraction  # Exact; in hundredths if percent.
  percent: bool
  is_fraction: bool  # Has a fraction bar, as mixed numbers do.
  in_lowest_terms: bool  # Has no bar, or is a fraction in lowest terms.
  places: int  # Digits after the decimal point, minus the exponent of ten.


def canonical(text: str) -> str:
  """Return one spelling for texts that look the same.

  Superscripts become ^{...}, subscripts _{...} and vulgar fractions get a
  space in front, because NFKC alone would turn 5² into 52 and 2½ into 21/2.
  """
  if not text.isascii():
    text = _compatible(text).translate(_SYMBOLS)
  text = text.strip()
  for _ in range(3):  # Bold may surround LaTeX, and LaTeX bold.
    for left, right in _WRAPPERS:
      inner = text[len(left) : len(text) - len(right)]
      if (
          text.startswith(left)
          and text.endswith(right)
          and inner
          and len(text) > len(left) + len(right)
          and left not in inner
      ):
        text = inner.strip()
    if text.endswith('.') and not text.endswith(('..', r'\right.')):
      text = text[:-1].rstrip()
  for _ in range(4):  # Styles may be nested.
    text, count = _STYLED.subn(r' \1 ', text)
    if not count:
      break
  for pattern, replacement in _LATEX:
    text = pattern.sub(replacement, text)
  text = text.strip()
  degrees = _DEGREES.fullmatch(text)
  if degrees and parse(degrees[1].rpartition('=')[2].strip()):
    text = degrees[1]
  return ' '.join(text.split())


def _compatible(text: str) -> str:
  """Return NFKC after protecting the three cases named in `canonical`."""
  pieces = []
  runs = itertools.groupby(
      text.translate(_INVISIBLE).translate(_BLACKBOARD),
      lambda c: unicodedata.decomposition(c).partition(' ')[0],
  )
  for kind, run in runs:  # x²³ has one exponent, 23.
    piece = unicodedata.normalize('NFKC', ''.join(run))
    pieces.append(_TRAPS.get(kind, '{}').format(piece))
  return ''.join(pieces)


def parse(text: str) -> Number | None:
  """Parse one number; None if the text is anything else.

  Accepted: integers with thousands separators, decimals, scientific notation,
  a/b and \\frac{a}{b}, mixed numbers, one sign, a leading currency sign, a
  trailing percent sign, brackets around the whole. Not accepted: two numbers,
  units, sums, powers, a zero denominator, exponents beyond MAX_EXPONENT.

  Args:
    text: From `canonical`, of a length that the caller has bounded, since the
      digits become an exact integer.
  """
  while text[:1] + text[-1:] in ('()', '[]', '{}') and ',' not in text:
    text = text[1:-1].strip()
  if match := _DECIMAL.fullmatch(text):
    return _decimal(match)
  if match := _FRACTION.fullmatch(text) or _MIXED.fullmatch(text):
    return _fraction(match)
  return None


def parse_answer(text: str) -> Number | None:
  """Parse one number, which may have a decimal comma: 3,5 = 3.5.

  An integer may not: 12,0 can be a list of 12 and 0. No list has an element
  equal to an accepted number.
  """
  number = parse(text)
  if number is None and _DECIMAL_COMMA.fullmatch(text):
    number = parse(text.replace(',', '.'))
    if number and number.value.denominator == 1:
      return None
  return number


def _decimal(match: re.Match[str]) -> Number | None:
  whole, places = match['whole'] or '', match['places'] or ''
  exponent = int(match['exponent'] or 0)
  if not whole + places and not match['repeat'] or abs(exponent) > MAX_EXPONENT:
    return None
  shift = exponent - len(places)
  whole = re.sub('[, ]', '', whole)
  value = fractions.Fraction(int(whole + places or 0))
  if repeat := match['repeat']:
    value += fractions.Fraction(int(repeat), 10 ** len(repeat) - 1)
  value *= fractions.Fraction(10) ** shift
  return Number(
      -value if match['sign'] == '-' else value,
      bool(match['percent']),
      False,
      True,
      max(0, -shift),
  )


def _fraction(match: re.Match[str]) -> Number | None:
  groups = match.groupdict()
  top, bottom = (
      int((match[a] or match[b] or match[c]).replace(',', ''))
      for a, b, c in (('n', 'ln', 'sn'), ('d', 'ld', 'sd'))
  )
  mixed = groups.get('whole')
  below = match['under'] or match['below']
  signs = [s for s in (match['sign'], match['inner'], below) if s]
  if bottom == 0 or len(signs) > 1 or (mixed and (match['inner'] or below)):
    return None
  # 1 5/3 is not a mixed number; most likely it is a product or two answers.
  if mixed and not top < bottom:
    return None
  value = fractions.Fraction(top, bottom)
  if mixed:
    value += int(mixed.replace(',', ''))
  return Number(
      -value if '-' in signs else value,
      bool(match['percent']),
      True,
      not mixed and not below and math.gcd(top, bottom) == 1,
      0,
  )
