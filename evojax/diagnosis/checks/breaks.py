"""Checks of what breaks in the middle of a run, or is lost in a restart.

Nothing is wrong before the break, so averages over the run show little. The
step of the break helps to find its cause: compare it with the log of a server,
or with the time of a restart.
"""

import numpy as np
import pandas as pd

from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis import words
from evojax.diagnosis.checks import falls
from evojax.diagnosis.checks import shares
from evojax.ledger import records
from evojax.stats import intervals
from evojax.stats import trends

_SURE = 0.01
_FEWEST = 4  # Steps on either side of a break.
_NEVER, _OFTEN = 0.05, 0.5  # Shares of problems whose key differs.
_AGAIN = 2  # Minimum number of problems of a step that occurred before.
_CHANCE = 0.001  # P-value of a part that keeps its mean for so many steps.
_HALF = 0.5  # Factor of the problems of a step, and of the mean of a part.
_STEADY = 0.25  # Relative difference that counts as none.
_MOST = 0.9  # Share of steps that counts as most of them.
# Entropy of a completion, in nats, from which two are hardly ever the same.
_FREE = 10.0
# Minimum jump of the entropy, as a multiple of the usual change per step and as
# a share of its level; and the share of the jump between two adjacent steps.
_TIMES, _JUMP, _MOST_OF_IT = 8.0, 0.15, 0.7
_CHARACTERS = 4.0  # Per token, where tokens are not counted.
_WINDOW, _CLOSE = 8, 3  # Steps on either side of a jump, and next to it.
_NOISES = 8.0  # Standard errors of a jump of the score.


def keys_change(run: form.Run) -> findings.Finding | None:
  """Detect problems that come again with another right answer."""
  rows = run.rows('prompt_id', 'reference', 'group')
  groups = rows.groupby('group')[['step', 'prompt_id', 'reference']].first()
  groups = groups.sort_values('step', kind='stable')
  first = groups.groupby('prompt_id')['reference'].transform('first')
  again = groups.duplicated('prompt_id')
  differs = (groups['reference'] != first)[again].astype(float)
  by = differs.groupby(groups['step']).agg(['mean', 'size'])
  by = by[by['size'] >= _AGAIN]['mean']
  if len(by) < form.MIN_STEPS:
    raise form.too_few(len(by), 'step', what='with problems that came before')
  change = trends.change_point(by)
  # If several problems share a prompt, keys differ from the start.
  if change.p > _SURE or change.before > _NEVER or change.after < _OFTEN:
    return None
  since = int(by.index[change.index])
  late = differs[groups.loc[differs.index, 'step'] >= since]
  chosen = late.index[late > 0]
  shown = rows[rows['group'].isin(chosen)].drop_duplicates('group')
  return findings.Finding(
      check='keys_change',
      severity='critical',
      text=f'{change.after:.0%} of the problems that come again have another'
      ' reference answer than before',
      since=since,
      p=change.p,
      numbers=(
          findings.number('such problems', intervals.mean(late), 'share'),
          findings.Number(
              name='such problems before', value=change.before, unit='share'
          ),
      ),
      rows=tuple(map(int, shown.index[: shares.SHOWN])),
      change=f'{words.word(run.format, "data")}: check what pairs problems with'
      ' their answers (an index, a shuffle or a cache, after a restart or with'
      ' new data)',
      remedies=(records.Remedy(setting='data'),),
      curves=(('keys that differ', by.index.to_numpy(), by.to_numpy()),),
  )


def part_stops(run: form.Run) -> findings.Finding | None:
  """Detect a part that varied, and is the same for all rollouts from a step on.

  There is no finding for a part that stays at its highest value, which the
  policy has learned, or that had fallen before, which it has unlearned.
  """
  names = run.part_columns
  if not names:
    raise form.NotLogged('parts of the reward are not logged', ['reward'])
  stopped, curves, starts = [], [], []
  for name in names:
    steps, values = run.series(name)
    at = _constant_from(run, name, values)
    if at is None or _is_outcome(run, values):
      continue
    part = name.removeprefix(form.PART)
    stopped.append((part, float(values[-1])))
    starts.append(int(steps[at]))
    curves.append((part, steps, values))
  if not stopped:
    return None
  since = min(starts)
  said = ' and '.join(f'{part} is {value:g}' for part, value in stopped)
  which = 'the part' if len(stopped) == 1 else 'of the parts,'
  rows = run.rollouts
  shown = rows[rows['step'] >= since].index[: shares.SHOWN] if len(rows) else ()
  return findings.Finding(
      check='part_stops',
      severity='warning',
      text=f'{which} {said} for all rollouts, which was different before',
      since=since,
      rows=tuple(map(int, shown)),
      change=f'{words.word(run.format, "reward")}: check what gives'
      f' {", ".join(part for part, _ in stopped)} its value: a server or judge'
      ' that failed, a limit of its calls, or a file that a restart does not'
      ' find',
      remedies=(records.Remedy(setting='grader'),),
      curves=tuple(curves),
  )


def _constant_from(
    run: form.Run, name: str, values: np.ndarray
) -> int | None:
  """Return the index from which a part is constant, if it stopped at once."""
  same = np.abs(values - values[-1]) < 1e-9
  at = len(values) - int(np.argmin(same[::-1])) if not same.all() else 0
  if at < _FEWEST or len(values) - at < _FEWEST:
    return None
  before = values[:at]
  if np.ptp(before) < 1e-9 or values[-1] >= before.max() - 1e-9:
    return None
  usual = abs(float(before.mean()) - values[-1])
  last = np.abs(before[-_FEWEST:] - values[-1])
  if last.mean() < _HALF * usual:
    return None
  # The mean of a rarely paid part may be equal in several steps by chance.
  often = (np.count_nonzero(same[:at]) + 1) / at
  if often ** (len(values) - at) > _CHANCE:
    return None
  if name in run.rollouts:
    rows = run.rollouts.dropna(subset=[name])
    steps = np.unique(rows['step'])
    if np.ptp(rows.loc[rows['step'] >= steps[at], name]) > 1e-9:
      return None
  return at


def _is_outcome(run: form.Run, values: np.ndarray) -> bool:
  """Return whether means of a part are the solved shares (others check it)."""
  try:
    _, solved = run.series('outcome')
  except form.NotLogged:
    return False
  return len(solved) == len(values) and np.allclose(solved, values)


def fewer_problems(run: form.Run) -> findings.Finding | None:
  """Detect steps that have far fewer different problems from a step on."""
  rows = run.rows('prompt_id')
  by = rows.groupby('step')['prompt_id'].nunique()
  if len(by) < 2 * _FEWEST:
    raise form.too_few(len(by), 'step', 2 * _FEWEST)
  change = trends.change_point(by)
  before, after = by.iloc[: change.index], by.iloc[change.index :]
  usual, now = float(before.median()), float(after.median())
  if change.p > _SURE or now > _HALF * usual:
    return None
  steady = all(
      np.mean(np.abs(side - side.median()) <= _STEADY * side.median()) >= _MOST
      for side in (before, after)
  )
  if not steady:
    return None
  since = int(by.index[change.index])
  shown = rows[rows['step'] >= since].drop_duplicates('prompt_id')
  return findings.Finding(
      check='fewer_problems',
      severity='warning',
      text=f'a step has {now:g} different problem{"s" * (now != 1)} instead of'
      f' {usual:g}',
      since=since,
      p=change.p,
      numbers=(
          findings.Number(name='problems of a step', value=now),
          findings.Number(name='problems of a step before', value=usual),
      ),
      rows=tuple(map(int, shown.index[: shares.SHOWN])),
      change=f'{words.word(run.format, "data")}: check how problems are drawn'
      ' (the seed of the shuffling, in each process), and the size of a batch,'
      ' after a restart or with new data',
      remedies=(records.Remedy(setting='data'),),
      curves=(('problems of a step', by.index.to_numpy(), by.to_numpy()),),
  )


def same_samples(run: form.Run) -> findings.Finding | None:
  """Detect rollouts that are one text though the policy is not certain.

  If the entropy of a whole completion is several nats, two samples are hardly
  ever equal.
  """
  rows = run.rows('text_id', 'group', 'length')
  _, entropy = run.course('entropy')
  by = rows.groupby('group')
  table = pd.DataFrame(
      {
          'step': by['step'].first(),
          'texts': by['text_id'].nunique(),
          'n': by.size(),
      }
  )
  times = rows.groupby(['group', 'text_id']).size().groupby('group')
  table = table[table['n'] >= _FEWEST]
  # If processes share the rollouts of a prompt and all have the same seed, they
  # write the same texts, and each text occurs equally often.
  equal = (times.min() == times.max()) & (table['texts'] <= table['n'] / 2)
  table['same'] = equal.reindex(table.index).astype(float)
  found = table.groupby('step')['same'].mean()
  if len(found) < form.MIN_STEPS:
    what = f'with groups of {_FEWEST} or more'
    raise form.too_few(len(found), 'step', what=what)
  steps, same = found.index.to_numpy(), found.to_numpy()
  late = intervals.mean(run.late(table)['same'])
  if late.low < _HALF:
    return None
  length = float(run.late(rows)['length'].mean())
  if 'n_tokens' not in rows:
    length /= _CHARACTERS
  free = float(entropy[-max(len(entropy) // 3, 1) :].mean()) * length
  if free < _FREE:
    return None
  since = shares.since(found)
  alike = table[table['same'] > 0]
  often = float((alike['n'] / alike['texts']).median())
  one = bool((alike['texts'] == 1).mean() > _HALF)
  said = 'all rollouts are one text'
  change = (
      f'check that {words.word(run.format, "temperature")} reaches the sampler'
      ' (a default of the server may be 0), and that not all requests have the'
      ' same seed'
  )
  if not one:
    change = (
        'check the seeds of the sampler: processes or engines that share the'
        ' rollouts of a prompt need different ones'
    )
    said = f'each text comes {often:.2g} times'
  shown = alike.index[-2:]
  return findings.Finding(
      check='same_samples',
      severity='critical' if one and late.low > 0.8 else 'warning',
      text=f'in {late.value:.0%} of the groups {said}, though the policy is not'
      f' certain ({free:.0f} nats per completion)',
      since=since,
      numbers=(findings.number('such groups', late, 'share'),),
      rows=tuple(
          map(int, rows.index[rows['group'].isin(shown)][: shares.SHOWN])
      ),
      change=change,
      remedies=(records.Remedy(setting='temperature', value=1.0),) * one,
      curves=(('groups of equal texts', steps, same),),
  )


def entropy_jumps(run: form.Run) -> findings.Finding | None:
  """Detect an entropy that changes within one step, and does not come back.

  Updates change the entropy gradually. Another sampler, other weights or other
  problems change it at once.
  """
  steps, entropy = run.course('entropy')
  if len(entropy) < 4 * _FEWEST:
    raise form.too_few(len(entropy), 'step', 4 * _FEWEST)
  change = trends.change_point(entropy, _FEWEST)
  at = change.index
  before, after = entropy[at - _FEWEST : at], entropy[at : at + _FEWEST]
  usual, now = float(before.mean()), float(after.mean())
  jump, noise = now - usual, float(np.median(np.abs(np.diff(entropy))))
  if (
      change.p > _SURE
      or abs(jump) < max(_TIMES * noise, _JUMP * abs(usual))
      # Most of it lies between two steps.
      or abs(entropy[at] - entropy[at - 1]) < _MOST_OF_IT * abs(jump)
      or np.ptp(before) + np.ptp(after) > abs(jump)
      # An entropy that explodes or collapses changes fast, too.
      or _course_before(entropy[:at]) * np.sign(jump) > _STEADY * abs(jump)
  ):
    return None
  return findings.Finding(
      check='entropy_jumps',
      severity='warning',  # If little is left, `entropy_collapse` says so.
      text=f'the entropy {"rises" if jump > 0 else "falls"} within one step,'
      f' from {usual:.2g} to {now:.2g} nats per token, and stays there'
      f'{falls.also(run, int(steps[at]))}',
      since=int(steps[at]),
      p=change.p,
      numbers=(
          findings.Number(name='jump', value=jump, unit='nats per token'),
      ),
      change='find out what happened before that step: a restart (weights that'
      ' were merged, rounded or not restored), an evaluation after which the'
      ' sampler keeps its temperature or top_p, or other problems',
      curves=(('entropy', steps, entropy),),
  )


def score_jumps(run: form.Run) -> findings.Finding | None:
  """Detect a score that is flat, then rises within one step.

  Learning raises a score gradually.
  """
  known = 'outcome' in {*run.rollouts, *run.steps}
  name = 'outcome' if known else 'reward'
  steps, score = run.course(name)
  if len(score) < 3 * _WINDOW:
    raise form.too_few(len(score), 'step', 3 * _WINDOW)
  places = _jumps(score)
  if not places:
    return None
  at = places[0]
  before, after = (
      float(side.mean())
      for side in (score[at - _WINDOW : at], score[at : at + _WINDOW])
  )
  called = 'solved share' if known else 'reward'
  often = f', {len(places)} times in the run' if len(places) > 1 else ''
  return findings.Finding(
      check='score_jumps',
      # New problems or a new stage of the training may do so once.
      severity='warning' if len(places) > 1 else 'note',
      text=f'the {called} is flat, then rises within one step from'
      f' {before:.2g} to {after:.2g}{often}',
      since=int(steps[at]),
      numbers=(
          findings.Number(name='such steps', value=float(len(places))),
      ),
      change='find out what happened before that step. If the run was started'
      ' again: the sampler may get new weights at a restart only (is a new'
      ' adapter or checkpoint loaded after every update, under the name that'
      ' requests use?)',
      ruled_out=('small_steps', 'frozen'),
      curves=((called, steps, score),),
  )


def _jumps(values: np.ndarray) -> list[int]:
  """Return the indices at which a series that was flat jumps up."""
  error = trends.noise(values) * np.sqrt(2 / _WINDOW)
  found: list[int] = []
  for at in range(2 * _WINDOW, len(values) - _WINDOW + 1):
    long, before = values[at - 2 * _WINDOW : at], values[at - _WINDOW : at]
    after = values[at : at + _WINDOW]
    jump = float(after.mean() - before.mean())
    near = values[at : at + _CLOSE].mean() - values[at - _CLOSE : at].mean()
    if (
        jump <= max(_NOISES * error, _JUMP * before.mean(), 0.0)
        or near < _MOST * jump
        or values[at] - values[at - 1] < _HALF * jump
        # Values that vary much from step to step have no clear level.
        or max(np.ptp(long), np.ptp(after)) > jump
        or trends.trend(long).rise > _STEADY * jump
        or trends.trend(after).rise > _HALF * jump
    ):
      continue
    if not found or at - found[-1] >= _WINDOW:
      found.append(at)
  return found


def _course_before(values: np.ndarray) -> float:
  """Return the rise of a line through the last values; 0 if there are few."""
  last = values[-3 * _FEWEST :]
  return trends.trend(last).rise if len(last) >= 2 * _FEWEST else 0.0


CHECKS = (
    keys_change,
    part_stops,
    fewer_problems,
    same_samples,
    entropy_jumps,
    score_jumps,
)
