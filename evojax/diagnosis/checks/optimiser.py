"""Checks of the update: learning rate, clipping, gradients, KL, log-probs."""

import math

import numpy as np
import pandas as pd

from evojax import config as config_lib
from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis import words
from evojax.diagnosis.checks import learning
from evojax.harness.library.diagnostics import groups as groups_lib
from evojax.ledger import records
from evojax.stats import intervals
from evojax.stats import trends

_SURE = 0.01
# Descent per update: about the nats by which a token's log-prob changes. Sound
# recipes of math and coding have 0.001 to 0.01; recipes that hardly change the
# policy have less than 0.0002 (BUILD_NOTES.md).
_STILL = 3e-4
_MOVING = 5e-3
# KL from the start, nats per token; a policy that learns exceeds it.
_HELD = 0.005
_MOST_COEFFICIENT = 100.0  # Largest plausible KL coefficient.
_LEFT_OUT = 0.3  # Share of tokens that importance weights may drop.
_FASTEST = 1000.0  # Largest factor of the learning rate.
# A cosine schedule is below this share of its maximum only in its last 2 %.
_ENDED = 1e-3
_SOME = 0.05  # Mean absolute advantage of a batch with a signal.
_UNEQUAL = 0.01  # Range of the mean rewards of steps that are not all alike.
_EXPLAINED = 0.05  # Share of the variance of returns; a critic explains more.
# Minimum bias of a critic, in standard deviations of the returns, and the share
# of its early bias that it keeps.
_APART, _KEPT = 5.0, 0.8
_NO_SIGNAL = 1e-12  # A loss, or the norm of a gradient, that is exactly 0.
_IDLE = 0.1  # Share of steps at the end whose learning rate may be 0.
# Share of steps without a signal that is worth a finding, share to reach with
# more groups per step, and share of exceptions: of steps without a signal whose
# mean reward is not extreme, and of steps with one whose mean reward is.
_WITHOUT, _WITHOUT_LEFT, _EXCEPT = 0.2, 0.05, 0.05
_MOST_TIMES = 16  # Largest multiple of the groups that is recommended.


def _descent(run: form.Run) -> intervals.Interval | None:
  """Return the descent of early updates if it is too small to learn from."""
  if 'descent' not in run.steps:
    return None
  _, descent = run.series('descent')
  # Later, a sound policy solves most problems, and therefore moves less, too.
  found = intervals.mean(descent[: max(len(descent) // 3, form.MIN_STEPS)])
  return found if 0 < found.high < _STILL else None


def hardly_moves(run: form.Run) -> findings.Finding | None:
  """Detect updates that leave the policy nearly as it was."""
  steps, descent = run.course('descent')
  found = _descent(run)
  if found is None or found.value <= 0:
    return None
  times = float(f'{min(_MOVING / found.value, _FASTEST):.0e}')
  return findings.Finding(
      check='hardly_moves',
      severity='critical',
      text=f'an update lowers the loss by only {found.value:.1e}, where'
      f' {_MOVING:g} is usual: the policy hardly moves',
      numbers=(findings.number('descent of an update', found),),
      change=f'{words.word(run.format, "learning_rate")} x {times:g}',
      remedies=(records.Remedy(setting='learning_rate', times=times),),
      curves=(('descent', steps, descent),),
  )


def learning_rate_zero(run: form.Run) -> findings.Finding | None:
  """Detect a learning rate of zero in every step."""
  steps, rate = run.course('learning_rate')
  if (rate > 0).any():
    return None
  return findings.Finding(
      check='learning_rate_zero',
      severity='critical',
      text=f'the learning rate is 0 in all {len(steps)} steps',
      change=f'{words.word(run.format, "learning_rate")} above 0',
  )


def warmup(run: form.Run) -> findings.Finding | None:
  """Detect a learning rate that still warms up when the run ends."""
  steps, rate = run.course('learning_rate')
  total = run.settings.get('total_steps') or steps[-1]
  # The first logged rate may be that of step 0 or 1.
  grows = np.diff(rate)
  if not (grows > 0).all() or not np.allclose(grows, grows.mean(), rtol=0.05):
    return None
  last = float(steps[-1] / max(total, 1))
  if len(steps) < 0.3 * total:  # The warm-up may still end in time.
    return None
  target = run.settings.get('learning_rate')
  reached = rate[-1] / target if target else None
  numbers = [findings.Number(name='last rate', value=float(rate[-1]))]
  if reached is not None:
    numbers.append(
        findings.Number(name='share of the wanted rate', value=float(reached))
    )
  severe = bool(_descent(run)) or (reached is not None and reached < 0.3)
  return findings.Finding(
      check='warmup',
      severity='critical' if severe else 'warning',
      text=f'the learning rate warms up over all {len(steps)} steps'
      + (f' and reaches {reached:.0%} of what is wanted' if reached else ''),
      numbers=tuple(numbers),
      change=f'{words.word(run.format, "warmup_steps")}: at most'
      f' {max(int(0.1 * total), 1)} of {int(total)} steps'
      if last > 0
      else words.word(run.format, 'warmup_steps'),
      remedies=(records.Remedy(setting='warmup_steps', value=0),),
      curves=(('learning rate', steps, rate),),
  )


def gradient_clipped(run: form.Run) -> findings.Finding | None:
  """Detect a gradient norm bound that removes almost all of the gradient."""
  steps, norm = run.course('grad_norm')
  bound = run.setting('max_grad_norm')
  if bound <= 0:
    return None
  ratio = bound / np.maximum(norm, 1e-12)
  left = intervals.mean(np.minimum(ratio, 1.0))
  if left.high > 0.02:
    return None
  return findings.Finding(
      check='gradient_clipped',
      severity='critical' if _descent(run) else 'warning',
      text=f'the gradient is cut to {left.value:.2%} of its norm in every step',
      numbers=(findings.number('share of the norm that is left', left),),
      change=f'{words.word(run.format, "max_grad_norm")} {bound:g} ->'
      f' {float(np.median(norm)):.1g}',
      remedies=(records.Remedy(setting='max_grad_norm', value=1.0),),
      curves=(('gradient norm', steps, norm),),
  )


def gradient_zero(run: form.Run) -> findings.Finding | None:
  """Detect steps without any gradient."""
  steps, norm = run.course('grad_norm')
  none = intervals.mean((norm < 1e-9).astype(float))
  if none.low < 0.5 or _all_solved(run, steps[norm < 1e-9]):
    return None
  differ = _has_advantages(run, steps[norm < 1e-9])
  off = _discarding(run) if differ else []
  change = (
      f'{words.word(run.format, "data")} or'
      f' {words.word(run.format, "reward")}: rewards of a group must differ'
  )
  cancel = not differ and _advantages_cancel(run)
  if cancel:
    change = (
        'check over what the mean is taken that is subtracted from a reward:'
        ' the rollouts of a prompt, not one rollout or the turns of one'
        f' episode; or {change}'
    )
  if differ:
    change = 'find out what drops all tokens from the loss: ' + (
        ', '.join(f'{remedy.setting} -> {remedy.value}' for remedy in off)
        or 'filters of overlong completions (do they know the token that ends'
        ' one?), masks of tokens; or frozen weights, an adapter that no'
        ' gradient reaches'
    )
  return findings.Finding(
      check='gradient_zero',
      severity='critical',
      text=f'the gradient is 0 in {none.value:.0%} of the steps'
      + (', although advantages differ' if differ else '')
      + (', and so are all advantages, although rewards differ' * cancel),
      numbers=(findings.number('steps without a gradient', none, 'share'),),
      change=change,
      remedies=tuple(off),
      curves=(('gradient norm', steps, norm),),
  )


def idle_steps(run: form.Run) -> findings.Finding | None:
  """Detect steps that teach nothing since they have one or two groups.

  All rewards of such a step are equal, so that their mean is the lowest or the
  highest of the run. A loss of 0 alone does not show a missing gradient.
  """
  name = 'grad_norm' if 'grad_norm' in run.steps else 'loss'
  steps, course = run.course(name)
  known = run.course('reward')
  table = run.steps[['step', name]].dropna()
  table['reward'] = table['step'].map(dict(zip(*known, strict=True)))
  table = table.dropna()
  if len(table) < 2 * form.MIN_STEPS:
    raise form.too_few(len(table), 'step', 2 * form.MIN_STEPS)
  idle = table[name].abs().to_numpy() < _NO_SIGNAL
  values = table['reward'].to_numpy()
  lowest = values < values.min() + 1e-9
  ends = lowest | (values > values.max() - 1e-9)
  share = intervals.mean(idle.astype(float))
  # Late in a run, groups may be solved.
  early = idle[: len(idle) // 2].mean()
  if min(share.low, early) < _WITHOUT or idle.all():
    return None
  if ends[idle].mean() < 1 - _EXCEPT or ends[~idle].mean() > _EXCEPT:
    return None
  times = math.ceil(math.log(_WITHOUT_LEFT) / math.log(share.value))
  times = min(times, _MOST_TIMES)
  left = share.value**times
  low = float(lowest[idle].mean())
  return findings.Finding(
      check='idle_steps',
      severity='warning',
      text=f'{share.value:.0%} of the steps teach nothing: all their rewards'
      f' are equal ({low:.0%} of these at the lowest reward, {1 - low:.0%} at'
      ' the highest), since a step has few groups',
      numbers=(findings.number('steps without a signal', share, 'share'),),
      change=f'{times} times as many groups in a step (or gradients that are'
      f' accumulated over {times} steps): about {left:.0%} of the steps then'
      f' have no signal; and {words.word(run.format, "data")}: problems that'
      ' are solved now and then',
      curves=((name.replace('_', ' '), steps, course),),
  )


def left_out(run: form.Run) -> findings.Finding | None:
  """Detect importance ratios that drop much of every batch."""
  steps, dropped = run.course('left_out')
  share = intervals.mean(dropped)
  if share.low < _LEFT_OUT:
    return None
  off = _discarding(run)
  return findings.Finding(
      check='left_out',
      severity='critical' if share.low > 3 * _LEFT_OUT else 'warning',
      text=f'{share.value:.0%} of the tokens are left out of the update'
      ' because of their ratio of trainer to sampler',
      numbers=(findings.number('left out', share, 'share of tokens'),),
      change=', '.join(f'{r.setting} -> {r.value}' for r in off)
      or 'wider bounds of the ratio of trainer and sampler',
      remedies=tuple(off),
      curves=(('left out', steps, dropped),),
  )


def critic_untrained(run: form.Run) -> findings.Finding | None:
  """Detect a critic whose values do not come to predict the returns."""
  if 'explained' in run.steps:
    steps, explained = run.course('explained')
    late = intervals.mean(explained[-max(len(explained) // 3, 4) :])
    if late.high > _EXPLAINED:
      return None
    text = (
        f'the critic explains {late.value:.0%} of the variance of the returns'
        ' in the last third'
    )
    curves = (('explained variance', steps, explained),)
  elif {'value', 'return'} <= set(run.steps):
    steps, value = run.course('value')
    _, returns = run.course('return')
    if len(value) != len(returns) or len(value) < 2 * form.MIN_STEPS:
      raise form.too_few(len(value), 'step', 2 * form.MIN_STEPS)
    early, late = (
        float(np.mean(part))
        for part in np.array_split(value - returns, 3)[::2]
    )
    far = abs(late) > max(_APART * float(np.std(returns)), 1e-6)
    if not far or abs(late) < _KEPT * abs(early):
      return None
    text = (
        f'the values of the critic stay {abs(late):.2g}'
        f' {"above" if late > 0 else "below"} the returns on average'
    )
    curves = (('value', steps, value), ('return', steps, returns))
  else:
    raise form.NotLogged('values of a critic are not logged, if there is one')
  return findings.Finding(
      check='critic_untrained',
      severity='warning',
      text=f'{text}: advantages then have no baseline',
      change='check that the critic learns: whether its loss falls, gradients'
      ' reach it (values that are detached get none), its learning rate is not'
      ' 0, and its steps come before those of the policy; or train without a'
      ' critic (GRPO)',
      curves=curves,
  )


def _advantages_cancel(run: form.Run) -> bool:
  """Return whether all advantages are 0 although mean rewards vary by step.

  If they vary, rewards must differ within some groups, too, unless all rollouts
  of a group are the same. Logged groups would show this, so that the result is
  False if groups are logged.
  """
  names = ('advantage_low', 'advantage_high')
  if not {*names, 'reward'} <= set(run.steps) or 'group' in run.rollouts:
    return False
  table = run.steps[[*names, 'reward']].dropna()
  apart = np.ptp(table['reward']) > _UNEQUAL if len(table) else False
  return bool(apart and (table[list(names)].abs().max() < 1e-9).all())


def _all_solved(run: form.Run, steps: np.ndarray) -> bool:
  """Return whether nearly everything is solved in these steps."""
  try:
    known, solved = run.series('outcome')
  except form.NotLogged:
    return False
  solved = solved[np.isin(known, steps)]
  return len(solved) > 0 and float(solved.mean()) > learning.MUCH_SOLVED


def _has_advantages(run: form.Run, steps: np.ndarray) -> bool:
  """Return whether groups in these updates have advantages other than 0."""
  rows = run.rollouts
  if 'advantage_size' in run.steps:
    sizes = run.steps.loc[run.steps['step'].isin(steps), 'advantage_size']
    return float(sizes.mean()) > _SOME
  if 'dead' in run.steps:
    dead = run.steps.loc[run.steps['step'].isin(steps), 'dead']
    return float(dead.mean()) < 0.5
  rows = rows[rows['step'].isin(steps)] if len(rows) else rows
  if not {'reward', 'group'} <= set(rows):
    return False
  if 'kept' in rows:
    rows = rows[rows['kept'] > 0.5]
  if 'advantage' in rows:
    spread = rows.groupby('group')['advantage'].std() > 0.1
  else:
    spread = rows.groupby('group')['reward'].std() > groups_lib.MIN_STD
  return bool(spread.mean() > 0.1)


def _discarding(run: form.Run) -> list[records.Remedy]:
  """Return remedies that turn off what may drop tokens from the loss."""
  found = []
  for path in ('grpo.tis_cap', 'grpo.reject', 'grpo.veto'):
    default = config_lib.declaration(path).default
    if run.config.get(path, default) != default:
      found.append(records.Remedy(setting=path, value=default))
  return found


def clip_fraction(run: form.Run) -> findings.Finding | None:
  """Detect clipping that removes the gradient of most tokens."""
  steps, clip = run.course('clip')
  share = intervals.mean(clip)
  if share.low < 0.3:
    return None
  return findings.Finding(
      check='clip_fraction',
      severity='critical' if share.low > 0.6 else 'warning',
      text=f'{share.value:.0%} of the tokens are outside the clip bounds',
      numbers=(findings.number('clip fraction', share, 'share'),),
      change=f'wider {words.word(run.format, "clip")}, or fewer updates per'
      ' batch',
      curves=(('clip fraction', steps, clip),),
  )


def kl_strong(run: form.Run) -> findings.Finding | None:
  """Detect a KL penalty that keeps the policy at its start."""
  coefficient = kl_coef(run)
  if coefficient == 0:
    return None
  steps, kl = run.course('kl')
  if coefficient is None and 'loss' in run.steps:
    coefficient = _slope_of_loss(run)
    if coefficient is not None and coefficient > _MOST_COEFFICIENT:
      coefficient = None  # A small KL and a loss may correlate by chance.
  if coefficient is None:
    raise form.NotLogged('kl_coef is not known: --set kl_coef=...')
  if coefficient < 0.2:  # Usual values are 0.001 to 0.1.
    return None
  late = intervals.mean(kl[len(kl) // 3 :])
  if late.high > 0.1:  # The policy did leave its start.
    return None
  held = coefficient >= 1 and late.high < _HELD
  return findings.Finding(
      check='kl_strong',
      severity='critical' if held else 'warning',
      text=f'a KL coefficient of {coefficient:.2g} keeps the policy within'
      f' {late.value:.2g} nats per token of its start',
      numbers=(
          findings.Number(name='KL coefficient', value=float(coefficient)),
          findings.number('KL, last two thirds', late, 'nats per token'),
      ),
      change=f'{words.word(run.format, "kl_coef")} {coefficient:.2g} ->'
      ' 0.001 to 0.04',
      remedies=(records.Remedy(setting='kl_coef', value=0.0),),
      curves=(('KL', steps, kl),),
  )


def kl_coef(run: form.Run) -> float | None:
  """Return the coefficient of the KL penalty as set or logged, if known."""
  if 'kl_coef' in run.settings or 'kl_coef' not in run.steps:
    return run.settings.get('kl_coef')
  return float(run.series('kl_coef')[1][-1])


def _slope_of_loss(run: form.Run) -> float | None:
  """Return the KL coefficient from loss = policy loss + coefficient x KL.

  With one update per batch, all ratios of the policy are 1. The policy loss is
  then 0 if all rollouts have equal weights, since advantages of a group sum to
  0, and minus the mean advantage of a token if all tokens have (DAPO,
  arXiv:2503.14476). The coefficient is the slope of the loss over the KL at an
  equal policy loss; None if that does not fit.
  """
  table = run.steps[['step', 'loss', 'kl']].dropna()
  found = [_slope(table['kl'], table['loss'])]
  if {'advantage', 'length'} <= set(run.rollouts):
    rows = run.rollouts.dropna(subset=['advantage', 'length'])
    paid = (rows['advantage'] * rows['length']).groupby(rows['step']).sum()
    paid /= rows.groupby('step')['length'].sum()
    table = table.assign(paid=table['step'].map(paid)).dropna()
    # The length may be in characters, so that only a multiple is known.
    found.append(
        _slope(*(_beyond(table[x], table['paid']) for x in ('kl', 'loss')))
    )
  fit, slope = max(found)
  return slope if fit > 0.9 and slope > 0 else None


def _beyond(values: pd.Series, other: pd.Series) -> pd.Series:
  """Return the residuals of a linear fit of values on another series."""
  _, slope = _slope(other, values)
  return values - values.mean() - slope * (other - other.mean())


def _slope(x: pd.Series, y: pd.Series) -> tuple[float, float]:
  """Return the correlation of x and y, and the slope of y; 0 without any."""
  if len(x) < form.MIN_STEPS or x.std() < 1e-9 or y.std() < 1e-12:
    return 0.0, 0.0
  return float(x.corr(y)), float(np.polyfit(x, y, 1)[0])


def kl_explosion(run: form.Run) -> findings.Finding | None:
  """Detect a policy that leaves its reference suddenly."""
  steps, kl = run.course('kl')
  change = trends.change_point(np.log(np.maximum(kl, 1e-6)))
  after = float(np.median(kl[change.index :]))
  if change.p > _SURE or after < 1.0:
    return None
  lower = f'{words.word(run.format, "learning_rate")}: a third of it'
  penalty = kl_coef(run)
  return findings.Finding(
      check='kl_explosion',
      severity='critical',
      text=f'the KL to the reference rises to {after:.2g} nats per token'
      + (
          f', although {penalty:g} of it is added to the loss'
          if penalty
          else ''
      ),
      since=int(steps[change.index]),
      p=change.p,
      change=f'check that the KL loss is added, not subtracted; or {lower}'
      if penalty
      else lower,
      remedies=(records.Remedy(setting='learning_rate', times=1 / 3),),
      curves=(('KL', steps, kl),),
  )


def schedule_ends(run: form.Run) -> findings.Finding | None:
  """Detect a learning rate that is 0 long before the run ends."""
  steps, rate = run.course('learning_rate')
  if not (rate > 0).any():
    return None  # It never begins, which is another finding.
  last = int(np.flatnonzero(rate > _ENDED * rate.max())[-1])
  idle = len(rate) - 1 - last
  if idle < max(3, _IDLE * len(rate)):
    return None
  share = idle / len(rate)
  return findings.Finding(
      check='schedule_ends',
      severity='critical' if share > 0.5 else 'warning',
      text=f'the learning rate is 0 in the last {share:.0%} of the steps',
      since=int(steps[last + 1]),
      numbers=(
          findings.Number(
              name='steps without a learning rate', value=share, unit='share'
          ),
      ),
      change=f'{words.word(run.format, "total_steps")}: all updates of the run,'
      ' counted as the scheduler counts them',
      curves=(('learning rate', steps, rate),),
  )


CHECKS = (
    learning_rate_zero,
    schedule_ends,
    warmup,
    gradient_zero,
    idle_steps,
    critic_untrained,
    left_out,
    gradient_clipped,
    clip_fraction,
    kl_strong,
    kl_explosion,
    hardly_moves,
)
