"""Checks of the reward: does it pay for what is wanted, and only for that?"""

from collections.abc import Sequence
import dataclasses

import numpy as np
import pandas as pd

from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis import replays
from evojax.diagnosis import rules
from evojax.diagnosis import words
from evojax.diagnosis.checks import blame
from evojax.diagnosis.checks import learning
from evojax.diagnosis.checks import shares
from evojax.harness.library.diagnostics import groups as groups_lib
from evojax.ledger import records
from evojax.stats import intervals
from evojax.stats import trends

# Influence of a part that opposes the outcome, relative to it, that is a fault.
_AGAINST = 0.75
_DROWNS = 10.0  # Relative influence beside which the outcome hardly counts.
_LOST = 0.7  # Share of rollouts or groups whose credit is at fault.
# Credit per difference in reward, relative to the most credited rollouts of the
# group, that counts as none. A recipe that trains mostly on failures leaves
# successes a tenth (Zhu et al. 2025, arXiv:2506.01347).
_HARDLY = 0.08
_EVEN = 0.25  # Share of pairs whose unsolved rollout is paid no less.
_ROUNDED = 1e5  # Size of a part that costs others digits in float32.
_FLAT = 0.03  # Rise of the solved share that is flat, as in `not_learning`.
_SURE = 0.01  # Two-sided p of one check; about 25 of them test the same run.
_OF_LENGTH = 0.8  # Correlation from which a part is a measure of the length.


def graded_rows(run: form.Run, *others: str) -> pd.DataFrame:
  """Return rollouts with a reward, and an outcome other than the reward.

  Args:
    run: The run.
    *others: Further columns that must be known.
  """
  rows = run.rows('reward', 'outcome', 'group', *others)
  # In evojax, outcomes never depend on the reward function; in other trainers,
  # they may come from the very function that the policy exploits.
  if run.format != 'evojax':
    _tell_apart(rows)
  return rows


def _tell_apart(rows: pd.DataFrame) -> None:
  """Raise NotLogged if the outcome is the reward, perhaps on another scale."""
  reward, outcome = rows['reward'], rows['outcome']
  scaled = outcome
  if np.ptp(outcome) > 0 and np.ptp(reward) > 0:
    slope, start = np.polyfit(outcome, reward, 1)
    scaled = start + slope * outcome if slope > 0 else outcome
  if np.allclose(reward, scaled):
    raise form.NotLogged(
        'no outcome apart from the reward is logged: --columns=outcome=...'
    )


def reward_hacking(run: form.Run) -> findings.Finding | None:
  """Detect a reward that rises while the solved share does not.

  Without rollouts it compares the means of steps. They do not show how hard the
  problems are, so that the finding is a warning unless an evaluation shows it.
  """
  by_step, unsolved = _courses(run)
  if by_step['outcome'].min() >= 1:
    return None  # No more than all can be solved.
  if len(by_step) < form.MIN_STEPS:
    raise form.too_few(len(by_step), 'step')
  steps = by_step.index.to_numpy()
  solved, reward = by_step['outcome'].to_numpy(), by_step['reward'].to_numpy()
  found = _rise_apart(solved, reward) or _jump_apart(solved, reward)
  if found is None:
    return None
  falling = found.solved.value < -0.05
  flat = f'is flat at {solved.mean():.0%}'
  if falling:
    first, last = (np.mean(part) for part in np.array_split(solved, 3)[::2])
    flat = f'falls from {first:.0%} to {last:.0%}'
  # A dense reward may rise before the first problems are solved, and a solved
  # share of nearly 0 shows no progress until then.
  rare = solved.max() < shares.RARELY and found.solved.high >= 0
  full = solved.mean() > learning.MUCH_SOLVED and not falling
  harder = shares.harder(run)
  if rare:
    flat = f'is flat near 0 ({solved.mean():.1%}), where it tells little'
  if full:
    flat += ', with hardly more to solve'
  flat += ', as problems get harder' * bool(harder)
  unsure = rare or harder or (harder is None and not len(run.rollouts))
  replay = replays.best_weight(run)[1]
  change = replay.change or _less_of(run, blame.rising(run))
  if rare:  # No weight helps if no group has a solution.
    data = words.word(run.format, 'data')
    change = f'{data}: use problems that are solved sometimes; or {change}'
  return findings.Finding(
      check='reward_hacking',
      severity='note' if full else 'warning' if unsure else 'critical',
      text=f'the reward rises, and the solved share {flat}',
      since=int(steps[found.start]),
      p=found.p,
      numbers=(
          findings.number('rise of the reward', found.reward),
          findings.number('rise, solved', found.solved, 'share'),
      ),
      rows=tuple(map(int, unsolved.index[:6])),
      change=change,
      remedies=blame.remedies(run),
      replay='' if rare else replay.text,
      curves=(('reward', steps, reward), ('solved', steps, solved)),
  )


def _courses(run: form.Run) -> tuple[pd.DataFrame, pd.DataFrame]:
  """Return reward and outcome by step, and the best paid unsolved rollouts."""
  names = ['reward', 'outcome']
  if not len(run.rollouts) and set(names) <= set(run.steps):
    by_step = run.steps.set_index('step')[names].dropna()
    _tell_apart(by_step)
    return by_step, run.rollouts
  rows = graded_rows(run)
  unsolved = rows[rows['outcome'] < 0.5]
  wrong = run.late(unsolved) if len(unsolved) else unsolved
  best = wrong.sort_values('reward', ascending=False)
  return rows.groupby('step')[names].mean(), best


def _less_of(run: form.Run, parts: Sequence[str]) -> str:
  """Return advice: lower weights of some parts, or else another reward."""
  weights = ', '.join(words.word(run.format, 'weight', part) for part in parts)
  if weights:
    return f'{weights}: a third'
  return f'{words.word(run.format, "reward")}: pay for what is solved'


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Rise:
  """A rise of the reward that the solved share does not follow."""

  start: int  # Index of its first step.
  p: float
  reward: intervals.Interval
  solved: intervals.Interval


def _rise_apart(solved: np.ndarray, reward: np.ndarray) -> _Rise | None:
  """Find lines that diverge, over the run or once the solved share is flat."""
  starts = sorted({0, trends.standstill(solved)})
  rule = rules.RULES['reward_hacking']
  for start in starts:
    if len(solved) - start < form.MIN_STEPS:
      continue
    values = rules.learning_curve(solved[start:], reward[start:])
    line = trends.trend((reward - solved)[start:])
    paid = trends.trend(reward[start:]).interval
    if (
        rule.value(values) > rule.warn[1]
        and rule.when(values)
        and line.p < _SURE / len(starts)
        and paid.low > 0
    ):
      learned = trends.trend(solved[start:]).interval
      return _Rise(start=start, p=line.p, reward=paid, solved=learned)
  return None


def _jump_apart(solved: np.ndarray, reward: np.ndarray) -> _Rise | None:
  """Find a reward that soon reaches its maximum, which no line would fit."""
  change = trends.change_point(reward - solved)
  paid, learned = (
      trends.step_up(values, change.index) for values in (reward, solved)
  )
  least = rules.RULES['reward_hacking'].warn[1]
  # A sound run may learn the format at once, and solving more slowly.
  flat = learned.low <= 0 and trends.trend(solved).high < _FLAT
  if (
      change.p < _SURE
      and change.after - change.before > least
      and paid.low > 0
      and flat
  ):
    return _Rise(start=change.index, p=change.p, reward=paid, solved=learned)
  return None


def shaping_alone(run: form.Run) -> findings.Finding | None:
  """Detect many groups with a gradient from shaping, but equal outcomes."""
  rows = run.late(graded_rows(run))
  view = form.View(rows)
  values = groups_lib.measure(view)
  if not values:
    raise form.NotLogged('no group has two rollouts')
  varies = _spread(view.reward, view.valid) >= groups_lib.MIN_STD
  differ = _spread(view.outcome.astype(float), view.valid) >= groups_lib.MIN_STD
  alone = intervals.mean(varies & ~differ)
  if alone.low < 0.25 or alone.value < values['alive_by_outcome']:
    return None
  replay = replays.best_weight(run)[1]
  return findings.Finding(
      check='shaping_alone',
      severity='warning',
      text=f'{alone.value:.0%} of groups get their gradient from shaping alone:'
      ' all or none of their rollouts are solved',
      numbers=(
          findings.number('gradient from shaping', alone, 'share of groups'),
          findings.number(
              'gradient from the outcome',
              intervals.mean(varies & differ),
              'share of groups',
          ),
      ),
      rows=_extremes(rows[rows['group'].isin(_ids(rows, varies & ~differ))]),
      change=replay.change or words.word(run.format, 'filter'),
      remedies=blame.remedies(run),
      replay=replay.text,
  )


def _spread(x: np.ndarray, valid: np.ndarray) -> np.ndarray:
  return np.nan_to_num(np.nanstd(np.where(valid, x, np.nan), axis=1))


def _ids(rows: pd.DataFrame, mask: np.ndarray) -> np.ndarray:
  """Return the group ids of a mask over groups in order of appearance."""
  return pd.factorize(rows['group'])[1].to_numpy()[mask]


def _extremes(rows: pd.DataFrame) -> tuple[int, ...]:
  """Return up to six rollouts: the best and worst paid of some groups."""
  found: list[int] = []
  for _, group in rows.groupby('group'):
    found += [group['reward'].idxmax(), group['reward'].idxmin()]
    if len(found) >= 6:
      break
  return tuple(map(int, found))


def constant_part(run: form.Run) -> findings.Finding | None:
  """Detect a reward part that is equal for all rollouts of each group."""
  if not run.parts:
    raise form.NotLogged('parts of the reward are not logged', ['reward'])
  found = []
  for part in run.parts:
    rows = run.rollouts.dropna(subset=[form.PART + part])
    values = rows[form.PART + part]
    if len(rows) < 50 or not (values.abs() > 1e-9).any():
      continue
    if np.abs(form.within(rows, form.PART + part)).max() < 1e-6:
      found.append(part)
  # If all parts are constant, the groups are dead, see dead_groups.
  if not found or len(found) == len(run.parts):
    return None
  rounds = _rounds(run, found)
  return findings.Finding(
      check='constant_part',
      # It cancels in the advantage, so that it is harmless unless it is huge.
      severity='warning' if rounds else 'note',
      text=f'the part {", ".join(found)} is the same for all rollouts of a'
      ' group: it teaches nothing'
      + (', and its size rounds other parts off' if rounds else ''),
      change=', '.join(
          f'{words.word(run.format, "weight", p)} -> 0' for p in found
      ),
      remedies=tuple(
          records.Remedy(setting='weight', part=part, value=0.0)
          for part in found
      ),
      rows=tuple(map(int, run.rollouts.index[:2])),
  )


def _rounds(run: form.Run, constant: list[str]) -> bool:
  """Return whether adding constant parts rounds the other parts away."""
  weights = run.settings.get('weights') or {}
  size, spread = 0.0, 0.0
  for part in run.parts:
    rows = run.rollouts.dropna(subset=[form.PART + part])
    weight = abs(weights.get(part, 1.0))
    if part in constant:
      size = max(size, weight * rows[form.PART + part].abs().max())
    elif len(rows):
      within = np.abs(form.within(rows, form.PART + part)).max()
      spread = max(spread, weight * within)
  return bool(size > _ROUNDED * spread)


def inverted_sign(run: form.Run) -> findings.Finding | None:
  """Detect solved rollouts with lower advantages than unsolved ones."""
  name = 'advantage' if 'advantage' in run.rollouts else 'reward'
  rows = run.rows(name, 'outcome', 'group')
  gaps = []
  mean = rows.groupby(['group', rows['outcome'] > 0.5])[name].mean().unstack()
  if mean.shape[1] == 2:
    gaps = (mean[True] - mean[False]).dropna()
  if len(gaps) < 8:
    raise form.too_few(len(gaps), 'group', 8, form.MIXED)
  gap = intervals.mean(np.asarray(gaps))
  if gap.high >= 0:
    return None
  solved = rows[(rows['outcome'] > 0.5) & rows['group'].isin(gaps.index)]
  remedies = blame.remedies(run)
  change = (
      f'{words.word(run.format, "reward")}: check the sign of the outcome,'
      ' and the weights of what outweighs it'
  )
  paid = shares.gap(rows, 'outcome', 'reward') if 'reward' in rows else None
  if name == 'advantage' and paid is not None and paid.low > 0:
    # The reward is right, so the fault is in a later step.
    remedies = (records.Remedy(setting='credit_code'), *remedies)
    change = f'{_credit_word(run)}: the reward is higher for what is solved'
  return findings.Finding(
      check='inverted_sign',
      severity='critical',
      text=f'solved rollouts have a lower {name} than unsolved ones',
      numbers=(findings.number(f'{name}, solved minus unsolved', gap),),
      rows=tuple(map(int, solved.sort_values(name).index[:6])),
      change=change,
      remedies=remedies,
  )


def _credit_word(run: form.Run) -> str:
  if run.format == 'evojax':
    return f'remove {words.word(run.format, "credit_code")}'
  return 'correct the function that turns rewards into advantages'


def silent(run: form.Run) -> findings.Finding | None:
  """Detect a reward that does not tell solved from unsolved rollouts."""
  rows = graded_rows(run)
  by = rows.groupby('group')
  mixed = by['outcome'].nunique() > 1
  if mixed.sum() < 8:
    raise form.too_few(int(mixed.sum()), 'group', 8, form.MIXED)
  same = (by['reward'].max() - by['reward'].min())[mixed] < 1e-9
  share = intervals.mean(same.astype(float))
  if share.low < 0.5:
    return None
  shown = rows[rows['group'].isin(same.index[same][:2])]
  unpaid = blame.unpaid(run)
  if unpaid:
    weight = words.word(run.format, 'weight', unpaid[0].part)
    change = f'{weight}: it is 0, so that nothing pays for the outcome'
  else:
    reward = words.word(run.format, 'reward')
    change = f'{reward}: the outcome must be part of it, unclipped'
  return findings.Finding(
      check='silent',
      severity='critical' if share.low > 0.8 or unpaid else 'warning',
      text=f'in {share.value:.0%} of the groups whose outcomes differ all'
      ' rewards are the same',
      numbers=(findings.number('groups of one reward', share, 'share'),),
      rows=tuple(map(int, shown.index[:6])),
      change=change,
      remedies=(*unpaid, records.Remedy(setting='reward_code')),
  )


def wrong_paid(run: form.Run) -> findings.Finding | None:
  """Detect unsolved rollouts that are paid no less than solved ones."""
  rows = graded_rows(run)
  even = _even_pairs(rows)
  if len(even) < 8:
    raise form.too_few(len(even), 'group', 8, form.MIXED)
  share = intervals.mean(even)
  if share.low < _EVEN:
    return None
  worst = (-even).sort_values(kind='stable').index[:2]
  shown = rows[rows['group'].isin(worst)]
  wrong = shown[shown['outcome'] < 0.5].sort_values('reward', ascending=False)
  return findings.Finding(
      check='wrong_paid',
      severity='critical' if share.low > 2 * _EVEN else 'warning',
      text=f'in {share.value:.0%} of the pairs of a solved and an unsolved'
      ' rollout of one group, the unsolved one earns as much or more',
      numbers=(findings.number('such pairs', share, 'share'),),
      rows=tuple(map(int, wrong.index[:6])),
      change=f'{words.word(run.format, "reward")}: only what is solved may earn'
      ' the most, and nothing may clip the difference',
      remedies=blame.remedies(run),
  )


def _even_pairs(rows: pd.DataFrame) -> pd.Series:
  """Return, by group, the share of pairs whose unsolved rollout earns no less.

  A pair is a solved and an unsolved rollout of one group; groups without pairs
  are left out.
  """
  unsolved = rows['outcome'] <= 0.5
  paid = rows['reward'].where(unsolved, rows['reward'] - 1e-6)
  # Sorted, so that the time does not grow with the number of pairs. An unsolved
  # rollout with equal pay comes after a solved one.
  table = pd.DataFrame(
      {'group': rows['group'], 'paid': paid, 'unsolved': unsolved}
  ).sort_values(['group', 'paid', 'unsolved'])
  by = table.groupby('group')['unsolved']
  no_less = (by.transform('sum') - by.cumsum())[~table['unsolved']]
  pairs = by.sum() * (~table['unsolved']).groupby(table['group']).sum()
  even = no_less.groupby(table['group']).sum() / pairs
  return even[pairs > 0]


def credit(run: form.Run) -> findings.Finding | None:
  """Detect credit that undoes what the reward says."""
  rows = run.rows('reward', 'advantage', 'group')
  reward = form.within(rows, 'reward')
  by = rows.assign(gap=reward**2).groupby('group')['gap']
  spread = np.sqrt(by.transform('mean').to_numpy())
  # Within a group, advantages are one multiple of the centred reward.
  far = (spread > 1e-6) & (np.abs(reward) > 0.5 * spread)
  moved = (spread > 1e-6) & (np.abs(reward) > 0.1 * spread)
  times = (rows['advantage'] / reward).where(moved)
  most = times.groupby(rows['group']).transform('max')
  little = rows['advantage'].abs() <= _HARDLY * most * np.abs(reward) + 1e-9
  differ, better = rows[spread > 1e-6], rows[far & (reward > 0)]
  if better['group'].nunique() < 8:
    return None
  lost = intervals.mean(
      little[better.index].groupby(better['group']).mean()
  )
  least = differ.groupby('group')['advantage'].min()
  upward = intervals.mean((least > 1e-9).astype(float))
  if lost.low > _LOST:
    share, shown = lost, better[little[better.index]]
    none = (shown['advantage'].abs() < 1e-9).all()
    text = (
        f'{lost.value:.0%} of the rollouts with a reward above the mean of'
        f' their group get {"no" if none else "hardly any"} advantage'
    )
  elif upward.low > _LOST:
    share, shown = upward, differ
    text = f'in {upward.value:.0%} of the groups all advantages are positive'
  else:
    return None
  return findings.Finding(
      check='credit',
      severity='critical',
      text=text,
      numbers=(findings.number('share', share, 'share'),),
      rows=tuple(map(int, shown.index[-6:])),
      change=_credit_word(run),
      remedies=(records.Remedy(setting='credit_code'),),
  )


def _length_pull(rows: pd.DataFrame) -> np.ndarray:
  """Return per group the correlation of reward and length at equal outcome."""
  key = rows['group'].astype(str) + rows['outcome'].gt(0.5).astype(str)
  centred = rows[['reward', 'length']] - rows.groupby(key)[
      ['reward', 'length']
  ].transform('mean')
  group = rows['group'].to_numpy()
  sums = lambda x: pd.Series(x).groupby(group).sum()
  r, n = centred['reward'].to_numpy(), centred['length'].to_numpy()
  both, rr, nn = sums(r * n), sums(r * r), sums(n * n)
  varies = (rr > 1e-9) & (nn > 1e-9)
  return (both / np.sqrt(rr * nn))[varies].to_numpy()


def _pays_length(rows: pd.DataFrame, part: str) -> bool:
  """Return whether a part of the reward is mostly a measure of the length."""
  pull = intervals.mean(_length_pull(rows.assign(reward=rows[part])))
  return bool(max(pull.low, -pull.high) > _OF_LENGTH)


def length_gaming(run: form.Run) -> findings.Finding | None:
  """Detect rewards for length at equal outcome, with length following."""
  rows = graded_rows(run, 'length')
  pull = _length_pull(rows)
  if len(pull) < 8:
    return None  # Within groups, rewards differ by the outcome alone.
  r = intervals.mean(pull)
  share = len(pull) / rows['group'].nunique()
  if share < 0.2 or max(r.low, -r.high) < 0.3:
    return None
  steps, lengths = run.course('length')
  line = trends.trend(lengths)
  longer = r.value > 0
  if line.p > _SURE or (line.rise > 0) != longer:
    return None
  solved = trends.trend(rows.groupby('step')['outcome'].mean())
  change = trends.change_point(lengths)
  ends = run.late(rows).sort_values('length', ascending=not longer)
  replay = replays.best_weight(run)[1]
  # Even if more is solved at first, the policy follows the strongest part.
  follows = any(
      _pays_length(rows, form.PART + remedy.part)
      for remedy in blame.misleading(run)
  )
  return findings.Finding(
      check='length_gaming',
      severity='critical' if follows or solved.high < 0 else 'warning',
      text=f'{"longer" if longer else "shorter"} completions are paid at equal'
      f' outcome, and they get {"longer" if longer else "shorter"}',
      since=int(steps[change.index]),
      p=line.p,
      numbers=(
          findings.number('correlation of reward and length', r),
          findings.number(
              'change of the length',
              line.interval,
              'tokens' if 'n_tokens' in run.rollouts else 'characters',
          ),
      ),
      rows=tuple(map(int, ends.index[:6])),
      change=replay.change
      or f'{words.word(run.format, "reward")}: pay length for solved'
      ' completions only, or not at all',
      remedies=blame.remedies(run),
      replay=replay.text,
      curves=(('length', steps, lengths),),
  )


def overlong_early(run: form.Run) -> findings.Finding | None:
  """Detect a length penalty that starts well below the token limit."""
  limit = run.setting('max_tokens')
  rows = graded_rows(run, 'n_tokens')
  rest = rows.groupby('outcome')['reward'].transform('median')
  punished = rows[rows['reward'] < rest - 1e-6]
  free = rows[rows['reward'] >= rest - 1e-6]
  if len(punished) < 20 or len(free) < 20:
    return None
  # The shortest punished completions show where the penalty begins.
  begins = float(np.quantile(punished['length'], 0.02))
  mixed = float((free['length'] > begins).mean())
  share = intervals.mean(
      (rows['length'].between(begins, 0.75 * limit))
      .groupby(rows['step'])
      .mean()
  )
  if begins > 0.75 * limit or mixed > 0.02 or share.low < 0.01:
    return None
  return findings.Finding(
      check='overlong_early',
      severity='warning',
      text=f'completions are punished from {begins:.0f} tokens on, and the'
      f' limit is {limit:.0f}',
      numbers=(
          findings.number('rollouts punished below 3/4 of it', share, 'share'),
      ),
      rows=tuple(map(int, punished.sort_values('length').index[:6])),
      change=f'{words.word(run.format, "reward")}: let the penalty begin near'
      f' {run.limit_name}',
      remedies=blame.remedies(run),
  )


def outweighed(run: form.Run) -> findings.Finding | None:
  """Detect a reward part that matters more than the outcome, or opposes it."""
  found = [share for share in blame.shares(run) if blame.misleads(share)]
  if not found:
    return None
  worst = max(found, key=lambda share: share.of_outcome.value)
  rows = run.late(run.rows('reward', 'outcome', 'group'))
  wrong = rows[rows['outcome'] < 0.5].sort_values('reward', ascending=False)
  against = worst.agrees.high < 0
  most = _AGAINST if against else _DROWNS
  return findings.Finding(
      check='outweighed',
      severity='critical' if worst.of_outcome.low > most else 'warning',
      text=f'the part {worst.name} moves the reward'
      f' {worst.of_outcome.value:.1f} times as far as the outcome'
      + (', and against it' if against else ''),
      numbers=(
          findings.number(
              'spread within groups, of the outcome', worst.of_outcome
          ),
          findings.number('correlation with the outcome', worst.agrees),
      ),
      rows=tuple(map(int, wrong.index[:6])),
      change=f'{words.word(run.format, "weight", worst.name)}'
      f' {worst.weight:g} -> 0',
      remedies=blame.remedies(run),
  )


CHECKS = (
    reward_hacking,
    inverted_sign,
    silent,
    wrong_paid,
    credit,
    outweighed,
    length_gaming,
    shaping_alone,
    overlong_early,
    constant_part,
)
