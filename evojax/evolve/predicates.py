"""Predicates on rollouts: the simplest one that tells two sets apart.

A predicate says what a completion does, such as `e.n_tokens >= 41` or a call of
a tool. Its terms come from the columns that describe behaviour
(`evidence.schema.Column.behaviour`), so that none restates the grade. `mine`
compares two sides within units: the solved and the unsolved completions of one
group, or the completions of two arms for one problem. Both sides of a unit thus
have the same problem, so its difficulty cannot explain a difference. The
predicate is chosen on half of the units and tested once on the other half, so
no correction is needed for the many that were compared.
"""

import ast
from collections.abc import Iterator, Sequence
import dataclasses
import itertools
import math
import pathlib
import re
import textwrap

from jaxtyping import Bool, Float, Int
import numpy as np

from evojax.eval import paired
from evojax.evidence import schema
from evojax.evidence import views

PREFIX = 'found_'  # Beginning of a predicate's file and number names.
# End of the names of differences between solved and unsolved completions.
GAP = '_gap'
LEAST_UNITS = 12  # Fewest units in each half.
LEVEL = 0.01  # One-sided level of the test on the second half.
_LEAST_GAP = 0.1
_LEAST_T = 3.0  # Least t on the first half, where many are compared.
_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)  # Thresholds of numbers.
# Predicates that hold more often on the first side are preferred, if the gap of
# one is at least the second share of the best gap: what a side does says more
# than what it does not do. Of the largest gap among them, the first share is
# enough, and the first such predicate, which is the simplest, is chosen.
_NEARLY, _NEARLY_MORE = 0.95, 0.8
_WORTH = 0.05  # A conjunction must differ by this much more than one term.
_PAIRED = 8  # Terms that are joined in pairs, those with the largest gaps.
_NAME_CHARS = 50
# Column -> the intervention class of changes that affect it.
_CLASSES = {
    'actions': 'tools',
    'arguments': 'tools',
    'n_turns': 'tools',
    'n_tokens': 'length',
    'truncated': 'length',
}


@dataclasses.dataclass(frozen=True)
class Predicate:
  """A single term or a conjunction of two, and where it holds."""

  name: str  # Lower case, such as 'n_tokens_41'.
  text: str  # Python on the view `e`.
  means: str  # Such as 'n_tokens >= 41 tokens'.
  there: Bool[np.ndarray, 'P G']

  def __and__(self, other: 'Predicate') -> 'Predicate':
    return Predicate(
        f'{self.name}_and_{other.name}',
        f'({self.text}) & ({other.text})',
        f'{self.means} and {other.means}',
        self.there & other.there,
    )


@dataclasses.dataclass(frozen=True)
class Found:
  """A predicate that tells two sides apart; shares are means over units."""

  predicate: Predicate
  one: float  # Share of the first side, on the units that tested it.
  other: float  # Share of the second side.
  units: int  # Number of these units.
  p: float  # One-sided p of its gap on them.


def is_used(column: schema.Column) -> bool:
  """Return whether terms are made from a column.

  They are made from columns of flags, codes and numbers, and from those with a
  flag or code per turn.
  """
  by_turn = column.shape == 'A' and (column.codes or column.dtype == 'bool')
  if column.dtype == 'string' or (column.shape and not by_turn):
    return False
  # Training raises it for whatever the policy has learned.
  if column.name == 'mean_logprob':
    return False
  return column.is_behaviour and 'reward' in column.readers


def terms(
    view: views.View, columns: Sequence[schema.Column]
) -> list[Predicate]:
  """Return the single terms that hold for some but not all completions.

  Only columns that rewards may read are used (`is_used`), so that what is found
  can be rewarded or penalised.

  Args:
    view: The evidence.
    columns: Its declaration, with the readers of the run.
  """
  used = [column for column in columns if is_used(column)]
  found = [t for column in used for t in _terms(view, column)]
  by_turn = [c for c in used if c.shape == 'A' and c.codes]
  for first, second in itertools.combinations(by_turn, 2):
    found += _joint(view, first, second)
  # A term that always or never holds is uninformative.
  varies = lambda t: 0 < t.there[view.valid].mean() < 1
  return [t for t in found if varies(t)] if view.valid.any() else []


def spread(
    known: Sequence[Predicate],
    now: Bool[np.ndarray, 'P G'],
    before: Bool[np.ndarray, 'P G'],
    others: Bool[np.ndarray, 'P G'],
) -> list[Predicate]:
  """Return the predicates that have become more or less frequent.

  What all solved completions have done from the start, such as giving an
  answer, explains no gain.

  Args:
    known: Terms.
    now: Completions, such as the solved ones of a policy.
    before: Those of an earlier policy.
    others: Completions with which `now` will be compared.

  Returns:
    The terms whose share in `now`, by groups, differs clearly from that in
    `before`, and in the same direction from that in `others`.
  """
  groups = np.broadcast_to(np.arange(len(now))[:, None], now.shape)

  def shares(term: Predicate, side: np.ndarray) -> Float[np.ndarray, 'P']:
    found = _shares(term, side, groups)
    return found[np.isfinite(found)]

  found = []
  for term in known:
    new, old = shares(term, now), shares(term, before)
    if min(len(new), len(old)) < LEAST_UNITS:
      continue
    rise = float(new.mean() - old.mean())
    error = math.hypot(*(x.std(ddof=1) / math.sqrt(len(x)) for x in (new, old)))
    clear = abs(rise) >= max(_LEAST_GAP, _LEAST_T * error)
    if clear and rise * (new.mean() - shares(term, others).mean()) > 0:
      found.append(term)
  return found


def mine(
    known: Sequence[Predicate],
    one: Bool[np.ndarray, 'P G'],
    other: Bool[np.ndarray, 'P G'],
    units: Int[np.ndarray, 'P G'],
) -> Found | None:
  """Return the simplest predicate that tells two sides apart, if any does.

  Args:
    known: Terms, the simplest first.
    one: Completions of the first side.
    other: Those of the second side.
    units: Unit of each completion, from 0. Only units with both sides count.

  Returns:
    A predicate chosen on every second unit: the simplest one with nearly the
    largest gap between the shares of the two sides, see _NEARLY, or a
    conjunction with a clearly larger gap. None if no gap is clear, if the gap
    of this predicate in the other units does not have the same sign at `LEVEL`,
    or with fewer than 2 * LEAST_UNITS units.
  """
  if not known:
    return None
  by_unit = lambda term: [_shares(term, side, units) for side in (one, other)]
  both = np.flatnonzero(np.isfinite(np.sum(by_unit(known[0]), axis=0)))
  first, second = both[::2], both[1::2]
  if len(second) < LEAST_UNITS:
    return None

  def gap(term: Predicate) -> tuple[Predicate, float, float]:
    """Return a predicate with its mean gap in the first half, and its t."""
    ours, theirs = by_unit(term)
    found = (ours - theirs)[first]
    return term, float(found.mean()), _t(found)

  clear = [
      (term, mean)
      for term, mean, t in map(gap, known)
      if abs(t) >= _LEAST_T and abs(mean) >= _LEAST_GAP
  ]
  if not clear:
    return None
  best = max(abs(mean) for _, mean in clear)
  more = [found for found in clear if found[1] >= _NEARLY_MORE * best] or clear
  largest = max(abs(mean) for _, mean in more)
  chosen, size = next(f for f in more if abs(f[1]) >= _NEARLY * largest)
  gains = sorted(mean for _, mean in clear if mean > 0)[-_PAIRED:]
  wide = [term for term, mean in clear if gains and mean >= gains[0]]
  if pairs := [gap(a & b) for a, b in itertools.combinations(wide, 2)]:
    pair, mean, t = max(pairs, key=lambda found: found[1])
    if mean >= best + _WORTH and t >= _LEAST_T:
      chosen, size = pair, mean
  ours, theirs = (shares[second] for shares in by_unit(chosen))
  tested = (ours - theirs) * np.sign(size)
  p = paired.p_value(tested.tolist(), [0.0] * len(tested))
  if p > LEVEL:
    return None
  means = float(ours.mean()), float(theirs.mean())
  return Found(chosen, *means, len(second), p)


def _shares(
    term: Predicate,
    side: Bool[np.ndarray, 'P G'],
    units: Int[np.ndarray, 'P G'],
) -> Float[np.ndarray, 'U']:
  """Return the share of a side in which a term holds, by unit.

  It is NaN where the side has no completion of the unit.
  """
  size = int(units.max(initial=-1)) + 1
  count = np.bincount(units[side], minlength=size)
  holds = np.bincount(units[side], term.there[side], size)
  return np.divide(holds, count, out=np.full(size, np.nan), where=count > 0)


def source(
    found: Found, why: str, threshold: tuple[str, float], critical: bool
) -> tuple[str, str]:
  """Return the path and the text of the diagnostic that measures a predicate.

  Args:
    found: The predicate.
    why: Where it was found, in sentences.
    threshold: ('<' or '>', share of completions) beyond which it is an alert.
    critical: Whether the alert is critical, and not a warning. It then calls
      for changes of what its terms depend on, such as the tools.
  """
  name = name_of(found.predicate)
  sign, share = threshold
  alert = f"{{'{name}': ('{sign}', {share:.2g})}}"
  warn, gate = ('{}', alert) if critical else (alert, '{}')
  classes = _classes(found.predicate) if critical else ()
  said = textwrap.fill(why, 80)
  means = textwrap.fill(
      f'bool [P, G]: {found.predicate.means}.', 76, subsequent_indent='  '
  )
  text = f'''"""What a run found in its own rollouts, see evojax.evolve.search.

{said}
"""

LAYER = 'behaviour'
UNIT = 'fraction'
WARN = {warn}
CRITICAL = {gate}
CALLS_FOR = {classes!r}


def {name}(e):
  """{means}"""
  return {found.predicate.text}


def measure(e):
  """{name}: share of the completions in which it holds.

  {name}{GAP}: its share of the solved completions of a group minus
  that of the unsolved ones, the mean over groups that have both.
  """
  values = {{}}
  if not e.valid.any():
    return values
  there = {name}(e)
  values['{name}'] = float(there[e.valid].mean())
  solved, unsolved = e.valid & e.outcome, e.valid & ~e.outcome
  both = solved.any(1) & unsolved.any(1)
  if both.any():
    one = (there & solved)[both].sum(1) / solved[both].sum(1)
    other = (there & unsolved)[both].sum(1) / unsolved[both].sum(1)
    values['{name}{GAP}'] = float((one - other).mean())
  return values
'''
  return f'diagnostics/{name}.py', text


@dataclasses.dataclass(frozen=True)
class Written:
  """The content of a found diagnostic's source."""

  name: str
  text: str  # The predicate.
  why: str  # Where it was found.
  below: bool  # Whether low shares raise its alert.
  critical: bool


def read(path: str, text: str) -> Written | None:
  """Return what `source` wrote; None if a file is something else.

  Args:
    path: Path in the harness.
    text: The file, which has passed the gate.
  """
  name = pathlib.PurePosixPath(path).stem
  if path != f'diagnostics/{name}.py' or not name.startswith(PREFIX):
    return None
  tree = ast.parse(text)
  functions = {f.name: f for f in tree.body if isinstance(f, ast.FunctionDef)}
  if name not in functions:  # A user may have given it such a name.
    return None
  bounds = {
      statement.targets[0].id: ast.literal_eval(statement.value)
      for statement in tree.body
      if isinstance(statement, ast.Assign)
  }
  critical = name in bounds['CRITICAL']
  sign, _ = bounds['CRITICAL' if critical else 'WARN'][name]
  *_, last = functions[name].body
  return Written(
      name,
      ast.get_source_segment(text, last.value),
      ast.get_docstring(tree).partition('\n\n')[2],
      sign == '<',
      critical,
  )


def columns_of(text: str) -> frozenset[str]:
  """Return the columns that the text of a predicate reads."""
  return frozenset(re.findall(r'\be\.(\w+)', text))


def name_of(predicate: Predicate) -> str:
  """Return the name of a predicate's diagnostic, without its folder."""
  return PREFIX + predicate.name[:_NAME_CHARS]


# ----------------------------------------------------------------------- terms


def _terms(view: views.View, column: schema.Column) -> Iterator[Predicate]:
  """Yield the terms of one column, the simplest first."""
  name, values = column.name, view[column.name]
  if column.shape:
    if column.dtype == 'bool':
      text = f'e.{name}.any(2)'
      yield Predicate(f'any_{name}', text, f'any {name}', values.any(2))
    elif column.codes:
      for code, label in _present(values, column):
        is_code = values == code
        text, slug = f'(e.{name} == {code})', f'{name}_{_slug(label)}'
        means = f'{name} has {label!r}'
        yield Predicate(slug, f'{text}.any(2)', means, is_code.any(2))
        yield Predicate(
            f'{slug}_twice',
            f'{text}.sum(2) >= 2',
            f'{means} twice or more',
            is_code.sum(2) >= 2,
        )
  elif column.dtype == 'bool':
    yield Predicate(name, f'e.{name}', name, values)
  elif column.codes:
    for code, label in _present(values[view.valid], column):
      yield Predicate(
          f'{name}_{_slug(label)}',
          f'e.{name} == {code}',
          f'{name} is {label!r}',
          values == code,
      )
  else:
    there = values[view.valid]
    there = there[np.isfinite(there)]
    for bound in _bounds(there, whole=column.dtype.startswith('int')):
      unit = f' {column.unit}' if column.unit else ''
      yield Predicate(
          f'{name}_{_slug(f"{bound:g}")}',
          f'e.{name} >= {bound!r}',
          f'{name} >= {bound:g}{unit}',
          values >= bound,
      )


def _joint(
    view: views.View, first: schema.Column, second: schema.Column
) -> Iterator[Predicate]:
  """Yield terms on two codes of the same turn, such as a tool and its use."""
  one, other = view[first.name], view[second.name]
  for code, label in _present(one, first):
    for second_code, second_label in _present(other, second):
      there = ((one == code) & (other == second_code)).any(2)
      yield Predicate(
          f'{first.name}_{_slug(label)}_{_slug(second_label)}',
          f'((e.{first.name} == {code})'
          f' & (e.{second.name} == {second_code})).any(2)',
          f'a turn has {label!r} with {second_label!r}',
          there,
      )


def _present(
    values: np.ndarray, column: schema.Column
) -> Iterator[tuple[int, str]]:
  """Yield the codes that occur, with their names, fit for a docstring."""
  labels = {c: re.sub(r'["\\\n]', '_', n) for n, c in column.codes.items()}
  for code in np.unique(values).tolist():
    if code in labels:
      yield code, labels[code]


def _bounds(values: np.ndarray, *, whole: bool) -> list[int | float]:
  """Return thresholds of a number: some quantiles, short enough to read."""
  if not len(values):
    return []
  found = np.quantile(values, _QUANTILES).tolist()
  rounded = [math.ceil(x) if whole else float(f'{x:.3g}') for x in found]
  return list(dict.fromkeys(rounded))


def _classes(predicate: Predicate) -> tuple[str, ...]:
  """Return the intervention classes that a predicate depends on."""
  reads = columns_of(predicate.text)
  return tuple(dict.fromkeys(c for n, c in _CLASSES.items() if n in reads))


def _slug(text: str) -> str:
  """Return text as part of a name: lower case, digits and underscores."""
  text = re.sub('^-', 'minus_', text.lower()).replace('.', 'p')
  return ''.join(c if c.isascii() and c.isalnum() else '_' for c in text)


def _t(values: Float[np.ndarray, 'U']) -> float:
  """Return Student's t of the mean; infinite if all values are equal, not 0."""
  mean, error = values.mean(), values.std(ddof=1) / math.sqrt(len(values))
  if error:
    return float(mean / error)
  return math.copysign(math.inf, mean) if mean else 0.0
