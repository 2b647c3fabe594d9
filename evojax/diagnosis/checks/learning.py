"""Checks of learning: does the share of solved problems rise, and could it?"""

import math

import numpy as np
import pandas as pd
from scipy import special

from evojax import config as config_lib
from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis import rules
from evojax.diagnosis import words
from evojax.diagnosis.checks import blame
from evojax.diagnosis.checks import falls
from evojax.diagnosis.checks import shares
from evojax.harness.library.diagnostics import groups as groups_lib
from evojax.ledger import records
from evojax.stats import intervals
from evojax.stats import trends

_SURE = 0.01
# Minimum fall after the first update, as a share of the problems and in
# standard errors. If the groups of a sound run of math, coding or swe are put
# into a random order, both are reached in at most 0.05 % of runs.
_FAR, _ERRORS = 0.1, 4.0
_RARE = 0.002  # P-value of solutions that occur in the first step only.
MUCH_SOLVED = 0.9
_FEW = 16  # Rollouts of an update below which its groups are counted.
_PER_SIDE = 12  # Groups on either side of a bound that is not there by chance.
_ALL = 0.9  # Share of dead groups that counts as all.
_SOMETIMES = 0.1  # Share solved from which a larger group has both outcomes.
_HELD = 0.8  # Share of rollouts at the highest reward that shows a ceiling.
_MANY = 500  # Rollouts that do not have one reward by chance.
_FEW_WHOLE = 4  # Steps with only dead groups that are not accidental.
_MOSTLY = 0.6  # Share of the dead groups that are all right, or all wrong.
_NOISE = 2.0  # Alive groups of an update; fewer are mostly noise.
# A harness's own functions, as remedies if nothing else is known to be wrong.
_CODE = tuple(
    records.Remedy(setting=name)
    for name in ('reward_code', 'filter_code', 'credit_code')
)


def _outcomes(run: form.Run) -> tuple[np.ndarray, np.ndarray]:
  return run.course('outcome')


def outcome_falling(run: form.Run) -> findings.Finding | None:
  """Detect a solved share that falls."""
  steps, solved = _outcomes(run)
  line = trends.trend(solved)
  change = trends.change_point(solved)
  values = rules.learning_curve(solved)
  rule = rules.RULES['outcome_falling']
  dropped = change.p < _SURE and change.after < change.before - 0.05
  fell = (
      rule.value(values) < rule.critical[1]
      and rule.when(values)
      and line.p < _SURE
  )
  # A fall after a rise; a line through both would be flat.
  late = dropped and solved[-len(solved) // 4 :].mean() < change.before - 0.05
  lower = fell or late
  if not lower:
    peak = falls.from_peak(solved)
    if peak is None or peak.before - peak.after < _FAR:
      return _fell_at_once(run)
    change = peak
  rows = run.rollouts
  shown: tuple[int, ...] = ()
  if 'outcome' in rows:
    wrong = run.late(rows, 0.1)
    shown = tuple(map(int, wrong[wrong['outcome'] < 0.5].index[:6]))
  return findings.Finding(
      check='outcome_falling',
      # Slow swings have falls from a peak, too.
      severity=shares.fall_severity(run, solved, change.before)
      if lower
      else 'warning',
      text=f'the solved share falls from {change.before:.0%} to'
      f' {change.after:.0%}{shares.said_harder(run)}',
      since=int(steps[change.index]),
      p=min(change.p, line.p) if fell else change.p,
      numbers=(
          findings.number(
              'rise of the solved share over the run',
              line.interval,
              'share',
          ),
      ),
      rows=shown,
      change=falls.advice(
          run,
          steps,
          solved,
          change,
          f'{words.word(run.format, "learning_rate")}: a third of it, from the'
          ' last checkpoint before the fall',
      ),
      remedies=(
          *blame.misleading(run),
          records.Remedy(setting='learning_rate', times=1 / 3),
          *_CODE,
      ),
      curves=(('solved', steps, solved),),
  )


def _fell_at_once(run: form.Run) -> findings.Finding | None:
  """Find a policy that the first updates ruin, which no trend shows."""
  if not {'outcome', 'group'} <= set(run.rollouts):
    return None
  rows = run.rollouts.dropna(subset=['outcome'])
  first = rows['step'] == rows['step'].min()
  groups = rows.groupby(['step', 'group'])['outcome'].mean()
  at_first = groups.loc[rows['step'].min()]
  start = intervals.mean(at_first)
  rest = rows[~first].groupby('step')['outcome'].mean()
  fell = start.value - rest.mean()
  # The variance within a step, averaged over all steps, since the groups of one
  # step may happen to be all solved.
  within = float(groups.groupby('step').var().mean())
  counts = len(at_first), len(groups) - len(at_first)
  error = math.sqrt(within * sum(1 / n for n in counts if n))
  # The error is not known if every step has a single group.
  certain = math.isfinite(error) and fell >= max(_FAR, _ERRORS * error)
  far = certain and start.value >= rest.max()
  # For a weak policy, which solves too few problems for such a fall.
  half = rest.mean() < start.value / 2 and _more_at_first(rows, first) < _RARE
  if not far and not half:
    return None
  return findings.Finding(
      check='outcome_falling',
      severity='critical',
      text=f'the solved share falls at once from {start.value:.0%} to'
      f' {rest.mean():.0%}',
      since=int(rest.index[0]),
      numbers=(findings.number('solved in the first step', start, 'share'),),
      rows=tuple(map(int, rows.index[~first][:6])),
      change=falls.after_first(run),
      remedies=(records.Remedy(setting='learning_rate', times=0.1), *_CODE),
  )


def _more_at_first(rows: pd.DataFrame, first: pd.Series) -> float:
  """Return the p-value of so many groups with a solution in the first step.

  It is the probability of as many or more if each group has one with the
  probability of all groups (a binomial distribution).
  """
  solved = rows.groupby('group')['outcome'].max() > 0.5
  at_first = solved[rows.loc[first, 'group'].unique()]
  share = float(solved.mean())
  return float(special.bdtrc(at_first.sum() - 1, len(at_first), share))


def not_learning(run: form.Run) -> findings.Finding | None:
  """Detect a solved share that does not rise although it could."""
  steps, solved = _outcomes(run)
  line = trends.trend(solved)
  # The test is not 'it may have risen' but 'it rose by less than three points'.
  if line.high > 0.03 or solved[-len(solved) // 3 :].mean() > MUCH_SOLVED:
    return None
  if line.high < 0:
    return None  # It falls, which is another finding.
  return findings.Finding(
      check='not_learning',
      severity='warning',
      text=f'the solved share stays at {solved.mean():.0%} over {len(steps)}'
      ' steps',
      numbers=(
          findings.number(
              'rise of the solved share over the run',
              line.interval,
              'share',
          ),
      ),
      change='see the other findings; if there are none, '
      f'{words.word(run.format, "learning_rate")} x 3',
      remedies=(
          *_CODE,
          records.Remedy(setting='data'),
          records.Remedy(setting='learning_rate', times=10.0),
      ),
      curves=(('solved', steps, solved),),
  )


def _groups(rows: pd.DataFrame) -> pd.DataFrame:
  """Return mean outcome and reward spread per group."""
  by = rows.groupby('group')
  return pd.DataFrame(
      {
          'step': by['step'].first(),
          'outcome': by['outcome'].mean(),
          'dead': by['reward'].std(ddof=0) < groups_lib.MIN_STD,
          'n': by.size(),
      }
  )


def dead_groups(run: form.Run) -> findings.Finding | None:
  """Detect groups with equal rewards: too hard, too easy, or too alike."""
  if 'reward' not in run.rollouts and 'dead' in run.steps:
    return _dead_by_log(run)
  rows = run.rows('reward', 'group')
  if 'outcome' not in rows:
    rows = rows.assign(outcome=np.nan)
  groups = _groups(rows)
  groups = groups[groups['n'] >= 2]
  if len(groups) < 8:
    raise form.too_few(len(groups), 'group', 8, 'of two or more')
  # Dead groups are normal at the end of a run that has learned its problems.
  early = run.early(groups)
  dead = intervals.mean(early['dead'].astype(float))
  # `groups.CRITICAL`, arXiv:2606.03108. Small groups are often dead, whatever
  # the problems are: if all solved shares p are as frequent, the mean over p
  # of p^n + (1 - p)^n is 2 / (n + 1).
  critical = max(0.5, 2 / (float(groups['n'].median()) + 1))
  if dead.low < critical:
    return None
  solved = early.loc[early['dead'], 'outcome']
  hard = float((solved < 0.1).mean()) if solved.notna().any() else np.nan
  easy = float((solved > 0.9).mean()) if solved.notna().any() else np.nan
  why, check, answer = 'their rewards are equal', 'dead_groups', ''
  chosen = early.index[early['dead']]
  if _alike(rows[rows['group'].isin(chosen)]):
    why, check = 'their rollouts are one or two texts', 'entropy_collapse'
  elif (only := _only_reward(rows)) is not None:
    why = f'all {len(rows)} rewards are {only:g}'
    answer = (
        '{reward}: return a number for each completion, a higher one for a'
        ' better completion'
    )
  elif (top := _ceiling(rows)) is not None:
    why = f'{top[1]:.0%} of the rewards are {top[0]:g}, and none is higher'
    answer = (
        '{reward}: remove what holds it there (a cap, a clip, a condition that'
        ' all meet), so that better rollouts earn more'
    )
  elif hard > 0.6:
    first = rows[rows['step'] == rows['step'].min()]
    # It solved some of them at first.
    if first['outcome'].mean() > 0.1 or _fell_at_once(run):
      return None
    why, check = 'the problems are too hard', 'too_hard'
    if len(rows) >= _MANY and not rows['outcome'].any():
      why = (
          f'none of {len(rows)} rollouts is solved: the problems are too hard,'
          ' or the grader accepts nothing'
      )
  elif easy > 0.6:
    why, check = 'the problems are too easy', 'too_easy'
  # If nearly all is solved, little is lost; and problems that are too hard at
  # first may be learned from the few groups that are left.
  harmless = (
      check == 'too_easy' and rows['outcome'].mean() > MUCH_SOLVED
  ) or (check == 'too_hard' and _came_alive(rows, groups))
  return findings.Finding(
      check=check,
      severity='critical' if dead.low > 0.8 and not harmless else 'warning',
      text=f'{dead.value:.0%} of groups have no gradient from the start: {why}',
      numbers=(findings.number('dead groups, first third', dead, 'share'),),
      rows=tuple(map(int, rows.index[rows['group'].isin(chosen[:3])][:6])),
      change=(answer or _ANSWERS[check]).format(
          data=words.word(run.format, 'data'),
          filter=words.word(run.format, 'filter'),
          reward=words.word(run.format, 'reward'),
          temperature=words.word(run.format, 'temperature'),
      ),
      remedies=(
          records.Remedy(setting='temperature', value=1.0)
          if check == 'entropy_collapse'
          else records.Remedy(setting='data'),
      ),
  )


def _came_alive(rows: pd.DataFrame, groups: pd.DataFrame) -> bool:
  """Return whether a run whose first groups are dead learns later."""
  by = rows.groupby('step')['outcome'].mean()
  if len(by) < form.MIN_STEPS:
    return False
  late = groups[groups['step'] >= by.index[-max(len(by) // 3, 1)]]
  return bool(trends.trend(by).low > 0 and late['dead'].mean() < 0.5)


def _only_reward(rows: pd.DataFrame) -> float | None:
  """Return the reward that all of many rollouts get, unless it is 0."""
  value = float(rows['reward'].iloc[0])
  same = value != 0 and len(rows) >= _MANY and np.ptp(rows['reward']) < 1e-9
  return value if same else None


def _ceiling(rows: pd.DataFrame) -> tuple[float, float] | None:
  """Return the highest reward and its share, if most rollouts get it.

  A highest reward of 0 or 1 does not count: 1 may mean a right answer.
  """
  top = float(rows['reward'].max())
  share = float((rows['reward'] > top - 1e-9).mean())
  low = float(rows['reward'].min())
  held = share >= _HELD and top - low > 1e-9 and top not in (0.0, 1.0)
  known = rows['outcome'].notna().any()
  return (top, share) if held and len(rows) >= _MANY and not known else None


def few_rollouts(run: form.Run) -> findings.Finding | None:
  """Detect updates that rest on one or two small groups."""
  rows = run.rows('reward', 'group')
  groups = _groups(rows.assign(outcome=rows.get('outcome', np.nan)))
  per_step = rows.groupby('step').size()
  if len(per_step) < form.MIN_STEPS:
    raise form.too_few(len(per_step), 'step')
  if groups['n'].median() < 2:
    raise form.NotLogged('most prompts have one rollout, and no group')
  if per_step.median() >= _FEW:
    return None
  # Late in a run, groups may be dead because all of them are solved.
  alive = run.early(groups).groupby('step')['dead'].agg(lambda x: (~x).sum())
  mean = intervals.mean(alive)
  if mean.high >= _NOISE:
    return None
  sizes = {
      'grpo.prompts': len(groups) / len(per_step),
      'grpo.group_size': groups['n'].median(),
  }
  remedies = tuple(
      records.Remedy(setting=path, value=config_lib.declaration(path).default)
      for path, size in sizes.items()
      if size < config_lib.declaration(path).default
  )
  prompts, size = sizes.values()
  return findings.Finding(
      check='few_rollouts',
      severity='warning',
      text=f'an update has {prompts:.3g} group{"s" * (prompts != 1)} of'
      f' {size:.3g} rollouts, of which {mean.value:.1f} on average have a'
      ' signal: it is mostly noise',
      numbers=(findings.number('groups with a signal', mean, 'an update'),),
      rows=tuple(map(int, rows.index[:6])),
      change='more prompts per update, and more rollouts of each',
      remedies=remedies,
  )


def filter_starves(run: form.Run) -> findings.Finding | None:
  """Detect a filter that drops most groups with differing outcomes."""
  rows = run.rows('kept', 'outcome', 'group')
  by = rows.groupby('group')
  groups = pd.DataFrame(
      {
          'alive': by['outcome'].nunique() > 1,
          'kept': by['kept'].max(),
          'step': by['step'].first(),
      }
  )
  alive = groups[groups['alive']]
  if len(alive) < 8:
    raise form.too_few(len(alive), 'group', 8, form.MIXED)
  kept = intervals.mean(alive['kept'])
  if kept.high > 0.5:
    return None
  dropped = alive.index[alive['kept'] < 0.5]
  return findings.Finding(
      check='filter_starves',
      severity='critical' if kept.high < 0.2 else 'warning',
      text=f'the filter drops {1 - kept.value:.0%} of the groups whose outcomes'
      ' differ, the only ones that teach',
      numbers=(findings.number('kept of them', kept, 'share'),),
      rows=tuple(map(int, rows.index[rows['group'].isin(dropped[:2])][:6])),
      change=f'remove {words.word(run.format, "filter_code")}',
      remedies=(
          records.Remedy(setting='filter_code'),
          records.Remedy(setting='grpo.keep', value='all'),
      ),
  )


def filter_by_length(run: form.Run) -> findings.Finding | None:
  """Detect a filter that drops the groups of long, or of short, rollouts."""
  rows = run.rows('kept', 'outcome', 'length', 'group')
  by = rows.groupby('group')
  alive = by['outcome'].nunique() > 1
  kept, length = by['kept'].max()[alive] > 0.5, by['length'].mean()[alive]
  if min(kept.sum(), (~kept).sum()) < _PER_SIDE or (~kept).mean() < 0.2:
    return None
  chosen, dropped = length[kept], length[~kept]
  longer = dropped.min() > chosen.max()
  if not longer and dropped.max() > chosen.min():
    return None
  bound = dropped.min() if longer else dropped.max()
  # Long rollouts near the limit may be cut, and then give little signal.
  if longer and bound > 0.75 * run.setting('max_tokens'):
    return None
  shown, side = dropped.index[:2], 'more' if longer else 'less'
  return findings.Finding(
      check='filter_by_length',
      severity='warning',
      text=f'the filter drops {(~kept).mean():.0%} of the groups that teach:'
      f' all whose mean length is {bound:.0f} or {side}',
      numbers=(
          findings.number(
              'dropped', intervals.mean((~kept).astype(float)), 'share'
          ),
          findings.Number(
              name='mean length of the kept', value=float(chosen.mean())
          ),
          findings.Number(
              name='mean length of the dropped', value=float(dropped.mean())
          ),
      ),
      rows=tuple(map(int, rows.index[rows['group'].isin(shown)][:6])),
      change=f'remove {words.word(run.format, "filter_code")}, since problems'
      ' with other lengths are never learned',
      remedies=(records.Remedy(setting='filter_code'),),
  )


_ANSWERS = {
    'too_hard': '{data}: use problems that are solved sometimes (if none is,'
    ' grade a reference solution)',
    'too_easy': '{data}: use problems that are not always solved',
    'dead_groups': '{filter}',
    'entropy_collapse': 'raise {temperature} to 1',
}


def _alike(rows: pd.DataFrame) -> bool:
  """Return whether most groups of four or more have at most two texts."""
  if 'text_id' not in rows:
    return False
  by = rows.groupby('group')['text_id']
  texts = by.nunique()[by.size() >= 4]
  return len(texts) >= 8 and float((texts <= 2).mean()) > 0.6


def _dead_by_log(run: form.Run) -> findings.Finding | None:
  steps, dead = run.course('dead')
  share = intervals.mean(dead[: max(len(dead) // 3, 4)])
  if share.low < 0.5:
    return None
  why, change, ruled_out = _why_dead(run, share)
  return findings.Finding(
      check='dead_groups',
      severity='critical'
      if share.low > 0.8 and not _much_earned(run)
      else 'warning',
      text=f'{share.value:.0%} of groups have no gradient from the start{why}',
      numbers=(findings.number('dead groups, first third', share, 'share'),),
      change=change + _of_kl(run),
      ruled_out=ruled_out,
      curves=(('dead groups', steps, dead),),
  )


def _of_kl(run: form.Run) -> str:
  """Return what to do if dead groups have a gradient: that of a KL penalty."""
  if not {'grad_norm', 'kl'} <= set(run.steps):
    return ''
  table = run.steps[['dead', 'grad_norm', 'kl']].dropna()
  whole = table[table['dead'] > 1 - 1e-9]
  moving = (whole['grad_norm'] > 1e-9) & (whole['kl'].abs() > 1e-9)
  if len(whole) < _FEW_WHOLE or not moving.all():
    return ''
  return (
      '; and leave these groups out of the loss, or lower'
      f' {words.word(run.format, "kl_coef")}: in {len(whole)} steps all groups'
      ' are of this kind, so that the gradient is that of the KL penalty alone,'
      ' which pulls the policy back'
  )


def _much_earned(run: form.Run) -> bool:
  """Return whether nearly everything is solved, as far as metrics tell.

  If the outcome is not logged, a reward in [0, 1] takes its place.
  """
  score = shares.score(run)
  if score is None or score.min() < 0:
    return False
  return bool(MUCH_SOLVED < score.mean() <= 1)


def _why_dead(
    run: form.Run, dead: intervals.Interval
) -> tuple[str, str, tuple[str, ...]]:
  """Return why groups are dead, what to change, and causes that are excluded.

  If each of n completions is right with probability p, p^n + (1 - p)^n of the
  groups are dead, and more if problems differ in difficulty.
  """
  why, change, ruled_out = '', words.word(run.format, 'filter'), ()
  size = words.word(run.format, 'group_size')
  least, most = _right(run, dead.value)
  if least > _MOSTLY:
    why = f': in at least {least:.0%} of these all rollouts are right'
    change = f'{words.word(run.format, "data")}: harder problems'
    ruled_out = ('refused', 'hard', 'template')
  elif 0 < most < 1 - _MOSTLY:
    why = f': in at least {1 - most:.0%} of these no rollout is right'
    change = f'{words.word(run.format, "data")}: easier problems first'
  more = f'{change}; or raise {size}' if why else change
  if 'spread' not in run.steps:
    return why, more, ruled_out
  _, spread = run.series('spread')
  early = slice(max(len(spread) // 3, 4))
  only = _mean_that_stays(run) if dead.value > _ALL else None
  # A part that differs may have a weight of 0.
  if spread.max() < groups_lib.MIN_STD or only is not None:
    which = 'of a step are equal' if only is None else f'are {only:g}'
    if only is not None and only <= 0:
      change = (
          'what it pays for is never sampled: easier problems, or supervised'
          ' examples of it first'
      )
    return (
        f': all rewards {which}',
        f'{words.word(run.format, "reward")}: call it on a right and on a wrong'
        f' completion: their rewards must differ; if they do, {change}',
        # Completions of different problems are not the same.
        ('alike',) if only is not None else (),
    )
  if dead.value > _ALL and spread[early].mean() > groups_lib.MIN_STD:
    temperature = words.word(run.format, 'temperature')
    return (
        ': rewards differ between prompts, not between completions of one',
        f'raise {temperature} to 1 if completions of a prompt are alike (read'
        ' some); or correct a reward that depends on the prompt alone',
        (),
    )
  share = _binary(run, spread)
  if share is None or not _SOMETIMES < share < 1 - _SOMETIMES:
    return why, more, ruled_out
  two, eight = (share**n + (1 - share) ** n for n in (2, 8))
  return (
      why,
      f'raise {size} to 8 or more: at {share:.0%} solved, at least {two:.0%} of'
      f' groups of 2 are dead, and {eight:.0%} of groups of 8; or {change}',
      ruled_out,
  )


def _right(run: form.Run, dead: float) -> tuple[float, float]:
  """Return bounds of the share of dead groups whose rollouts are all right.

  If a share a of all groups is all right, and the mean outcome of groups that
  differ is anywhere in [0, 1], the solved share is between a and a + 1 - dead.
  The bounds are (0, 1) if no solved share is logged.

  Args:
    run: The run.
    dead: Share of dead groups in its first third.
  """
  try:
    _, solved = run.course('outcome')
  except form.NotLogged:
    return 0.0, 1.0
  mean = float(solved[: max(len(solved) // 3, 4)].mean())
  low, high = mean - (1 - dead), mean
  return max(low / dead, 0.0), min(high / dead, 1.0)


def _mean_that_stays(run: form.Run) -> float | None:
  """Return the mean reward if it is the same in all steps, and logged."""
  if 'reward' not in run.steps:
    return None
  _, mean = run.series('reward')
  return float(mean[0]) if np.ptp(mean) < groups_lib.MIN_STD else None


def _binary(run: form.Run, spread: np.ndarray) -> float | None:
  """Return the mean of the only part of the reward if it is 0 or 1."""
  parts = [c for c in run.steps if c.startswith(form.PART)]
  if len(parts) != 1:
    return None
  _, mean = run.series(parts[0])
  n = min(len(mean), len(spread))
  mean, spread = mean[-n:], spread[-n:]
  if mean.min() < 0 or mean.max() > 1:
    return None
  wanted = np.sqrt(mean * (1 - mean))  # Its standard deviation.
  off = np.abs(spread - wanted).mean()
  return float(mean.mean()) if off < 0.1 * wanted.mean() else None


CHECKS = (
    outcome_falling,
    not_learning,
    few_rollouts,
    dead_groups,
    filter_starves,
    filter_by_length,
)
