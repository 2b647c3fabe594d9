"""Checks of graders that refuse what is right: keys, forms, hidden tests."""

import re

import pandas as pd

from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis import literals
from evojax.diagnosis import words
from evojax.diagnosis.checks import data
from evojax.diagnosis.checks import falls
from evojax.diagnosis.checks import graders
from evojax.diagnosis.checks import shares
from evojax.ledger import records
from evojax.stats import intervals

_AGREED = 0.85  # Share of a group with one answer that counts as sure of it.
# Share of such answers that may be wrong: a policy is sure of some mistakes.
_REFUSED = 0.2
# Forms of an answer that a grader may fail to read.
_FORMS = {
    'below 0': r'^-',
    'with a decimal point': r'\.',
    'that are fractions': '/',
    'of four digits or more': r'\d{4}',
}
_ALIKE = 0.3  # Share of a group, at least three rollouts, with one answer.
# Minimum number of problems with such answers of one form. If 80 % of the other
# such answers are right, so many are all wrong by chance in 1 of 15,000 runs.
_PER_FORM = 6
_RELIABLE = 0.8
# A family is broken if the share of right programs, among those that pass the
# shown test, is below this. In sound families of coding it is 0.5 to 0.75.
_HARDLY_EVER = 0.05
# Finds the output in a prompt that shows exactly one.
_ONE_OUTPUT = r'(?s)^(?:(?!Output:).)*Output:\n((?:(?!Output:).)*)$'
# Share of programs that a sound grader may reject, for example because a prompt
# shows the output in another format; in sound runs of coding it is 0.
_SHOWN_REFUSED = 0.1
_OUT_OF_TIME = 0.1  # In sound runs of coding, less than 0.001.
_OFTEN = 3  # Right answers to a problem needed to tell whether it is refused.
_NEVER = 0.1  # Share of them that may count, or not count, by accident.
_SOME_REFUSED = 0.02  # Share of problems.
# Answers as in DeepSeek-R1's format and in GSM8K's.
_MARKED = re.compile(r'(?s)<answer>([^<]*)</answer>|####([^\n]*)')
_ALL_REFUSED = 0.8  # Share of right answers that a working grader may refuse.
# Characters of a text (not a number) that no completion contains by accident.
_TELLING = 8
# A line that says little more than the answer has at most twice the characters
# of the answer and so many more.
_AROUND = 30
_NONE = 0.01  # Share counted as right up to which nothing counts as right.
_SAID_PLAINLY = 0.05  # Share of completions that end with the reference.
# Shares before and after a grader begins to fail.
_FEW_REFUSED, _MANY_REFUSED = 0.05, 0.2


@form.once
def _most_given(run: form.Run) -> tuple[pd.DataFrame, pd.DataFrame]:
  """Return the numbers that rollouts end with, and each group's commonest one.

  Returns:
    `graders.final_numbers`, and one row per group of four or more: `answer`;
    `n` rollouts, a `share` of the group, give it; `solved`, 1 if it ever counts
    as right; `prompt_id`. Both are empty if the answers are no numbers.
  """
  rows = run.rows('outcome', 'completion', 'prompt_id', 'group')
  rows = rows.iloc[
      -graders.TEXTS :
  ]  # The last steps, in whole groups except perhaps the first.
  size = rows.groupby('group').size()
  if 'format_ok' in rows:  # An unread answer is wrong for another reason.
    rows = rows[rows['format_ok'] > 0.5]
  found = graders.final_numbers(run, rows)
  if found is None:
    found = rows.iloc[:0].assign(answer='')
  by = found.groupby(['group', 'answer'])
  table = pd.DataFrame(
      {
          'n': by.size(),
          'solved': by['outcome'].max(),
          'prompt_id': by['prompt_id'].first(),
      }
  ).reset_index()
  table = table.sort_values('n', kind='stable').groupby('group').last()
  size = size[table.index]
  return found, table.assign(share=table['n'] / size)[size >= 4]


def form_refused(run: form.Run) -> findings.Finding | None:
  """Detect answers of one form, such as those below 0, that never count."""
  found, table = _most_given(run)
  table = table[(table['share'] >= _ALIKE) & (table['n'] >= 3)]
  for text, pattern in _FORMS.items():
    chosen = table['answer'].str.contains(pattern)
    these, others = table[chosen], table[~chosen]
    if these['prompt_id'].nunique() < _PER_FORM or len(others) < data.LEAST:
      continue
    right = intervals.mean((others['solved'] > 0.5).astype(float))
    if these['solved'].max() > 0.5 or right.low < _RELIABLE:
      continue
    shown = found[found['group'].isin(these.index)].drop_duplicates('group')
    return findings.Finding(
        check='form_refused',
        severity='warning',
        text=f'answers {text} never count as right, not even the {len(these)}'
        ' on which several rollouts of a group agree',
        numbers=(
            findings.number('right among other such answers', right, 'share'),
        ),
        rows=tuple(map(int, shown.index[-6:])),
        change=f'{words.word(run.format, "grader")}: how it reads answers'
        f' {text}; or the answers to these problems',
        remedies=(records.Remedy(setting='grader'),),
    )
  return None


def family_refused(run: form.Run) -> findings.Finding | None:
  """Detect families whose programs pass what is shown, and never the rest."""
  rows = run.rows(
      'outcome', 'visible_passed', 'family', 'completion', 'prompt_id'
  )
  if run.has_turns:  # Tests that an agent sees may pass before it begins.
    return None
  # Programs that only print the shown output are wrong in any family.
  reads = rows['completion'].str.contains(graders.READS)
  shown = rows[(rows['visible_passed'] > 0.5) & reads]
  by = shown.groupby('family')
  table = pd.DataFrame({'solved': by['outcome'].mean(), 'n': by.size()})
  table['problems'] = by['prompt_id'].nunique()
  table = table[(table['n'] >= data.LEAST) & (table['problems'] >= _PER_FORM)]
  refused = table.index[table['solved'] < _HARDLY_EVER]
  others = table[~table.index.isin(refused)]
  if not len(refused) or len(others) < 2 or others['solved'].mean() < 0.5:
    return None
  chosen = shown['family'].isin(refused)
  return findings.Finding(
      check='family_refused',
      severity='warning',
      text=f'programs for {", ".join(map(str, refused[:5]))} pass the tests'
      f' that are shown {chosen.sum()} times, and all tests'
      f' {int(shown.loc[chosen, "outcome"].sum())} times',
      numbers=(
          findings.number(
              'solved in other families if those pass',
              intervals.mean(others['solved']),
              'share',
          ),
      ),
      rows=tuple(map(int, shown.index[chosen][-6:])),
      change=f'{words.word(run.format, "data")}: check the hidden tests of'
      f' these families, and {words.word(run.format, "grader")}',
      remedies=(
          records.Remedy(setting='grader'),
          records.Remedy(setting='data'),
      ),
  )


def shown_refused(run: form.Run) -> findings.Finding | None:
  """Detect programs that print just what is shown, and fail the shown test.

  Such programs solve nothing, but if the test that the prompt shows is among
  those of the grader, they pass it.
  """
  rows = run.rows('visible_passed', 'prompt', 'completion')
  if run.has_turns:
    return None
  rows = rows[~rows['completion'].str.contains(graders.READS)]
  shown = rows['prompt'].str.extract(_ONE_OUTPUT, expand=False).str.split()
  printed = rows['completion'].map(literals.printed, na_action='ignore')
  rows = rows[
      [w is not None and w == s for w, s in zip(printed, shown, strict=True)]
  ]
  if len(rows) < data.LEAST:
    return None
  fails = rows['visible_passed'] < 0.5
  refused = intervals.mean(fails.astype(float))
  if refused.low < _SHOWN_REFUSED:
    return None
  return findings.Finding(
      check='shown_refused',
      severity='critical',
      text=f'{refused.value:.0%} of the {len(rows)} programs that print just'
      ' what the prompt shows fail the test that it shows: the tests are those'
      ' of other problems',
      numbers=(findings.number('fail the shown test', refused, 'share'),),
      rows=tuple(map(int, rows.index[fails][-6:])),
      change=f'{words.word(run.format, "grader")}: which tests it runs, for'
      ' example from a cache; or the tests of these problems',
      remedies=(records.Remedy(setting='grader'),),
  )


def tests_time_out(run: form.Run) -> findings.Finding | None:
  """Detect programs that pass no test, since they run out of time."""
  rows = run.rows('timed_out')
  late = run.late(rows)
  share = intervals.mean(late['timed_out'])
  if share.low < _OUT_OF_TIME:
    return None
  return findings.Finding(
      check='tests_time_out',
      severity='critical' if share.low > 0.4 else 'warning',
      text=f'{share.value:.0%} of the programs run out of time before they pass'
      ' one test',
      numbers=(findings.number('out of time', share, 'share'),),
      rows=tuple(map(int, late.index[late['timed_out'] > 0.5][-6:])),
      change=f'{words.word(run.format, "grader")}: check its time limit, and'
      ' the machine that runs the tests; unless the programs never end',
      remedies=(records.Remedy(setting='grader'),),
  )


def key_disagrees(run: form.Run) -> findings.Finding | None:
  """Detect answers that count as wrong although a whole group gives them."""
  found, table = _most_given(run)
  agreed = table[table['share'] >= _AGREED]
  if len(agreed) < data.LEAST:
    return None
  refused = intervals.mean((agreed['solved'] < 0.5).astype(float))
  # A policy that is mostly wrong when it is sure may be wrong here, too.
  if refused.low < _REFUSED or refused.value > 0.5:
    return None
  chosen = agreed.index[agreed['solved'] < 0.5]
  shown = found[found['group'].isin(chosen)].drop_duplicates('group')
  return findings.Finding(
      check='key_disagrees',
      severity='warning',
      text=f'{refused.value:.0%} of the answers on which a whole group agrees'
      ' count as wrong',
      numbers=(
          findings.number('counted as wrong', refused, 'share of them'),
          findings.Number(name='such groups', value=float(len(agreed))),
      ),
      rows=tuple(map(int, shown.index[-6:])),
      change=f'{words.word(run.format, "data")}: check the answers to these'
      f' problems, and {words.word(run.format, "grader")}; unless the policy is'
      ' sure of a mistake',
      remedies=(records.Remedy(setting='grader'),),
  )


def _with_reference(run: form.Run) -> pd.DataFrame:
  """Return the rollouts whose answer was read and whose reference is known."""
  rows = run.rows('reference', 'outcome', 'completion', 'prompt_id')
  if 'format_ok' in rows:  # An unread answer is wrong for another reason.
    rows = rows[rows['format_ok'] > 0.5]
  return rows


@form.once
def _equal_to_reference(run: form.Run) -> pd.DataFrame:
  """Return the rollouts that end with the number that is the reference."""
  rows = _with_reference(run)
  found = graders.final_numbers(run, rows) if len(rows) else None
  if found is None:
    return rows.iloc[:0]
  given, wanted = (
      form.numeric(found[name])
      for name in ('answer', 'reference')
  )
  return found[given.notna() & (given == wanted)]


def right_refused(run: form.Run) -> findings.Finding | None:
  """Detect answers that equal the reference and count as wrong.

  A faulty grader fails all the time, or from some step on, before which it
  hardly ever failed. A policy that has not yet learned how to write answers is
  refused early in a run, and less and less often.
  """
  equal = _equal_to_reference(run)
  if not len(equal):
    return None
  both = [_refused(part) for part in (run.early(equal), run.late(equal))]
  refused, since = both[-1], None
  by = (equal['outcome'] < 0.5).groupby(equal['step']).mean()
  if min(share.low for share in both) < _ALL_REFUSED:
    since = _refused_since(equal, by)
    if since is None:
      return None
    equal = equal[equal['step'] >= since]
    refused = intervals.mean((equal['outcome'] < 0.5).astype(float))
    equal = equal[equal['outcome'] < 0.5]
  return findings.Finding(
      check='right_refused',
      severity='critical',
      text=f'{refused.value:.0%} of the completions that end with the reference'
      ' count as wrong',
      since=since,
      numbers=(findings.number('counted as wrong', refused, 'share of them'),),
      rows=tuple(map(int, equal.drop_duplicates('prompt_id').index[-6:])),
      change=f'{words.word(run.format, "grader")}: call it on one of these by'
      ' hand; an exception or a limit of time that it hides counts as wrong'
      + ('' if since is None else '; unless the form of answers changed'),
      remedies=(records.Remedy(setting='grader'),),
      curves=()
      if since is None
      else (('refused references', by.index.to_numpy(), by.to_numpy()),),
  )


def _refused_since(equal: pd.DataFrame, by: pd.Series) -> int | None:
  """Return the step from which a grader refuses what it accepted before.

  Args:
    equal: Rollouts that end with the reference.
    by: The share of them that counts as wrong, by step.

  Returns:
    The step; None without one, or if the share of marked answers changes there,
    which is due to the policy or its prompt.
  """
  since = shares.since(by)
  if since is None:
    return None
  before, after = by[by.index < since].mean(), by[by.index >= since].mean()
  if before > _FEW_REFUSED or after < _MANY_REFUSED:
    return None
  late = equal['step'] >= since
  if equal.loc[late, 'prompt_id'].nunique() < data.LEAST:
    return None
  marked = equal['completion'].str.contains(falls.MARK).astype(float)
  moved = abs(marked[late].mean() - marked[~late].mean())
  return since if moved < _FEW_REFUSED else None


def text_refused(run: form.Run) -> findings.Finding | None:
  r"""Detect problems whose marked answer is the reference and never counts.

  An answer is marked by \boxed{}, by <answer> and </answer>, or by ####.
  `right_refused` compares numbers, and requires that nearly all are refused.
  """
  rows = _with_reference(run)
  if 'truncated' in rows:
    rows = rows[rows['truncated'] < 0.5]
  if run.has_turns:
    return None
  rows = shares.thinned(rows, graders.TEXTS)
  given = rows['completion'].map(_marked)
  equal = rows[(given != '') & (given == rows['reference'].map(_bare))]
  right = (equal['outcome'] > 0.5).groupby(equal['prompt_id'])
  share, n = right.mean(), right.size()
  share = share[n >= _OFTEN]
  refused = share.index[share < _NEVER]
  # A faulty grader refuses every answer to a problem; a policy that has yet to
  # learn a format is refused now and then.
  if len(refused) < _PER_FORM or len(share) - len(refused) < data.LEAST:
    return None
  if ((share >= _NEVER) & (share <= 1 - _NEVER)).mean() > _NEVER:
    return None
  found = intervals.mean(share.index.isin(refused).astype(float))
  # If refusals occur only early in the run, the policy had yet to learn the
  # form of answers.
  late = run.late(equal)['prompt_id'].unique()
  still = share[share.index.isin(late)] < _NEVER
  if found.low < _SOME_REFUSED or not still.mean() > found.value / 2:
    return None
  equal = equal[equal['prompt_id'].isin(share.index)]
  chosen = equal['prompt_id'].isin(refused)
  size = equal['reference'].str.len()
  shortest, which, why = size[chosen].min(), '', ''
  if shortest > size[~chosen].max():
    which = f': all of {shortest:.0f} characters or more'
    why = '; does it read only the end of a completion?'
  return findings.Finding(
      check='text_refused',
      severity='critical',
      text=f'in {found.value:.0%} of the problems a marked answer that is the'
      f' reference, character for character, always counts as wrong{which}',
      numbers=(findings.number('such problems', found, 'share'),),
      rows=tuple(
          map(int, equal[chosen].drop_duplicates('prompt_id').index[-6:])
      ),
      change=f'{words.word(run.format, "grader")}: call it on one of these by'
      f' hand{why}',
      remedies=(records.Remedy(setting='grader'),),
  )


def plain_refused(run: form.Run) -> findings.Finding | None:
  """Detect last lines that are the reference, in a run where nothing counts.

  If some completions count as right, the policy learns to write as these do.
  """
  rows = run.rows('completion', 'reference', 'prompt', 'prompt_id', 'reward')
  paid = rows.get('outcome', rows['reward'])
  if (paid > 0).mean() > _NONE or run.has_turns:
    return None
  rows = shares.thinned(rows, graders.TEXTS)
  texts = rows[['prompt', 'completion', 'reference']].to_numpy()
  said = pd.Series([_says_plainly(*three) for three in texts], rows.index)
  late = run.late(rows).index
  if rows.loc[late, 'prompt_id'][said[late]].nunique() < data.LEAST:
    return None
  share = intervals.mean(said.groupby(rows['step']).mean())
  if share.low < _SAID_PLAINLY:
    return None
  return findings.Finding(
      check='plain_refused',
      severity='critical',
      text=f'{share.value:.0%} of the completions end with a line that is the'
      ' reference, character for character, and nothing counts as right',
      numbers=(findings.number('such completions', share, 'share'),),
      rows=tuple(
          map(int, rows[said].drop_duplicates('prompt_id').index[-6:])
      ),
      change=f'{words.word(run.format, "grader")}: call it on one of these by'
      ' hand; it may look for a tag or a form that is not written (behind'
      ' </think>, within <answer> or \\boxed{}): accept answers without it, or'
      ' ask for it in the prompt',
      remedies=(records.Remedy(setting='grader'),),
  )


def _says_plainly(prompt: str, completion: str, reference: str) -> bool:
  """Return whether the last line is a distinctive reference and little else."""
  key = reference.strip()
  if len(key) < _TELLING or not any(map(str.isalpha, key)) or key in prompt:
    return False
  line = completion.rstrip().rpartition('\n')[2]
  return len(line) <= 2 * len(key) + _AROUND and data.stands(key, line)


def _marked(text: str) -> str:
  r"""Return what the last \boxed{}, <answer> or #### marks; '' without any."""
  _, box, rest = text.rpartition('\\boxed{')
  depth = 1
  for i, letter in enumerate(rest if box else ''):
    depth += (letter == '{') - (letter == '}')
    if not depth:
      return _bare(rest[:i])
  found = _MARKED.findall(text)
  return _bare(''.join(found[-1])) if found else ''


def _bare(text: str) -> str:
  return text.strip().strip('$').strip()


def _refused(rows: pd.DataFrame) -> intervals.Interval:
  """Return the share that counts as wrong, for at least LEAST problems."""
  by = (rows['outcome'] < 0.5).groupby(rows['prompt_id']).mean()
  if len(by) < data.LEAST:
    return intervals.Interval(0.0, 0.0, 1.0)
  return intervals.mean(by)


CHECKS = (
    key_disagrees,
    form_refused,
    family_refused,
    shown_refused,
    tests_time_out,
    right_refused,
    text_refused,
    plain_refused,
)
