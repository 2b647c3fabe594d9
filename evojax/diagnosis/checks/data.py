"""Checks of problems and graders: narrow data, leaks, accepted errors."""

import bisect
import collections
import re

import numpy as np
import pandas as pd

from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis import words
from evojax.ledger import records
from evojax.stats import intervals

_FEW = 64  # Number of problems below which a policy learns them by heart.
_PAIRS = 5  # Fewest steps that are compared with the one before.
_OFTEN = 20  # Times that each problem was seen.
TEXTS = 20_000  # Approximate number of completions whose texts are searched.
LEAST = 20  # Rollouts of a kind, or problems, that a check of a grader needs.
_ORDERED = 0.98  # Share of pairs beyond which length decides what is solved.
_CUT = 0.2  # Share of cut completions beyond which lengths tell little.
_NEARLY_ALL = 0.9  # Share that a grader accepts which cannot read what it gets.
_KEYS = 5  # Right answers to one prompt: it stands for several problems.
_SAME = 0.9  # Share of problems that one answer may solve.
_TWICE = 0.05  # Share of pairs of equal texts whose verdicts may differ.
_LEAD = 6  # Characters before an answer in a prompt that are compared.
_HELD = 0.02  # Share of completions with the number of the key, if it is one.
_ALIKE = 0.5  # Share of answers behind the same characters.
_END = 120  # Characters at the end of a completion that may hold its answer.
# A number at the end of a text that is no part of an expression.
_FINAL = re.compile(
    r'(?<![-+*/^]\s)(?:(?<![\w.+*/^-])|(?<=\*\*))(-?\d+(?:[./]\d+)?)'
    r'(?!\s*[-+*/^.]?\s*\d)\D{0,40}$'
)
_LETTERS = re.compile(r'[^\W\d_]+')
# Share of prompts that may begin or end within a word. Where a limit cuts all
# of them, more than half do not: cuts also fall on the end of a word.
_BROKEN = 0.1
READS = re.compile(r'\binput\(|\bstdin\b|\bopen\(0')
# Markers at the start of a message, in the chat templates of Qwen, Llama,
# Mistral and Gemma.
_MARKER = r'(?:<\|im_start\|>|<\|start_header_id\|>|\[INST\]|<start_of_turn>)'


def _prompts(run: form.Run) -> pd.DataFrame:
  """Return one row per group, with the group's problem.

  Raises:
    form.NotLogged: If prompts do not tell problems apart, as in a game that
      always begins with the same text, or with questions about images.
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
      # A step that trains on the very rollouts of another is a second pass.
      if not texts or texts[i] != texts[i + 1]
  ]
  if len(again) < _PAIRS or by.map(len).median() < 2:
    raise form.NotLogged(
        f'{len(again)} steps of several problems after others, {_PAIRS} needed'
    )
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


def _stands(answer: str, prompt: str) -> bool:
  """Return whether an answer stands in a text; 1,234.00 is 1234."""
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
    raise form.NotLogged('there are no 20 problems with different answers')
  prompts = pairs['prompt'].tolist()
  answers = pairs['reference'].str.strip().tolist()
  places = [_place(a, p) for a, p in zip(answers, prompts, strict=True)]
  own = np.array([place is not None for place in places])
  # Answers of other problems show how often this happens by chance.
  order = np.random.default_rng(0).permutation(len(pairs))
  other = np.array(
      [_stands(answers[j], p) for j, p in zip(order, prompts, strict=True)]
  )
  more = intervals.mean(own.astype(float) - other)
  if more.low < 0.5:
    return None
  # Choices, or a text to read, hold the answer somewhere; what gives it away
  # says so in the same way everywhere.
  leads = collections.Counter(place for place in places if place is not None)
  alike = leads.most_common(1)[0][1] > _ALIKE * own.sum()
  alike = alike and not _is_goal(rows)
  return findings.Finding(
      check='answer_in_prompt',
      severity='critical' if alike else 'note',
      text=f'the answer stands in {own.mean():.0%} of the prompts'
      f' ({other.mean():.0%} by chance)',
      numbers=(findings.number('beyond chance', more, 'share of problems'),),
      rows=tuple(map(int, pairs.index[own][:6])),
      change=f'{words.word(run.format, "data")}: prompts without the answer'
      + ('' if alike else ', unless it is to be found in them'),
      remedies=(records.Remedy(setting='grader'),),
  )


def _is_goal(rows: pd.DataFrame) -> bool:
  """Return whether what is solved does not end with the number of the key.

  Such a number is what an expression has to make (Countdown), no answer. Where
  no outcome is known, what earns most counts as solved.
  """
  paid = rows.get('outcome', rows.get('reward'))
  if paid is None or 'completion' not in rows:
    return False
  keyed = rows['reference'].str.strip().ne('')
  rows = rows[keyed & (paid >= paid.max() - 1e-9)]
  rows = rows.iloc[:: max(1, len(rows) // 2000)]
  if len(rows) < LEAST or form.numeric(rows['reference']).isna().mean() > 0.5:
    return False
  ends = rows['completion'].str[-_END:].str.extract(_FINAL)[0]
  return bool((ends == rows['reference'].str.strip()).mean() < 0.5)


def prompt_cut(run: form.Run) -> findings.Finding | None:
  """Detect prompts that begin or end within a word, as a limit cuts them."""
  rows = run.rows('prompt', 'prompt_id')
  rows = rows.drop_duplicates('prompt_id').iloc[:2000]
  if len(rows) < LEAST:
    raise form.NotLogged(f'{len(rows)} problems, {LEAST} needed')
  texts = rows['prompt'].str.lower().tolist()
  for side in ('end', 'begin'):
    # The same letters in reverse order: a word's rest becomes its beginning.
    given = texts if side == 'end' else [text[::-1] for text in texts]
    broken = _broken(given)
    share = intervals.mean(np.array(broken, np.float64))
    if share.low < _BROKEN:
      continue
    return findings.Finding(
        check='prompt_cut',
        severity='critical' if share.low > 1.5 * _BROKEN else 'warning',
        text=f'{share.value:.0%} of the prompts {side} within a word',
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
  # evojax logs what its template is applied to, other trainers mostly the
  # result.
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
      change=f'{words.word(run.format, "data")}: the texts of messages alone',
      remedies=(records.Remedy(setting='domain.kwargs'),),
  )


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


def grader_open(run: form.Run) -> findings.Finding | None:
  """Detect impossible successes: errors, empty texts, one text for all."""
  rows = run.rows('outcome')
  rows = rows.iloc[:: max(1, len(rows) // TEXTS)]
  for text, mask, most in _open_cases(run, rows):
    if mask.sum() < 20:
      continue
    by = rows[mask].groupby('step')['outcome'].mean()
    solved = intervals.mean(by)
    rest = float(rows.loc[~mask, 'outcome'].mean()) if (~mask).any() else 0.0
    if solved.low < most:
      continue
    shown = rows.index[mask & (rows['outcome'] > 0.5)]
    return findings.Finding(
        check='grader_open',
        severity='critical',
        text=f'{solved.value:.0%} of the completions {text} count as solved',
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
        ' or cannot be right, is not solved',
        remedies=(records.Remedy(setting='grader'),),
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
  if min(len(solved), len(wrong)) < LEAST:
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
      change=f'{words.word(run.format, "grader")}: it looks at the length, not'
      ' at what is right',
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
  if len(times) < LEAST:
    raise form.NotLogged(
        f'{len(times)} texts that occur twice in a group and are solved,'
        f' {LEAST} needed'
    )
  # The probability that two verdicts on one text differ.
  pairs = 2 * solved * (times - solved) / (times * (times - 1))
  differ = intervals.mean(pairs)
  if differ.low < _TWICE:
    return None
  chosen = pd.MultiIndex.from_frame(rows[keys]).isin(pairs.index[pairs > 0])
  return findings.Finding(
      check='verdicts_differ',
      severity='critical' if differ.low > 6 * _TWICE else 'warning',
      text='equal texts of a group get different verdicts in'
      f' {differ.value:.0%} of the pairs',
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
  rows = rows.iloc[:: max(1, len(rows) // TEXTS)]
  if rows['completion'].str.contains('print(', regex=False).mean() > 0.1:
    return None  # Programs end with any number.
  answers = rows['completion'].str[-_END:].str.extract(_FINAL)[0]
  found = rows.assign(answer=answers).dropna(subset=['answer'])
  if found['prompt_id'].nunique() < LEAST or len(found) < 0.8 * len(rows):
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
  if share < _SAME:
    return None
  other = _other_keys(rows, answer)
  # One label may be common, or be all that a weak policy gets right.
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
      change=f'{words.word(run.format, "data")}: problems with different'
      f' answers; or {words.word(run.format, "grader")}'
      + ('' if certain else ', unless one label is so common'),
      remedies=(records.Remedy(setting='grader'),),
  )


def _other_keys(rows: pd.DataFrame, answer: str) -> float | None:
  """Return the share of solved problems whose right answer is another.

  None if right answers are not logged, or hold no number to compare with.
  """
  if 'reference' not in rows:
    return None
  keys = rows.drop_duplicates('prompt_id')['reference'].str.extract(_FINAL)[0]
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
      text=f'{share.value:.0%} of what counts as solved gives another answer'
      ' than most that solve the same problem',
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


def _open_cases(run: form.Run, rows: pd.DataFrame):
  """Yield (description, mask of such rollouts, tolerated solved share)."""
  if 'error' in rows:
    yield 'whose grading failed', rows['error'] > 0.5, 0.2
  if 'crashed' in rows:
    yield 'whose program ended in an error', rows['crashed'] > 0.5, 0.2
  if 'failing' in rows:  # None of them is solved by a sound grader.
    yield 'that fail tests of their own grade', rows['failing'] > 0.5, 0.05
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
    # Problems whose programs never read may need no input.
    needed = reads.groupby(rows['prompt_id']).transform('any')
    prints = rows['completion'].str.contains('print(', regex=False)
    if reads.mean() > 0.3:
      yield 'whose program never reads its input', needed & prints & ~reads, 0.2
  if {'reference', 'text_id', 'completion'} <= set(rows):
    # The reference occurs nowhere in a completion that counts as right.
    numeric = rows['reference'].str.fullmatch(r'\s*-?\d+\s*')
    absent = pd.Series(
        [
            bool(n) and bool(a.strip()) and not _stands(a.strip(), c)
            for n, a, c in zip(
                numeric, rows['reference'], rows['completion'], strict=True
            )
        ],
        rows.index,
    )
    if numeric.mean() > 0.5:
      early = run.early(rows[numeric])[['reference', 'completion']]
      # A number that no completion has is no answer, say the seed of a game.
      if np.mean([a.strip() in c for a, c in early.to_numpy()]) < _HELD:
        return
    # One text that counts as right for problems with different answers.
    solved = rows[rows['outcome'] > 0.5]
    answers = solved.groupby('text_id')['reference'].nunique()
    times = solved.groupby('text_id').size()
    many = answers.index[(answers >= 3) & (times >= 10)]
    yield 'of one text for different answers', rows['text_id'].isin(many), 0.5
    yield 'in which the right number does not occur', absent, 0.2


CHECKS = (
    grader_open,
    length_decides,
    one_answer,
    answers_differ,
    verdicts_differ,
    answer_in_prompt,
    prompt_cut,
    template_twice,
    narrow_data,
    repeated_steps,
    duplicate_prompts,
)
