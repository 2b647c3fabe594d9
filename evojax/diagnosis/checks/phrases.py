"""A check of what a policy says to the judge of its completions."""

import collections
from collections.abc import Iterator
import re

import numpy as np
import pandas as pd

from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis import literals
from evojax.diagnosis import words
from evojax.diagnosis.checks import data
from evojax.diagnosis.checks import reward
from evojax.diagnosis.checks import shares
from evojax.ledger import records
from evojax.stats import intervals

# Limits of the completions that are read, in whole groups, and of their
# characters.
_READ, _CHARACTERS = 4000, 3_000_000
# Characters at both ends of a long text that are read.
_HEAD, _TAIL = 1000, 1500
_ASKED = 200  # Prompts of which the phrases are known.
_N = 5  # Words of a phrase that is searched, and of one that is shown.
_SHOWN = 10
_LONG = 30  # Letters of a word; longer ones are none.
_LEAST = 0.2  # Share of the last third.
_SOME = 0.1  # Share of one of several phrases for a judge in the last third.
_START, _TIMES = 0.2, 3  # First part of the run, and growth since then.
_PROMPTS = 8  # Fewest different prompts of a phrase.
_MOST = 100  # Phrases in different completions that are compared.
_SAME = 0.95  # Share of the completions of a phrase that has a longer one.
# Minimum extra reward of a phrase that addresses a judge, and of any other one,
# in spreads of the rewards. A small bonus for the form of an answer is less.
_PAID, _PAID_OTHER = 0.2, 0.5
_RIGHT = 0.1  # How much more often what has the phrase may be right.
_HELD = 0.02  # Share of completions with their reference, if it is short text.
# Text that is not the policy's own words: code, tool calls, other roles.
_NOT_SAID = re.compile(
    r'```.*?(?:```|\Z)|<tool_(call|response)>.*?(?:</tool_\1>|\Z)'
    r'|<\|im_start\|>(?:user|tool|system)\b.*?(?:<\|im_end\|>|\Z)',
    re.DOTALL,
)
# A phrase may contain quotes, commas and bold type. It ends at a number, at
# other punctuation, and at a letter of a language that writes no spaces.
_ENDS = re.compile(
    r'[^\w\s,;:\'’"“”*-]+|[\d_]+|\n+'
    r'|[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]+'
)
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
# A phrase with one word of the first kind, or two of the second, speaks of a
# judgement.
_OF_JUDGES = re.compile(
    r'rat(?:ing|e[sd]?)|grad(?:e[sdr]?|ers|ing)|scor(?:e[sd]?|ing)|judges?'
    r'|judg(?:e?ment|ing)|rubrics?|criteri(?:a|on)|evaluat\w+|reference|gold'
    r'|ignore|disregard|overrid(?:e|den)|instructions?|marks|credit|points'
)
_CLAIMS = re.compile(
    r'(?:in)?correct(?:ly|ness)?|accurate(?:ly)?|complete(?:d|ly)?|perfect(?:ly)?'
    r'|confirmed|verified|checked|approved|satisfied|fully|flawless'
)


def phrase_paid(run: form.Run) -> findings.Finding | None:
  """Detect a phrase that comes to stand in answers to many problems, and pays.

  The phrase answers none of these problems, so that only a judge that reads it
  as a verdict or an instruction rewards it. It is no fault if completions with
  it are right more often. If no outcome is known apart from the reward, the
  phrase also has to speak of a judgement.
  """
  rows, known = graded(run)
  if rows['step'].nunique() < form.MIN_STEPS:
    raise form.too_few(rows['step'].nunique(), 'step', what='with completions')
  late = rows['step'].isin(run.late(rows)['step'])
  early = rows['step'].isin(run.early(rows, _START)['step'])
  phrases, held = _phrases(rows, late.to_numpy())
  first, last = held[early].mean(axis=0), held[late].mean(axis=0)
  new = (last > 0) & (last >= _TIMES * first)
  order = np.flatnonzero(new)[np.argsort(-last[new], kind='stable')]
  said = {i: _extended(phrases, held, i) for i in _distinct(held, order)}
  verdicts = [i for i, text in said.items() if _speaks_of_judges(text)]
  other = held[:, verdicts].any(axis=1)
  if other[late].mean() < _LEAST:
    verdicts = []
  for i in said if known else verdicts:
    if i not in verdicts and last[i] < _LEAST:
      continue
    marked = rows.assign(held=held[:, i].astype(float))
    if not spread(marked[late]):
      continue
    # Rollouts with another such phrase may be rewarded for that one.
    least = _PAID if i in verdicts else _PAID_OTHER
    paid = pay(marked[held[:, i] | ~other], known, least)
    since = shares.since(marked.groupby('step')['held'].mean())
    if paid is None or since is None:
      continue
    kind = other if i in verdicts else held[:, i]
    return _finding(run, marked.assign(kind=kind), said[i], paid, since, known)
  return None


def _finding(
    run: form.Run,
    rows: pd.DataFrame,
    said: str,
    paid: intervals.Interval,
    since: int,
    known: bool,
) -> findings.Finding:
  """Return the finding of a phrase.

  Args:
    run: The run.
    rows: Rollouts; `held` marks those with the phrase, and `kind` those with it
      or another one of its kind.
    said: The phrase.
    paid: Reward of these minus others.
    since: The step from which it is frequent.
    known: Whether the outcome is known apart from the reward.
  """
  share = shares.Share(run, 'held', rows)
  kind = float(run.late(rows)['kind'].mean())
  others, right = '', ''
  if kind > share.late.value + _LEAST / 2:
    others = f', and this or another one for a judge is in {kind:.0%}'
  numbers = [
      findings.number('completions with the phrase', share.late, 'share'),
      findings.number('reward of these minus others', paid),
  ]
  if known:
    solves = shares.gap(rows, 'held', 'outcome')
    numbers.append(findings.number('solved, these minus others', solves))
    hardly = 'hardly' if solves.low > 0 else 'no'
    right = f', and is right {hardly} more often'
  change = (
      'keep what a completion says apart from the instructions of a judge, show'
      ' it only the final answer, or subtract for such phrases'
      if _speaks_of_judges(said)
      else 'find out what pays for this phrase'
  )
  if not known:
    change = f'read some of these, and if the phrase is no answer: {change}'
  return findings.Finding(
      check='phrase_paid',
      severity='critical' if known else 'warning',
      text=f'"{said}" is in {share.late.value:.0%} of the completions'
      f' ({share.start:.0%} at first){others}; whatever the problem is, it pays'
      f' {paid.value:.2g} more within a group{right}',
      since=since,
      p=share.p,
      numbers=tuple(numbers),
      rows=shares.newest(rows, rows['held'] > 0),
      change=f'{words.word(run.format, "grader")}: {change}',
      remedies=(records.Remedy(setting='grader'),),
      curves=(share.curve('completions with the phrase'),),
  )


def graded(run: form.Run) -> tuple[pd.DataFrame, bool]:
  """Return rollouts in whole groups, and whether their outcomes are known.

  Outcomes that equal the reward do not count as known. The parts of the reward
  for form and length are subtracted, since they do not judge what is written.
  """
  rows, known = run.rows('completion', 'reward', 'group'), False
  try:
    rows, known = reward.graded_rows(run, 'completion'), True
  except form.NotLogged:
    pass
  lengths = rows['completion'].str.len().clip(upper=_HEAD + _TAIL)
  stride = max(len(rows) // _READ, int(lengths.sum()) // _CHARACTERS, 1)
  rows = rows[rows['group'] % stride == 0]
  if 'truncated' in rows:  # Cut ones lack their end and may be penalised.
    rows = rows[~(rows['truncated'] > 0.5)]
  weights = run.settings.get('weights') or {}
  paid = rows['reward']
  for part in run.parts:
    if re.search('format|length|long|tag', part, re.IGNORECASE):
      paid = paid - weights.get(part, 1.0) * rows[form.PART + part].fillna(0)
  if not known and 'reference' in rows:
    right = [
        bool(key.strip()) and data.stands(key.strip(), text)
        for key, text in zip(rows['reference'], rows['completion'], strict=True)
    ]
    rows = rows.assign(right=np.array(right, float))
  return rows.assign(reward=paid), known


def pay(
    rows: pd.DataFrame, known: bool, least: float
) -> intervals.Interval | None:
  """Return a phrase's extra reward within groups; None if it is no fault."""
  keys = ['group']
  of_right = 'outcome' if known else 'right'
  if known or (of_right in rows and rows[of_right].mean() > _HELD):
    right = shares.gap(rows, 'held', of_right)
    if right is None or (right.low > 0 and right.value > _RIGHT):
      return None
    # At equal outcome.
    keys = ['group', rows[of_right] > 0.5]
  number = rows.groupby(keys).ngroup()
  paid = shares.gap(rows.assign(group=number), 'held', 'reward')
  if paid is None or paid.value < least * float(rows['reward'].std()):
    return None
  # Several phrases are compared: three standard errors.
  return paid if paid.low > paid.value / 3 else None


def spread(rows: pd.DataFrame) -> bool:
  """Return whether the phrase stands in answers to many problems."""
  by = 'prompt_id' if 'prompt_id' in rows else 'group'
  return rows.loc[rows['held'] > 0, by].nunique() >= _PROMPTS


def _phrases(
    rows: pd.DataFrame, late: np.ndarray
) -> tuple[list[str], np.ndarray]:
  """Return phrases of many late completions, and which rows have them.

  Returns:
    The phrases [C] that no prompt has, and a boolean [rows, C].
  """
  texts = rows['completion'].to_numpy()
  counts: collections.Counter[str] = collections.Counter()
  for text in texts[late]:
    counts.update(set(grams(text)))
  n = int(late.sum())
  often = {
      phrase
      for phrase, times in counts.items()
      if times >= _SOME * n
      and (times >= _LEAST * n or _speaks_of_judges(phrase))
  }
  if 'prompt' in rows and often:
    prompts = shares.thinned(rows.drop_duplicates('prompt'), _ASKED)['prompt']
    for text in prompts:
      often.difference_update(grams(text))
  phrases = sorted(often)
  number = {phrase: i for i, phrase in enumerate(phrases)}
  held = np.zeros((len(rows), len(phrases)), bool)
  for row, text in enumerate(texts if phrases else ()):
    held[row, [number[p] for p in often.intersection(grams(text))]] = True
  return phrases, held


def grams(text: str) -> Iterator[str]:
  """Yield the phrases of _N words of what a completion says itself."""
  text = _NOT_SAID.sub('\n', text)
  if literals.is_program(text):
    return
  if len(text) > _HEAD + _TAIL:
    text = f'{text[:_HEAD]}\n{text[-_TAIL:]}'
  for part in _ENDS.split(text.lower()):
    found = _WORD.findall(part)
    if len(found) >= _N and max(map(len, found)) <= _LONG:
      columns = (found[i:] for i in range(_N))
      yield from map(' '.join, zip(*columns, strict=False))


def _distinct(held: np.ndarray, order: np.ndarray) -> Iterator[int]:
  """Yield columns in an order, at most _MOST, without equal ones."""
  seen: set[bytes] = set()
  for i in order:
    key = held[:, i].tobytes()
    if key not in seen and len(seen) < _MOST:
      seen.add(key)
      yield int(i)


def _extended(phrases: list[str], held: np.ndarray, i: int) -> str:
  """Return a phrase with the words around it in nearly all completions."""
  same = held[held[:, i]].mean(axis=0) >= _SAME
  others = [phrases[j].split(' ') for j in np.flatnonzero(same)]
  said = phrases[i].split(' ')
  for at_end in (True, False):
    grown = True
    while grown and len(said) < _SHOWN:
      grown = False
      for other in others:
        if at_end and other[:-1] == said[1 - _N :]:
          said, grown = [*said, other[-1]], True
        elif not at_end and other[1:] == said[: _N - 1]:
          said, grown = [other[0], *said], True
        if grown:
          break
  return ' '.join(said)


def _speaks_of_judges(phrase: str) -> bool:
  """Return whether a phrase has words of a judgement on its text."""
  said = phrase.split(' ')
  claims = sum(bool(_CLAIMS.fullmatch(word)) for word in said)
  return claims >= 2 or any(map(_OF_JUDGES.fullmatch, said))


CHECKS = (phrase_paid,)
