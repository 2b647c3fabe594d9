"""Checks of what reaches the loss: parts of the reward, advantages, lengths."""

import re

import numpy as np
import pandas as pd

from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis import names
from evojax.diagnosis import words
from evojax.diagnosis.checks import blame
from evojax.diagnosis.checks import falls
from evojax.diagnosis.checks import shares
from evojax.ledger import records
from evojax.stats import intervals
from evojax.stats import trends

_SURE = 0.01
_FEWEST = 200  # Minimum number of rollouts,
_STEPS = 16  # or of steps, of a part that is always 0.
_MOST = 0.9  # Share of steps, or of rollouts, that counts as all.
_PAID = 0.05  # Mean advantage of a token if advantages are not centred.
_CLOSED = re.compile(r'</(\w+)>')
_FALL = 0.25  # Fall of the mean reward, relative to it.
_AT_ONCE = 0.2  # Share of its first reward that a policy never gets again.
# A difference of rewards that counts as none, and one of a part's means that
# counts.
_EQUAL, _DIFFERS = 1e-9, 1e-3
_FOLLOWS = 0.97  # Correlation of a reward that is a function of the length.
_UNSCORED = 0.1  # Share without a score; their extra pay, in group spreads.


def never_paid(run: form.Run) -> findings.Finding | None:
  """Detect a part of the reward that no rollout ever gets."""
  weights = run.settings.get('weights') or {}
  sums: dict[str, float] = {}
  for table, least in ((run.rollouts, _FEWEST), (run.steps, _STEPS)):
    for name in table:
      if name.startswith(form.PART) and table[name].notna().sum() >= least:
        part = name.removeprefix(form.PART)
        sums.setdefault(part, float(table[name].abs().sum()))
  if not sums:
    if run.parts:
      raise form.too_few(run.n_steps, 'step', _STEPS)
    raise form.NotLogged('parts of the reward are not logged', ['reward'])
  never = [n for n, total in sums.items() if not total and weights.get(n, 1)]
  if not never or len(never) == len(sums) or _unsolved(run):
    return None
  tag = _unopened(run)
  judging = [n for n in never if names.judges(n)]
  why = 'does it match a completion (newlines, end tokens)?'
  if tag:
    why = (
        f'completions close <{tag}> without opening it, as if the chat template'
        ' opened it in the prompt'
    )
  elif judging:
    why = (
        f'how does {", ".join(judging)} find the answer in a completion (tags'
        ' or a box around it), and does it get the right one? or all problems'
        ' are too hard (read some): mix in easier ones'
    )
  return findings.Finding(
      check='never_paid',
      # It may be a penalty that nothing deserves.
      severity='warning' if tag or judging else 'note',
      text=f'the part {", ".join(never)} is 0 for all rollouts',
      change=f'{words.word(run.format, "reward")}, unless it is a penalty:'
      f' {why}',
      rows=tuple(map(int, run.rollouts.index[:6])),
  )


def _unsolved(run: form.Run) -> bool:
  """Return whether nothing is solved, so that parts for it are 0, too."""
  try:
    return float(run.series('outcome')[1].sum()) == 0
  except form.NotLogged:
    return False


def _unopened(run: form.Run) -> str:
  """Return a tag that most completions close but do not open, or ''."""
  if 'completion' not in run.rollouts or run.has_turns:
    return ''
  texts = shares.thinned(run.rollouts, 500)['completion']
  found = []
  for text in texts:
    match = _CLOSED.search(text)
    opened = match and f'<{match[1]}>' in text[: match.start()]
    found.append('' if opened or not match else match[1])
  most = pd.Series(found).mode()
  tag = str(most[0]) if len(most) else ''
  return tag if tag and np.mean([t == tag for t in found]) > 0.5 else ''


def _means(run: form.Run) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Return steps and means of parts of which no rollouts are logged."""
  found = {}
  for name in run.steps:
    part = name.removeprefix(form.PART)
    if part == name or part in run.parts:
      continue
    steps, values = run.series(name)
    if len(values) >= _STEPS:
      found[part] = steps, values
  if not found and not run.parts:
    raise form.NotLogged('means of parts of the reward are not logged')
  return found


def fixed_part(run: form.Run) -> findings.Finding | None:
  """Detect a part for right answers whose mean is the same in every step."""
  found = {
      part: float(values[0])
      for part, (_, values) in _means(run).items()
      if np.ptp(values) < 1e-9 and abs(values[0]) > 1e-9 and names.judges(part)
  }
  if not found:
    return None
  said = ' and '.join(f'{part} is {value:g}' for part, value in found.items())
  which = 'the part' if len(found) == 1 else 'of the parts,'
  return findings.Finding(
      check='fixed_part',
      severity='warning',
      text=f'{which} {said} in every step, which teaches nothing',
      change=f'{words.word(run.format, "reward")}: what does'
      f' {", ".join(found)} return where it cannot judge, and does the column'
      ' with the reference answers reach it?',
  )


def form_wins(run: form.Run) -> findings.Finding | None:
  """Detect parts that rise while the part that tells what is right falls.

  For runs without rollouts, in which `reward_hacking` compares both.
  """
  rise, fall, shown, lost = [], [], [], []
  for part, (steps, values) in _means(run).items():
    line, change = trends.trend(values), trends.change_point(values)
    if change.p > _SURE:
      continue
    if not names.judges(part):
      rise += [part] * blame.rises(values)
    elif line.high < 0 and line.p < _SURE:
      if change.after < (1 - _FALL) * change.before:
        fall.append(part)
        shown.append((part, steps, values))
        lost.append(shares.fall_severity(run, values, change.before))
  if not rise or not fall:
    return None
  steps, reward = run.course('reward')
  if trends.trend(reward).low < 0:
    return None
  weights = ', '.join(words.word(run.format, 'weight', part) for part in rise)
  return findings.Finding(
      check='form_wins',
      severity=min(lost, key=findings.SEVERITIES.index),
      text=f'the reward rises by {", ".join(rise)}, while {", ".join(fall)}'
      f' falls{shares.said_harder(run)}',
      change=f'{weights}: a third; or raise {words.word(run.format, "kl_coef")}'
      ' (does the loss have that penalty?); unless problems get harder',
      curves=(('reward', steps, reward), *shown),
  )


def form_alone(run: form.Run) -> findings.Finding | None:
  """Detect completions that shrink to the form, which is all that is paid.

  A reward for the form alone may be intended. If completions get much shorter,
  they drop what is not rewarded.
  """
  columns = run.part_columns
  if not columns:
    raise form.NotLogged('parts of the reward are not logged', ['reward'])
  parts = [name.removeprefix(form.PART) for name in columns]
  if not all(map(names.is_form, parts)) or not _add_up(run, columns):
    return None
  steps, length = run.course('length')
  change = trends.change_point(length)
  first, last = (float(part.mean()) for part in np.array_split(length, 5)[::4])
  in_text = 'length' in run.rollouts and 'n_tokens' not in run.rollouts
  unit = 'characters' if in_text else 'tokens'
  if change.p > _SURE or last > (1 - _FALL) * first:
    return None
  return findings.Finding(
      check='form_alone',
      severity='warning',
      text='all that the reward pays for is the form'
      f' ({", ".join(sorted(parts))}), so that a wrong answer earns as much as'
      f' a right one; completions shrink, from {first:.0f} to {last:.0f}'
      f' {unit}',
      since=int(steps[change.index]),
      p=change.p,
      change=f'{words.word(run.format, "reward")}: add a part for the right'
      ' answer, with the larger weight; unless only the form is to be learned',
      remedies=blame.remedies(run),
      curves=(('length', steps, length),),
  )


def _add_up(run: form.Run, columns: list[str]) -> bool:
  """Return whether the reward is known to consist of some parts alone."""
  if {*columns, 'reward'} <= set(run.rollouts):
    rows = run.rollouts.dropna(subset=[*columns, 'reward'])
    by = rows.groupby(columns)['reward']
    return len(rows) >= _FEWEST and float((by.max() - by.min()).max()) < 1e-6
  # The reader has found weights with which they add up.
  return bool(run.settings.get('weights'))


def redundant_part(run: form.Run) -> findings.Finding | None:
  """Detect a part of the reward that only repeats what is solved."""
  rows = run.rows('outcome')
  if len(rows) < _FEWEST:
    raise form.too_few(len(rows), 'rollout', _FEWEST)
  solved = rows['outcome'] > 0.5
  if min(solved.sum(), (~solved).sum()) < _STEPS:
    return None
  found = []
  for part in run.parts:
    values = rows[form.PART + part]
    same = all(np.ptp(values[mask]) < 1e-9 for mask in (solved, ~solved))
    if same and np.ptp(values) > 1e-9:
      found.append(part)
  # One of them may be the outcome itself; a single part is, in any units.
  found = [p for p in found if not _is_outcome(rows, p)]
  if not found or len(run.parts) == 1:
    return None
  return findings.Finding(
      check='redundant_part',
      severity='note',
      text=f'the part {", ".join(found)} has one value for all that is solved'
      ' and one for the rest: it tells no more than the outcome',
      change=f'{words.word(run.format, "reward")}: does'
      f' {", ".join(found)} get what it is to judge?',
      rows=tuple(map(int, rows.index[~solved][:6])),
  )


def _is_outcome(rows: pd.DataFrame, part: str) -> bool:
  """Return whether a part is the outcome, or minus 1 where it is 0."""
  values = rows[form.PART + part]
  high, low = float(values.max()), float(values.min())
  return high > 0 and low in (0.0, -high)


def no_baseline(run: form.Run) -> findings.Finding | None:
  """Detect advantages that are the rewards: nothing is subtracted."""
  steps, mean = run.course('advantage_mean')
  if 'advantage_low' in run.steps:
    _, low = run.course('advantage_low')
    positive = low > -1e-6
  elif 'advantage_size' in run.steps:
    _, size = run.course('advantage_size')
    n = min(len(size), len(mean))
    positive = mean[-n:] > _MOST * size[-n:]
  else:
    raise form.not_logged(['advantage_low', 'advantage_size'])
  paid = intervals.mean(mean)
  if positive.mean() < _MOST or paid.low < _PAID:
    return None
  return findings.Finding(
      check='no_baseline',
      severity='critical',
      text='no advantage is below 0, so that nothing is ever discouraged',
      numbers=(findings.number('mean advantage of a token', paid),),
      change='check the groups: rollouts of one prompt need one group number'
      ' (uid, index), and the mean of the group must be subtracted',
      curves=(('mean advantage', steps, mean),),
  )


def reward_lost(run: form.Run) -> findings.Finding | None:
  """Detect a reward that is the same throughout, though its parts are not."""
  steps, reward = run.course('reward')
  weights = run.settings.get('weights') or {}
  names = run.part_columns
  if not names:
    raise form.NotLogged('parts of the reward are not logged', ['reward'])
  if np.ptp(reward) > _EQUAL or not _same_within(run):
    return None
  if not weights and any(not np.any(run.series(n)[1]) for n in names):
    return None  # The others may have no weight: see `never_paid`.
  paid = [
      name.removeprefix(form.PART)
      for name in names
      if weights.get(name.removeprefix(form.PART), 1.0)
      and np.ptp(run.series(name)[1]) > _DIFFERS
  ]
  if not paid:
    return None
  return findings.Finding(
      check='reward_lost',
      severity='critical',
      text=f'the reward is {reward[0]:g} in all steps, though its parts'
      f' ({", ".join(paid)}) are not the same',
      numbers=(findings.Number(name='reward', value=float(reward[0])),),
      change='check what happens to the parts before they become the reward:'
      ' their weights, a filter (of truncated completions, say) that takes all'
      ' rollouts, a bound, or a total that another function overwrites',
      remedies=blame.remedies(run),
      curves=(('reward', steps, reward),),
  )


def _same_within(run: form.Run) -> bool:
  """Return whether rewards are not known to differ within a step."""
  if 'reward' in run.rollouts:
    return float(np.ptp(run.rollouts['reward'].dropna())) <= _EQUAL
  return True


def padded_lengths(run: form.Run) -> findings.Finding | None:
  """Detect completions that all count as long as the longest of their step."""
  steps, low = run.course('length_low')
  _, high = run.course('length_high')
  n = min(len(low), len(high))
  low, high, steps = low[-n:], high[-n:], steps[-n:]
  same = (high - low < 1e-6) & (high > 1)
  # Answers of a fixed form have the same length in all steps.
  if same.mean() < _MOST or len(np.unique(high)) < form.MIN_STEPS:
    return None
  if 'truncated' in run.steps and run.series('truncated')[1].mean() > 0.5:
    return None
  return findings.Finding(
      check='padded_lengths',
      severity='critical',
      text='all completions of a step have the length of the longest, though'
      ' few are cut: what follows their end is trained on',
      numbers=(
          findings.Number(
              name='steps of one length', value=float(same.mean()), unit='share'
          ),
      ),
      change='the mask of tokens: it must end with the token that ends a'
      ' completion, and padding needs another token than that',
      curves=(('longest', steps, high),),
  )


def reward_falling(run: form.Run) -> findings.Finding | None:
  """Detect a reward that falls, where no outcome is known."""
  if 'outcome' in set(run.steps) | set(run.rollouts):
    return None  # `outcome_falling` judges what is solved.
  steps, reward = run.course('reward')
  if 'reward' not in run.rollouts and _at_once(reward):
    return findings.Finding(
        check='reward_falling',
        severity='critical',
        text=f'the reward falls from {reward[0]:.3g} in the first step to at'
        f' most {reward[1:].max():.3g} in all others',
        since=int(steps[1]),
        change=falls.after_first(run),
        curves=(('reward', steps, reward),),
    )
  line = trends.trend(reward)
  change = trends.change_point(reward)
  fall = change.before - change.after
  # The line through a rise and a fall may be flat.
  late = reward[-len(reward) // 4 :].mean() < change.before - fall / 2
  lower = line.p < _SURE and line.high < 0
  fell = change.p <= _SURE and fall >= _FALL * abs(change.before)
  fell = fell and (lower or late)
  if not fell:
    change = falls.from_peak(reward)
    if change is None:
      return None
  return findings.Finding(
      check='reward_falling',
      # Slow swings have falls from a peak, too.
      severity=shares.fall_severity(run, reward, change.before)
      if fell
      else 'warning',
      text=f'the reward falls from {change.before:.3g} to'
      f' {change.after:.3g}{shares.said_harder(run)}',
      since=int(steps[change.index]),
      p=change.p,
      change=falls.advice(
          run,
          steps,
          reward,
          change,
          f'{falls.learning_rate(run)}: a tenth of it, from an earlier'
          ' checkpoint',
      ),
      curves=(('reward', steps, reward),),
  )


def _at_once(reward: np.ndarray) -> bool:
  """Return whether hardly any reward is earned after the first step."""
  first, others = float(reward[0]), reward[1:]
  return first > 0 and float(others.max()) < _AT_ONCE * first


def length_alone(run: form.Run) -> findings.Finding | None:
  """Detect a mean reward that is a function of the mean length.

  For runs without rollouts, in which `length_gaming` compares within groups.
  """
  if 'reward' in run.rollouts:
    return None
  _, reward = run.course('reward')
  steps, length = run.course('length')
  if len(steps) != len(reward) or len(steps) < _STEPS:
    return None
  # Differences, since both also rise where a policy learns longer answers.
  moved, by = np.diff(reward), np.diff(length)
  if min(moved.std(), by.std()) < 1e-9:
    return None
  r = float(np.corrcoef(moved, by)[0, 1])
  if abs(r) < _FOLLOWS:
    return None
  return findings.Finding(
      check='length_alone',
      severity='note',  # It may be intended.
      text=f'{"longer" if r > 0 else "shorter"} completions earn more, and'
      ' hardly anything else counts',
      numbers=(findings.Number(name='correlation of their changes', value=r),),
      change=f'{words.word(run.format, "reward")}, unless this is meant: check'
      ' its sign and what it measures',
      curves=(('reward', steps, reward), ('length', steps, length)),
  )


def unscored(run: form.Run) -> findings.Finding | None:
  """Detect completions without a score that are paid more than scored ones.

  Trainers count a missing score as 0, which is more than a wrong answer gets if
  wrong answers are penalised. Groups without any score are left out, since
  reward functions return none for problems of another kind.
  """
  if not run.parts:
    raise form.NotLogged('parts of the reward are not logged', ['reward'])
  weights = run.settings.get('weights') or {}
  found = [
      _unscored(run, part) for part in run.parts if weights.get(part, 1)
  ]
  return next((finding for finding in found if finding), None)


def _unscored(run: form.Run, part: str) -> findings.Finding | None:
  """Return the finding for one part of the reward."""
  column = form.PART + part
  judging = names.judges(part) or len(run.parts) == 1
  # A part whose scores are never above 0 is a penalty, which may be rare.
  if not (judging or run.rollouts[column].max() > 0):
    return None
  paid = 'advantage' if 'advantage' in run.rollouts else 'reward'
  rows = run.rows(paid, 'group')
  none = rows[column].isna().astype(float)
  by = none.groupby(rows['group'])
  rows = rows.assign(none=none)[by.transform('min') < 1]
  # In units of the spread within the group, so that scaling does not matter.
  above = pd.Series(form.within(rows, paid), rows.index)
  spread = np.sqrt((above**2).groupby(rows['group']).transform('mean'))
  rows = rows.assign(above=above / spread.where(spread > 1e-6))
  more = shares.gap(rows, 'none', 'above')
  if more is None or more.low <= 0 or more.value < _UNSCORED:
    return None
  share = shares.Share(run, 'none', rows)
  if share.late.low < _UNSCORED or share.falling:
    return None
  most = judging and share.late.value > 0.5
  return findings.Finding(
      check='unscored',
      severity='critical' if most else 'warning',
      text=f'{share.late.value:.0%} of the completions have no {part}'
      f' ({share.start:.0%} at first), and are paid more than those of their'
      f" group that are scored ({more.value:+.1f} of the group's spread)",
      since=share.since,
      p=share.p,
      numbers=(
          findings.number('completions without a score', share.late, 'share'),
          findings.number('what they are paid, of the spread', more),
      ),
      rows=shares.newest(rows, rows['none'] > 0),
      change=f'{words.word(run.format, "reward")}: give what {part} cannot'
      ' grade the score of a wrong answer, not none, which counts as 0',
      remedies=(records.Remedy(setting='reward_code'),),
      curves=(share.curve('completions without a score'),),
  )


CHECKS = (
    length_alone,
    never_paid,
    fixed_part,
    form_wins,
    form_alone,
    redundant_part,
    no_baseline,
    reward_lost,
    padded_lengths,
    reward_falling,
    unscored,
)
