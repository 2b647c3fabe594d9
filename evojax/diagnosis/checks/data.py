"""Checks of problems: narrow or repeated data, prompts that leak or are cut."""

import bisect
import collections
import re

import numpy as np
import pandas as pd

from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis import words
from evojax.diagnosis.checks import shares
from evojax.ledger import records
from evojax.stats import intervals

_FEW = 64  # Number of problems below which a policy learns them by heart.
_PAIRS = 5  # Fewest steps that are compared with the one before.
_OFTEN = 20  # Times that each problem was seen.
LEAST = 20  # Rollouts of a kind, or problems, that a check of a grader needs.
_KEYS = 5  # With so many right answers, a prompt stands for several problems.
_LEAD = 6  # Characters before an answer in a prompt that are compared.
_ALIKE = 0.5  # Share of answers after the same characters.
_NEARLY_ALL = 0.9
END = 120  # Characters at the end of a text that may hold its answer.
# A number at the end of a text that is not part of an expression.
FINAL = re.compile(
    r'(?<![-+*/^]\s)(?:(?<![\w.+*/^-])|(?<=\*\*))(-?\d+(?:[./]\d+)?)'
    r'(?!\s*[-+*/^.]?\s*\d)\D{0,40}$'
)
_LETTERS = re.compile(r'[^\W\d_]+')
# Share of prompts that may begin or end within a word. Even if a limit cuts all
# prompts, more than half do not, since many cuts fall between words.
_BROKEN = 0.1
_LACK = 0.03  # Share of prompts that lack the end that all others have.
_SAME_END = 12  # Characters of such an end.
_FIRST = 0.05  # Quantile that stands for the lowest value.
_HARDLY = 0.25  # Reward of cut problems, relative to that of the others.
_ONE_LENGTH = 0.2  # Relative spread of characters under one token limit.
# Markers at the start of a message, in the chat templates of Qwen, Llama,
# Mistral and Gemma.
_MARKER = r'(?:<\|im_start\|>|<\|start_header_id\|>|\[INST\]|<start_of_turn>)'


def _prompts(run: form.Run) -> pd.DataFrame:
  """Return one row per group, with the group's problem.

  Raises:
    form.NotLogged: If several problems have the same prompt, as in a game that
      always begins with the same text, or in questions about images.
  """
  rows = run.rows('prompt_id', 'group')
  if 'reference' in rows:
    keys = rows.groupby('prompt_id')['reference'].nunique()
    if (keys >= _KEYS).mean() > 0.5:
      raise form.NotLogged('problems with different answers have one prompt')
  if run.has_turns and rows['prompt_id'].nunique() == 1:
    raise form.NotLogged('all episodes begin with the same prompt')
  return rows.groupby('group')[['step', 'prompt_id']].first()


def narrow_data(run: form.Run) -> findings.Finding | None:
  """Detect a run with few problems, each seen very often."""
  groups = _prompts(run)
  distinct = groups['prompt_id'].nunique()
  times = len(groups) / distinct
  if distinct >= _FEW or times < _OFTEN:
    return None
  shown = run.rollouts.drop_duplicates('prompt_id').index[:6]
  return findings.Finding(
      check='narrow_data',
      severity='critical' if distinct <= 8 else 'warning',
      text=f'only {distinct} different problems, each seen {times:.0f} times',
      numbers=(
          findings.Number(name='problems', value=float(distinct)),
          findings.Number(name='times each was seen', value=float(times)),
      ),
      rows=tuple(map(int, shown)),
      change=f'{words.word(run.format, "data")}: more problems',
      remedies=(records.Remedy(setting='data'),),
  )


def repeated_steps(run: form.Run) -> findings.Finding | None:
  """Detect steps that train on the problems of the step before."""
  groups = _prompts(run)
  rows = run.rollouts
  by = groups.groupby('step')['prompt_id'].agg(set)
  texts = None
  if 'text_id' in rows:
    texts = rows.groupby('step')['text_id'].agg(set)[by.index].tolist()
  again = [
      len(now & before) / len(now)
      for i, (before, now) in enumerate(zip(by, by[1:], strict=False))
      # A step with the same rollouts as another is a second pass over them.
      if not texts or texts[i] != texts[i + 1]
  ]
  if len(again) < _PAIRS or by.map(len).median() < 2:
    what = 'with several problems after the first one'
    raise form.too_few(len(again), 'step', _PAIRS, what)
  share = intervals.mean(again)
  if share.low < 0.5:
    return None
  shown = rows[rows['prompt_id'] == groups['prompt_id'].mode()[0]]
  return findings.Finding(
      check='repeated_steps',
      severity='warning',
      text=f'{share.value:.0%} of the problems of a step are those of the step'
      ' before',
      numbers=(findings.number('repeated', share, 'share'),),
      rows=tuple(map(int, shown.drop_duplicates('step').index[:6])),
      change=f'{words.word(run.format, "data")}: the position in the data must'
      ' advance from step to step; or more problems',
      remedies=(records.Remedy(setting='data'),),
  )


def duplicate_prompts(run: form.Run) -> findings.Finding | None:
  """Detect several groups of one step with the same problem."""
  if run.format == 'verl':
    raise form.NotLogged(
        'which rollouts are one group is not logged', ['group']
    )
  groups = _prompts(run)
  by = groups.groupby('step')['prompt_id']
  per_step = by.size()
  if per_step.max() < 2:
    raise form.NotLogged('no step has several groups')
  extra = 1 - by.nunique() / per_step
  share = intervals.mean(extra)
  distinct = groups['prompt_id'].nunique()
  # Share of repeats if groups are drawn from so few problems with replacement.
  n = float(per_step.mean())
  chance = 1 - distinct * (1 - (1 - 1 / distinct) ** n) / n
  if share.low < 0.1 or share.low < 1.5 * chance:
    return None
  twice = groups[groups.duplicated(['step', 'prompt_id'])].index[:3]
  rows = run.rollouts.index[run.rollouts['group'].isin(twice)]
  return findings.Finding(
      check='duplicate_prompts',
      severity='warning',
      text=f'{share.value:.0%} of the groups of a step repeat a problem of the'
      ' same step',
      numbers=(findings.number('repeated', share, 'share'),),
      rows=tuple(map(int, rows[:6])),
      change=f'{words.word(run.format, "data")}: remove duplicates',
  )


def stands(answer: str, prompt: str) -> bool:
  """Return whether a text contains an answer; 1,234.00 is 1234."""
  return _place(answer, prompt) is not None


def _place(answer: str, text: str) -> str | None:
  """Return the characters before an answer in a text; None without it.

  1,234.00, 1{,}234 and 1234cm are 1234, and a minus may be one of Unicode.
  """
  answer, text = (
      re.sub(
          r'(?<=\d)(?:,|\{,\}|\\[,!])(?=\d{3}(?!\d))',
          '',
          written.replace('\N{MINUS SIGN}', '-'),
      )
      for written in (answer, text)
  )
  end = r'(?!\w|\.\d)'
  if re.fullmatch(r'-?\d+', answer):  # A unit may follow.
    end = r'(?!\d|\.\d)'
  # Only ASCII letters: other scripts write no space before a number.
  found = re.search(
      rf'(?<![\w.]){re.escape(answer)}(?:\.0+)?{end}', text, re.ASCII
  )
  return found and text[max(found.start() - _LEAD, 0) : found.start()]


def answer_in_prompt(run: form.Run) -> findings.Finding | None:
  """Detect prompts that contain the right answer."""
  rows = run.rows('prompt', 'reference')
  pairs = rows.drop_duplicates(['prompt_id', 'reference'])
  pairs = pairs[pairs['reference'].str.strip().str.len().between(1, 200)]
  pairs = pairs.iloc[:2000]
  if len(pairs) < 20 or pairs['reference'].nunique() < 2:
    raise form.NotLogged(
        'there are fewer than 20 problems, or all have the same answer'
    )
  prompts = pairs['prompt'].tolist()
  answers = pairs['reference'].str.strip().tolist()
  places = [_place(a, p) for a, p in zip(answers, prompts, strict=True)]
  own = np.array([place is not None for place in places])
  # Answers of other problems show how often this happens by chance.
  order = np.random.default_rng(0).permutation(len(pairs))
  other = np.array(
      [stands(answers[j], p) for j, p in zip(order, prompts, strict=True)]
  )
  more = intervals.mean(own.astype(float) - other)
  if more.low < 0.5:
    return None
  # A list of choices or a text to read contains the answer, too. In a leak, the
  # same characters precede the answer in most prompts.
  leads = collections.Counter(place for place in places if place is not None)
  alike = leads.most_common(1)[0][1] > _ALIKE * own.sum()
  named = _in_wrong_ones(rows)
  alike = alike and not named and not _is_goal(rows)
  return findings.Finding(
      check='answer_in_prompt',
      severity='critical' if alike else 'note',
      text=f'the answer stands in {own.mean():.0%} of the prompts'
      f' ({other.mean():.0%} by chance)',
      numbers=(findings.number('beyond chance', more, 'share of problems'),),
      rows=tuple(map(int, pairs.index[own][:6])),
      change=f'{words.word(run.format, "data")}: remove the answer from the'
      ' prompts'
      + (
          ''
          if alike
          else ', unless it is no answer: completions that earn least have it,'
          ' too'
          if named
          else ', unless the task is to find it there'
      ),
      remedies=(records.Remedy(setting='grader'),),
  )


def _in_wrong_ones(rows: pd.DataFrame) -> bool:
  """Return whether completions that earn least contain the reference, too.

  Then it is not the answer but, for example, the name of a function to write.
  """
  paid = rows.get('outcome', rows.get('reward'))
  if paid is None or 'completion' not in rows or not np.ptp(paid.dropna()):
    return False
  least = paid <= (paid.min() + paid.max()) / 2
  rows = shares.thinned(rows[least & rows['reference'].str.strip().ne('')], 500)
  has = [
      stands(answer.strip(), text)
      for answer, text in zip(
          rows['reference'], rows['completion'], strict=True
      )
  ]
  return len(has) >= LEAST and float(np.mean(has)) > _NEARLY_ALL


def _is_goal(rows: pd.DataFrame) -> bool:
  """Return whether the reference is a goal, not the answer itself.

  If it is the number that an expression has to make (Countdown), few solved
  completions end with it. If no outcome is known, the completions that earn
  most count as solved.
  """
  paid = rows.get('outcome', rows.get('reward'))
  if paid is None or 'completion' not in rows:
    return False
  keyed = rows['reference'].str.strip().ne('')
  rows = rows[keyed & (paid >= paid.max() - 1e-9)]
  rows = shares.thinned(rows, 2000)
  if len(rows) < LEAST or form.numeric(rows['reference']).isna().mean() > 0.5:
    return False
  ends = rows['completion'].str[-END:].str.extract(FINAL)[0]
  return bool((ends == rows['reference'].str.strip()).mean() < 0.5)


def prompt_cut(run: form.Run) -> findings.Finding | None:
  """Detect prompts whose beginning or end a limit has cut off.

  They begin or end within a word, or lack the beginning or end of all others.
  """
  rows = run.rows('prompt', 'prompt_id')
  rows = rows.drop_duplicates('prompt_id').iloc[:2000]
  if len(rows) < LEAST:
    raise form.too_few(len(rows), 'problem', LEAST)
  texts = rows['prompt'].str.lower().tolist()
  for side in ('end', 'begin'):
    # Reversed texts, so that the beginning is tested as an end.
    given = texts if side == 'end' else [text[::-1] for text in texts]
    broken, said = _broken(given), f'{side} within a word'
    share = intervals.mean(np.array(broken, np.float64))
    if share.low < _BROKEN:
      broken = _without_end(given)
      said = f'lack the {side} that all others have'
      share = intervals.mean(np.array(broken, np.float64))
      if share.low < _LACK or not _hardly_solved(run, rows[broken]):
        continue
      said += ', and they are the longest ones'
    return findings.Finding(
        check='prompt_cut',
        severity='critical' if share.low > 1.5 * _BROKEN else 'warning',
        text=f'{share.value:.0%} of the prompts {said}',
        numbers=(findings.number('such prompts', share, 'share'),),
        rows=tuple(map(int, rows.index[broken][:6])),
        change=f'{words.word(run.format, "data")}: show the whole prompt, or'
        ' leave out those that are too long',
        remedies=(records.Remedy(setting='domain.kwargs'),),
    )
  return None


def template_twice(run: form.Run) -> findings.Finding | None:
  """Detect prompts to which a chat template is applied a second time."""
  rows = run.rows('prompt', 'prompt_id').drop_duplicates('prompt_id')
  # evojax logs prompts before its template is applied, most other trainers
  # afterwards.
  pattern = _MARKER if run.format == 'evojax' else rf'(?:{_MARKER}\w*\s*){{2}}'
  twice = rows['prompt'].str.contains(pattern)
  if twice.mean() < 0.5:
    return None
  return findings.Finding(
      check='template_twice',
      severity='warning',
      text=f'{twice.mean():.0%} of the prompts hold the markers of a chat'
      ' template before one is applied to them',
      numbers=(
          findings.Number(
              name='such prompts', value=float(twice.mean()), unit='share'
          ),
      ),
      rows=tuple(map(int, rows.index[twice][:6])),
      change=f'{words.word(run.format, "data")}: pass only the texts of the'
      ' messages',
      remedies=(records.Remedy(setting='domain.kwargs'),),
  )


def _hardly_solved(run: form.Run, cut: pd.DataFrame) -> bool:
  """Return whether some problems earn far less than the others.

  Prompts of another family may look as if they were cut. evojax cuts none.
  """
  name = 'outcome' if 'outcome' in run.rollouts else 'reward'
  if run.format == 'evojax' or name not in run.rollouts:
    return False
  rows = run.rollouts.dropna(subset=[name])
  among = rows['prompt_id'].isin(cut['prompt_id'])
  if not among.any() or among.all():
    return False
  least = float(rows[name].min())
  few, many = (rows[name][chosen].mean() - least for chosen in (among, ~among))
  return bool(few < _HARDLY * many)


def _broken(texts: list[str]) -> list[bool]:
  """Return which texts end within a word, judged by the words of the others."""
  last, known = [], collections.Counter()
  for text in texts:
    found = _LETTERS.findall(text)
    ends = bool(found) and text.endswith(found[-1])
    last.append(found.pop() if ends else '')
    known.update(set(found))
  common = sorted(word for word, times in known.items() if times > 1)

  def begins(part: str) -> bool:
    place = bisect.bisect_left(common, part)
    return place < len(common) and common[place].startswith(part)

  return [bool(w) and w not in known and begins(w) for w in last]


def _without_end(texts: list[str]) -> list[bool]:
  """Return which texts lack the end of the others because a limit cuts them.

  Cut prompts are the longest ones, have about the same length, occur throughout
  the run, and end in many ways; prompts of a second family or of a new form do
  not.
  """
  ends = collections.Counter(text[-_SAME_END:] for text in texts)
  end, times = ends.most_common(1)[0]
  lack = np.array([not text.endswith(end) for text in texts])
  none = [False] * len(texts)
  if times < len(texts) / 2 or not lack.any() or len(end) < _SAME_END:
    return none
  lengths = np.array([len(text) for text in texts])
  own = {text[-_SAME_END:] for text in np.array(texts, object)[lack]}
  low, high = np.quantile(lengths[lack], [_FIRST, 1 - _FIRST])
  first, second = (half.mean() for half in np.array_split(lack, 2))
  cut = (
      (lengths[~lack] < low).mean() > 1 - _FIRST
      and high - low < _ONE_LENGTH * low
      and min(first, second) > max(first, second) / 4
      and len(own) > lack.sum() / 2
  )
  return lack.tolist() if cut else none


CHECKS = (
    answer_in_prompt,
    prompt_cut,
    template_twice,
    narrow_data,
    repeated_steps,
    duplicate_prompts,
)
