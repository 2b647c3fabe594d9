"""Checks of graders that accept what is wrong, or judge by something else."""

import re

import numpy as np
import pandas as pd

from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis import words
from evojax.diagnosis.checks import data
from evojax.diagnosis.checks import shares
from evojax.ledger import records
from evojax.stats import intervals
from evojax.stats import trends

TEXTS = 20_000  # Approximate number of completions whose texts are searched.
_ORDERED = 0.98  # Share of pairs beyond which length decides what is solved.
_CUT = 0.2  # Share of cut completions beyond which lengths tell little.
_NEARLY_ALL = 0.9  # Share accepted by a grader that reads no answer.
_SAME = 0.9  # Share of problems that one answer may solve.
_LUCK = 0.05  # Tolerance of an answer's share of right rollouts.
# The number that a text says is its answer.
_SAID = re.compile(r'(?i)answer\b[^\d\n-]{0,20}(-?\d+(?:[./]\d+)?)')
_TWICE = 0.05  # Share of pairs of equal texts whose verdicts may differ.
_HELD = 0.02  # Share of completions with the number of the key, if it is one.
# Characters of a reference that is a short text; 'C' is a choice.
_SHORTEST, _LONGEST = 3, 80
_PROBLEMS = 20  # Fewest problems with such references.
# Share of the completions counted as right that contain the reference: the
# lowest initial value for which a fall is tested, and how much of it is left.
_HELD_FIRST, _LEFT = 0.6, 0.75
_MORE = 0.1  # Rise of what counts as right, or of a style, that is no noise.
_STYLE = re.compile(r'(?m)^\s*(?:#{1,6} |[-*\u2022] |\*\*)')
READS = re.compile(r'\binput\(|\bstdin\b|\bopen\(0')


def grader_open(run: form.Run) -> findings.Finding | None:
  """Detect impossible successes: errors, empty texts, one text for all."""
  rows = run.rows('outcome')
  rows = shares.thinned(rows, TEXTS)
  for text, mask, most in _open_cases(run, rows):
    if mask.sum() < 20:
      continue
    by = rows[mask].groupby('step')['outcome'].mean()
    if by.max() < most:
      continue
    # A grader may fail from some step on.
    since = shares.since(by)
    solved = intervals.mean(by if since is None else by[by.index >= since])
    rest = float(rows.loc[~mask, 'outcome'].mean()) if (~mask).any() else 0.0
    if solved.low < most:
      continue
    shown = rows.index[mask & (rows['outcome'] > 0.5)]
    return findings.Finding(
        check='grader_open',
        severity='critical',
        text=f'{solved.value:.0%} of the completions {text} count as solved',
        since=since,
        numbers=(
            findings.number('solved', solved, 'share of them'),
            findings.Number(
                name='of all rollouts', value=float(mask.mean()), unit='share'
            ),
            findings.Number(
                name='solved of the others', value=rest, unit='share'
            ),
        ),
        rows=tuple(map(int, shown[-6:])),
        change=f'{words.word(run.format, "grader")}: what cannot be graded,'
        ' or cannot be right, must not count as solved',
        remedies=(records.Remedy(setting='grader'),),
        curves=()
        if since is None
        else (('solved share of these', by.index.to_numpy(), by.to_numpy()),),
    )
  if not {'text_id', 'error', 'format_ok'} & set(rows):
    raise form.not_logged(['completion', 'error'])
  return None


def length_decides(run: form.Run) -> findings.Finding | None:
  """Detect a grader that looks at the length of a completion alone."""
  rows = run.rows('outcome', 'n_tokens')
  if run.has_turns:
    return None
  if 'truncated' in rows:  # Cut completions are rarely solved by any grader.
    cut = rows['truncated'] > 0.5
    if cut.mean() > _CUT:
      return None
    rows = rows[~cut]
  solved, wrong = (
      rows.loc[rows['outcome'].gt(0.5) == is_solved, 'n_tokens']
      for is_solved in (True, False)
  )
  if min(len(solved), len(wrong)) < data.LEAST:
    return None
  # The probability that a solved completion is longer than an unsolved one.
  ranks = pd.concat([solved, wrong]).rank().iloc[: len(solved)].sum()
  longer = (ranks / len(solved) - (len(solved) + 1) / 2) / len(wrong)
  if 1 - _ORDERED < longer < _ORDERED:
    return None
  order, share = ('longer', longer) if longer > 0.5 else ('shorter', 1 - longer)
  return findings.Finding(
      check='length_decides',
      severity='critical',
      text=f'the solved completion is {order} than the unsolved one in'
      f' {share:.1%} of all pairs',
      numbers=(
          findings.Number(
              name=f'pairs whose solved one is {order}',
              value=float(share),
              unit='share',
          ),
      ),
      rows=tuple(map(int, solved.index[-6:])),
      change=f'{words.word(run.format, "grader")}: judge whether an answer is'
      ' right, not how long it is',
      remedies=(records.Remedy(setting='grader'),),
  )


def verdicts_differ(run: form.Run) -> findings.Finding | None:
  """Detect a grader that solves and fails one text for one problem."""
  rows = run.rows('outcome', 'text_id', 'group')
  if run.has_turns:  # The environment may have done different things.
    return None
  if 'truncated' in rows:  # A text that was cut there is another answer.
    rows = rows[rows['truncated'] < 0.5]
  keys = ['group', 'text_id', *{'reference'}.intersection(rows)]
  by = rows['outcome'].gt(0.5).groupby([rows[key] for key in keys])
  solved, times = by.sum(), by.size()
  twice = (times >= 2) & (solved > 0)
  solved, times = solved[twice], times[twice]
  if len(times) < data.LEAST:
    what = 'repeated in a group and solved'
    raise form.too_few(len(times), 'text', data.LEAST, what)
  # The probability that two verdicts on one text differ.
  pairs = 2 * solved * (times - solved) / (times * (times - 1))
  groups = pairs.index.get_level_values('group')
  step = rows.groupby('group')['step'].first()[groups].to_numpy()
  since = shares.since(pairs.groupby(step).mean())
  if since is not None:
    pairs = pairs[step >= since]
  differ = intervals.mean(pairs)
  if differ.low < _TWICE:
    return None
  chosen = pd.MultiIndex.from_frame(rows[keys]).isin(pairs.index[pairs > 0])
  return findings.Finding(
      check='verdicts_differ',
      severity='critical' if differ.low > 6 * _TWICE else 'warning',
      text='equal texts of a group get different verdicts in'
      f' {differ.value:.0%} of the pairs',
      since=since,
      numbers=(findings.number('two verdicts', differ, 'share of pairs'),),
      rows=tuple(map(int, rows.index[chosen][:6])),
      change=f'{words.word(run.format, "grader")}: equal texts must get equal'
      ' verdicts; what fails in the grader itself must not count',
      remedies=(records.Remedy(setting='grader'),),
  )


def final_numbers(run: form.Run, rows: pd.DataFrame) -> pd.DataFrame | None:
  """Return rollouts with the number that each ends with, as `answer`.

  None if they are few, or if many of them do not end with a number.
  """
  if run.has_turns:
    return None
  rows = shares.thinned(rows, TEXTS)
  if rows['completion'].str.contains('print(', regex=False).mean() > 0.1:
    return None  # Programs end with any number.
  answers = rows['completion'].str[-data.END:].str.extract(data.FINAL)[0]
  found = rows.assign(answer=answers).dropna(subset=['answer'])
  if found['prompt_id'].nunique() < data.LEAST or len(found) < 0.8 * len(rows):
    return None
  return found


@form.once
def _solved_numbers(run: form.Run) -> pd.DataFrame | None:
  """Return `final_numbers` of the solved rollouts."""
  rows = run.rows('outcome', 'completion', 'prompt_id', 'group')
  return final_numbers(run, rows[rows['outcome'] > 0.5])


def one_answer(run: form.Run) -> findings.Finding | None:
  """Detect different problems that all have the same answer."""
  rows = _solved_numbers(run)
  if rows is None:
    return None
  problems = rows['prompt_id'].nunique()
  by = rows.groupby('answer')['prompt_id'].nunique()
  share, answer = by.max() / problems, by.idxmax()
  if share < _SAME or not _is_answer(run, rows, answer, share):
    return None
  other = _other_keys(rows, answer)
  # One label may be common, or may be all that a weak policy gets right.
  certain = run.format == 'evojax' or by.max() == problems
  certain |= (other or 0.0) > 1 - _SAME
  keys = '' if other is None else f', and the right one to {1 - other:.0%}'
  return findings.Finding(
      check='one_answer',
      severity='critical' if certain else 'warning',
      text=f'{answer} is the answer to {share:.0%} of {problems} different'
      f' problems that were solved{keys}',
      numbers=(
          findings.Number(
              name='solved problems with that answer',
              value=float(share),
              unit='share',
          ),
      ),
      rows=tuple(map(int, rows.index[rows['answer'] == answer][-6:])),
      change=f'{words.word(run.format, "data")}: use problems with different'
      f' answers; or check {words.word(run.format, "grader")}'
      + ('' if certain else ', unless one label is so common'),
      remedies=(records.Remedy(setting='grader'),),
  )


def _is_answer(
    run: form.Run, solved: pd.DataFrame, answer: str, share: float
) -> bool:
  """Return whether a number at the end of texts is the answer that they give.

  It is not if they name another number as their answer, as texts do that end
  with a rating of themselves, or if rollouts that end with it are right much
  more rarely than for that share of the problems.
  """
  texts = solved.loc[solved['answer'] == answer, 'completion']
  said = texts.str.findall(_SAID).str[-1].dropna()
  if (said != answer).sum() > len(texts) / 2:
    return False
  rows = shares.thinned(run.rows('outcome', 'completion'), TEXTS)
  given = rows['completion'].str[-data.END :].str.extract(data.FINAL)[0]
  right = rows.loc[given == answer, 'outcome'].mean()
  return bool(right >= share - _LUCK)


def _other_keys(rows: pd.DataFrame, answer: str) -> float | None:
  """Return the share of solved problems whose right answer is another.

  None if right answers are not logged, or hold no number to compare with.
  """
  if 'reference' not in rows:
    return None
  texts = rows.drop_duplicates('prompt_id')['reference']
  keys = texts.str.extract(data.FINAL)[0]
  return float((keys.dropna() != answer).mean()) if keys.notna().any() else None


def answers_differ(run: form.Run) -> findings.Finding | None:
  """Detect different answers to one problem that all count as right."""
  rows = _solved_numbers(run)
  if rows is None:
    return None
  by = rows.groupby('group')['answer']
  counted = rows.groupby(['group', 'answer']).size()
  others = 1 - counted.groupby('group').max() / by.size()
  others = others[by.size() >= 3]
  step = rows.groupby('group')['step'].first()
  since = shares.since(others.groupby(step).mean())
  if since is not None:
    others = others[step[others.index] >= since]
  if len(others) < 8:
    return None
  share = intervals.mean(others)
  if share.low < 1 - _SAME:
    return None
  shown = rows[rows['group'].isin(others.nlargest(2).index)]
  return findings.Finding(
      check='answers_differ',
      # Elsewhere, problems without a reference may have several right answers.
      severity='critical'
      if share.low > 0.3 and (run.format == 'evojax' or _misses_key(rows))
      else 'warning',
      text=f'{share.value:.0%} of the solved completions give another answer'
      ' than most solved completions of the same problem',
      since=since,
      numbers=(findings.number('other answers', share, 'share of the solved'),),
      rows=tuple(map(int, shown.index[:6])),
      change=f'{words.word(run.format, "grader")}: it accepts wrong answers,'
      ' unless these problems have several right ones',
      remedies=(records.Remedy(setting='grader'),),
  )


def _misses_key(rows: pd.DataFrame) -> bool:
  """Return whether many solved answers differ from the number of the key."""
  if 'reference' not in rows:
    return False
  given, wanted = (
      form.numeric(rows[name])
      for name in ('answer', 'reference')
  )
  known = given.notna() & wanted.notna()
  return bool(known.mean() > 0.5 and (given != wanted)[known].mean() > 0.1)


def paid_without_key(run: form.Run) -> findings.Finding | None:
  """Detect a score that rises as less of what is paid holds the reference.

  References that are numbers or are in the prompt are left out: numbers may be
  written in another way, and the others may be one of several choices.
  """
  rows = run.rows('outcome', 'completion', 'reference', 'prompt')
  rows = shares.thinned(rows, TEXTS)
  keys = rows['reference'].str.strip().str.lower()
  telling = keys.str.len().between(_SHORTEST, _LONGEST)
  telling &= keys.str.contains(r'[^\W\d_]{3}')
  rows, keys = rows[telling], keys[telling]
  texts = zip(keys, rows['prompt'].str.lower(), strict=True)
  free = np.array([key not in text for key, text in texts], bool)
  rows, keys = rows[free], keys[free]
  if keys.nunique() < _PROBLEMS / 2 or rows['prompt'].nunique() < _PROBLEMS:
    return None
  texts = zip(keys, rows['completion'].str.lower(), strict=True)
  rows = rows.assign(held=[float(data.stands(*both)) for both in texts])
  paid = rows[rows['outcome'] > 0.5]
  by = paid.groupby('step')['held'].mean()
  if len(by) < form.MIN_STEPS:
    raise form.too_few(len(by), 'step', what='with right answers in words')
  change = trends.change_point(by)
  since = int(by.index[change.index])
  late = lambda part: part[part['step'] >= since]
  early = lambda part: part[part['step'] < since]
  before, after = (part(paid)['held'].mean() for part in (early, late))
  if change.p > shares.SURE or before < _HELD_FIRST or after > _LEFT * before:
    return None
  first, last = (part(rows)['outcome'].mean() for part in (early, late))
  if last < first + _MORE or late(rows)['held'].mean() > early(rows)[
      'held'
  ].mean() + _MORE / 2:
    return None
  styled = paid['completion'].str.contains(_STYLE)
  style = [part(paid.assign(s=styled))['s'].mean() for part in (early, late)]
  lists = ''
  if style[1] > style[0] + _MORE:
    lists = f'; {style[1]:.0%} of them have headers or lists ({style[0]:.0%})'
  return findings.Finding(
      check='paid_without_key',
      severity='warning',
      text=f'{last:.0%} count as right ({first:.0%} before), and {after:.0%} of'
      f' these hold the reference ({before:.0%} before){lists}',
      since=since,
      p=change.p,
      numbers=(
          findings.number(
              'hold the reference, of what counts',
              intervals.mean(by[by.index >= since]),
              'share',
          ),
      ),
      rows=shares.newest(paid, paid['held'] < 0.5),
      change=f'{words.word(run.format, "grader")}: it pays something else than'
      ' the answer, such as the style: read these; unless they say the same in'
      ' other words, show a judge only the final answer and the reference',
      remedies=(records.Remedy(setting='grader'),),
      curves=(('hold the reference', by.index.to_numpy(), by.to_numpy()),),
  )


def _open_cases(run: form.Run, rows: pd.DataFrame):
  """Yield (description, mask of such rollouts, tolerated solved share)."""
  if 'error' in rows:
    yield 'whose grading failed', rows['error'] > 0.5, 0.2
  if 'crashed' in rows:
    yield 'whose program ended in an error', rows['crashed'] > 0.5, 0.2
  if 'failing' in rows:  # None of them is solved by a sound grader.
    yield 'that fail tests of the grader', rows['failing'] > 0.5, 0.05
  if 'format_ok' in rows:
    unread, most = rows['format_ok'] < 0.5, 0.2
    if run.format != 'evojax' or run.config.get('domain.kwargs.grader'):
      # A grader of other trainers or of the user may read answers without this
      # form. One that accepts what it cannot read accepts nearly all.
      most = max(_NEARLY_ALL, rows.loc[~unread, 'outcome'].mean() + 0.05)
    yield 'that hold no readable answer', unread, most
  if 'completion' in rows:
    empty = ~rows['completion'].str.contains(r'\w', regex=True)
    yield 'without a letter or a digit', empty, 0.2
  change = 'changed' if 'changed' in rows else 'edited'
  if {change, 'group'} <= set(rows):
    # Some problems of agents ask for no change.
    needed = rows[change].groupby(rows['group']).transform('mean') >= 0.5
    text = 'that change no file, though most of their group do,'
    yield text, needed & (rows[change] < 0.5), 0.2
  if {'completion', 'prompt_id'} <= set(rows):
    reads = rows['completion'].str.contains(READS)
    # Problems whose programs never read anything may have no input.
    needed = reads.groupby(rows['prompt_id']).transform('any')
    prints = rows['completion'].str.contains('print(', regex=False)
    if reads.mean() > 0.3:
      yield 'whose program never reads its input', needed & prints & ~reads, 0.2
  if {'reference', 'text_id', 'completion'} <= set(rows):
    # The reference occurs nowhere in a completion that counts as right.
    numeric = rows['reference'].str.fullmatch(r'\s*-?\d+\s*')
    absent = pd.Series(
        [
            bool(n) and bool(a.strip()) and not data.stands(a.strip(), c)
            for n, a, c in zip(
                numeric, rows['reference'], rows['completion'], strict=True
            )
        ],
        rows.index,
    )
    if numeric.mean() > 0.5:
      early = run.early(rows[numeric])[['reference', 'completion']]
      # A number that no completion contains is not an answer but, for example,
      # the seed of a game.
      if np.mean([a.strip() in c for a, c in early.to_numpy()]) < _HELD:
        return
    # One text that counts as right for problems with different answers.
    solved = rows[rows['outcome'] > 0.5]
    answers = solved.groupby('text_id')['reference'].nunique()
    times = solved.groupby('text_id').size()
    many = answers.index[(answers >= 3) & (times >= 10)]
    repeated = rows['text_id'].isin(many)
    yield 'with one text for different problems', repeated, 0.5
    yield 'in which the right number does not occur', absent, 0.2


CHECKS = (
    grader_open,
    length_decides,
    one_answer,
    answers_differ,
    verdicts_differ,
    paid_without_key,
)
