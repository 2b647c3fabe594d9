"""Checks of metrics for values that a sound trainer cannot log."""

import math

import numpy as np

from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis import words
from evojax.diagnosis.checks import falls
from evojax.diagnosis.checks import optimiser
from evojax.diagnosis.checks import shares
from evojax.stats import intervals
from evojax.stats import trends

_SHARES = {
    'clip': 'share of clipped tokens',
    'truncated': 'share of cut completions',
    'dead': 'share of groups with equal rewards',
}
_SOME = 0.1  # Share of the steps that is no accident.
_ZERO = 1e-9
# KL, nats per token, that is too low to be noise of an estimate: over 10,000
# tokens, the estimate -log p + log q has a standard deviation of 0.004 at a KL
# of 0.1.
_BELOW = -0.02
# KL to the reference, nats per token, of a policy that is the reference; in
# other precision it is 0.001.
_EQUAL = 1e-3
_MOVED = 5e-3
_SIDE = 4  # Steps on either side of a restart of the KL.
_GROWN = 4.0  # Factor by which it grew before, and by which it falls.
_APART = 0.1
# Updates whose learning rates have at most this sum cannot have moved a policy
# so far; one full update at the usual 1e-6 moves it by 0.0005.
_STILL = 5e-7
# Largest advantage after division by a standard deviation: in a group of n
# rollouts it is at most sqrt(n - 1), and groups have fewer than 2,500.
_LARGEST = 50.0
_NONE = 1e-12  # A KL that is exactly 0.
# KL of an update, nats per token, and the share of the updates that have at
# least a fifth of it; sound ones have 0.001 to 0.03.
_FAR, _MOST = 0.1, 0.9
_HUGE = 20.0  # Loss, relative to the largest advantage or reward.
_CLIPPED = 0.3
_STEEP = 10.0  # Gradient norm that a usual bound of 1 cuts to a tenth.
_USUAL = 20.0  # Times that of a usual step.


def impossible_share(run: form.Run) -> findings.Finding | None:
  """Detect shares below 0: they are means with other weights than a mask."""
  known = [name for name in _SHARES if name in run.steps]
  if not known:
    raise form.not_logged(list(_SHARES))
  for name in known:
    steps, values = run.course(name)
    below = values < -_ZERO
    if below.mean() < _SOME:
      continue
    return findings.Finding(
        check='impossible_share',
        severity='critical',
        text=f'the {_SHARES[name]} is below 0 in {below.mean():.0%} of the'
        ' steps',
        since=int(steps[np.flatnonzero(below)[0]]),
        numbers=(
            findings.Number(name='lowest', value=float(values.min())),
            findings.Number(name='highest', value=float(values.max())),
        ),
        change='check the mask of the loss: a mean over tokens is taken with'
        ' other numbers in place of the mask (the advantages?)',
        curves=((_SHARES[name], steps, values),),
    )
  return None


def kl_negative(run: form.Run) -> findings.Finding | None:
  """Detect a KL far below 0, which samples of the policy do not have."""
  steps, kl = run.course('kl')
  late = intervals.mean(kl[-max(len(kl) // 3, 4) :])
  if late.high > _BELOW:
    return None
  change = trends.change_point(kl)
  return findings.Finding(
      check='kl_negative',
      severity='critical',
      text=f'the KL to the reference is {late.value:.2g} nats per token, and no'
      ' KL is below 0',
      since=int(steps[change.index]),
      p=change.p,
      numbers=(findings.number('KL, last third', late, 'nats per token'),),
      change='check the mask of the KL and of the loss: tokens that the policy'
      ' did not sample (replies of tools, search results, padding) must not'
      ' count; or sampling that the trainer does not know (a repetition'
      ' penalty, top_k)',
      curves=(('KL', steps, kl),),
  )


def kl_at_start(run: form.Run) -> findings.Finding | None:
  """Detect a policy that is far from its reference before it can be."""
  steps, kl = run.course('kl')
  if steps[0] > 1:  # The log is not that of the first updates.
    return None
  if kl[0] > _APART and kl[0] > np.nanmax(kl) / 2:
    return _at_start(
        f'the KL to the reference is {kl[0]:.2g} nats per token in the first'
        f' step, and {np.median(kl):.2g} later',
        'check the reference model: is it what the policy starts from (with an'
        ' adapter of supervised training)? unless the run goes on from a'
        ' checkpoint',
        steps,
        kl,
    )
  before = _learned_before(run, steps)
  early = before < _STILL
  if early.sum() < 3 or kl[0] > _EQUAL:
    return None
  moved = float(np.median(kl[early][1:]))
  if moved < _MOVED or moved < 10 * kl[0]:
    return None
  return _at_start(
      f'the KL to the reference is {moved:.2g} nats per token after updates'
      f' whose learning rates add up to {before[early].max():.1g}, too little'
      ' to change the policy',
      'check which tokens the log-probs belong to: those of policy and'
      ' reference must be taken at the positions of the sampled tokens (images'
      ' or padding shift them)',
      steps,
      kl,
  )


def _learned_before(run: form.Run, steps: np.ndarray) -> np.ndarray:
  """Return the sum of the learning rates before each step; inf if unknown."""
  if 'learning_rate' not in run.steps:
    return np.full(len(steps), np.inf)
  table = run.steps.set_index('step')['learning_rate'].reindex(steps)
  rate = table.ffill().to_numpy(np.float64)
  if not np.isfinite(rate).all():
    return np.full(len(steps), np.inf)
  # A line of a log may stand for several steps.
  times = np.diff(steps, prepend=min(int(steps[0]), 1) - 1)
  return np.cumsum(rate * times) - rate


def _at_start(
    text: str, change: str, steps: np.ndarray, kl: np.ndarray
) -> findings.Finding:
  return findings.Finding(
      check='kl_at_start',
      severity='warning',
      text=text,
      numbers=(
          findings.Number(
              name='KL, at first', value=float(kl[0]), unit='nats per token'
          ),
      ),
      change=change,
      curves=(('KL', steps, kl),),
  )


def kl_restarts(run: form.Run) -> findings.Finding | None:
  """Detect a KL that is about 0 again, as if the reference were the policy."""
  steps, kl = run.course('kl')
  found = restarts(kl)
  if not found:
    return None
  at = found[0]
  score = shares.score(run)
  back = False
  if score is not None and len(score) == len(kl):
    before, after = score[at - _SIDE : at], score[at : at + _SIDE]
    first = score[:_SIDE].mean()
    gained = before.mean() - first
    back = gained > 0 and after.mean() - first < gained / 3
  who = (
      ', and the score falls with it: is the policy its initial one again?'
      if back
      else ': a new reference'
  )
  return findings.Finding(
      check='kl_restarts',
      # Recipes that renew the reference do so several times.
      severity='note' if len(found) > 1 and not back else 'warning',
      text=f'the KL to the reference falls at once from {kl[at - 1]:.2g} to'
      f' {kl[at]:.2g} nats per token, about what it began with{who}',
      since=int(steps[at]),
      numbers=(
          findings.Number(name='such falls', value=float(len(found))),
      ),
      change='check what a restart loads: it must be the policy of the last'
      ' checkpoint; unless a new stage begins there'
      if back
      else 'check what the reference is after a restart: it must be the model'
      ' that the first run began with, loaded before the checkpoint; unless it'
      ' is renewed on purpose',
      curves=(('KL', steps, kl),),
  )


def restarts(kl: np.ndarray) -> list[int]:
  """Return the indices at which a KL that has grown is about 0 again.

  Args:
    kl: KL, or another distance between policies, one value per step.
  """
  found, start = [], 0
  log = np.log(np.maximum(kl, _NONE))
  usual = float(np.median(np.abs(np.diff(log))))
  fall = max(_GROWN, math.exp(5 * usual))  # More than the noise of a step.
  for i in range(_SIDE, len(kl) - _SIDE):
    before, after = kl[i - _SIDE : i], kl[i : i + _SIDE]
    first = kl[start : start + 2].max()
    if before.min() < max(_GROWN * first, _EQUAL) or i - start < 2 * _SIDE:
      continue
    # One low value alone may be a step that had no update.
    stays = after.max() < before.min() / 2
    if stays and after[0] < min(2 * first, before.min() / fall):
      found.append(i)
      start = i
  return found


def advantage_spikes(run: form.Run) -> findings.Finding | None:
  """Detect advantages far beyond what a standard deviation allows."""
  known = [n for n in ('advantage_low', 'advantage_high') if n in run.steps]
  if not known:
    raise form.not_logged(['advantage_low', 'advantage_high'])
  table = run.steps[['step', *known]].dropna()
  size = table[known].abs().max(axis=1).to_numpy()
  if len(size) < form.MIN_STEPS:
    raise form.too_few(len(size), 'step')
  # Steps whose rewards are all equal have none.
  usual = float(np.median(size[size > _ZERO])) if (size > _ZERO).any() else 0.0
  high = size > max(_LARGEST, _USUAL * usual)
  if not high.any():
    return None
  steps = table['step'].to_numpy()
  return findings.Finding(
      check='advantage_spikes',
      severity='critical',
      text=f'in {high.mean():.0%} of the steps an advantage is as large as'
      f' {size.max():.2g}; {usual:.2g} is usual',
      since=int(steps[np.flatnonzero(high)[0]]),
      numbers=(findings.Number(name='largest', value=float(size.max())),),
      change=f'{words.word(run.format, "advantages")}: they are divided by the'
      ' standard deviation of nearly equal rewards, which is no more than a'
      ' rounding error (also with a leave-one-out baseline); add a floor, or'
      ' do not divide',
      curves=(('largest advantage', steps, size),),
  )


def kl_zero(run: form.Run) -> findings.Finding | None:
  """Detect a policy that never leaves its reference, though it is trained."""
  steps, kl = run.course('kl')
  rates, reward = (run.course(n)[1] for n in ('learning_rate', 'reward'))
  if np.abs(kl[1:]).max() > _NONE or np.median(rates) <= 0:
    return None
  if np.ptp(reward) < _ZERO:
    return None
  coefficient = optimiser.kl_coef(run)
  # Trainers may log a KL of 0 if there is no KL penalty.
  if coefficient == 0 or (coefficient is None and _moves(run, reward)):
    return None
  return findings.Finding(
      check='kl_zero',
      severity='critical' if coefficient else 'warning',
      text=f'the KL to the reference is exactly 0 in all {len(steps)} steps,'
      ' though rewards differ and there is a learning rate',
      numbers=(findings.Number(name='highest KL', value=float(kl.max())),),
      change='check whether the weights change: does the gradient of the'
      ' policy reach them (a ratio that is the constant 1 has none), and is'
      ' the reference a model of its own, not the policy itself?'
      + ('' if coefficient else ' unless 0 means that no KL is computed'),
      curves=(('KL', steps, kl),),
  )


def _moves(run: form.Run, reward: np.ndarray) -> bool:
  """Return whether any metric shows that the policy changes."""
  courses = [reward]
  courses += [
      run.series(name)[1] for name in ('entropy', 'length') if name in run.steps
  ]
  long = [values for values in courses if len(values) >= form.MIN_STEPS]
  # A series that changes only in the first steps has a jump but no slope.
  return shares.rises(run) or any(
      trend(values).p < shares.SURE
      for values in long
      for trend in (trends.trend, trends.change_point)
  )


def update_large(run: form.Run) -> findings.Finding | None:
  """Detect updates of a policy that would not have written their rollouts."""
  steps, kl = run.course('kl_update')
  size = np.abs(kl)
  found = intervals.mean(size)
  if found.low < _FAR or (size > _FAR / 5).mean() < _MOST:
    return None
  return findings.Finding(
      check='update_large',
      severity='warning',
      text=f'in each update the policy is {found.value:.2g} nats per token from'
      ' that of the rollouts; 0.001 to 0.03 are usual',
      numbers=(findings.number('KL of an update', found, 'nats per token'),),
      change=f'{falls.learning_rate(run)}: a tenth of it; or fewer updates of'
      ' a batch; or, if the KL is as large before any weight has changed,'
      ' check for log-probs of other tokens and for dropout; unless rollouts'
      ' are many updates old, or the metric is a sum over the tokens of a'
      ' completion',
      curves=(('KL of the update', steps, kl),),
  )


def loss_summed(run: form.Run) -> findings.Finding | None:
  """Detect a policy loss far beyond what rewards and clipping allow."""
  steps, loss = run.course('loss')
  clip = intervals.mean(run.course('clip')[1])
  size = float(np.median(np.abs(loss)))
  known = ['reward']
  known += [n for n in ('advantage_low', 'advantage_high') if n in run.steps]
  scale = max(float(np.abs(run.series(name)[1]).max()) for name in known)
  # Ratios within the clip bounds are about 1, so that a mean over tokens is no
  # larger than an advantage.
  if size < _HUGE * max(scale, 1.0) or clip.high > _CLIPPED:
    return None
  if 'kl' in run.steps and run.steps['kl'].abs().max() > size / _HUGE:
    return None  # The KL penalty may account for it.
  norm = run.steps.get('grad_norm')
  large = norm is not None and float(norm.median()) > _STEEP
  return findings.Finding(
      check='loss_summed',
      # Adam is invariant to a factor, if the gradient is not clipped.
      severity='warning' if large else 'note',
      text=f'the policy loss is about {size:.2g}, though rewards'
      f'{" and advantages" * (len(known) > 1)} are at most {scale:.2g} (all'
      f' absolute) and {clip.value:.0%} of the tokens are clipped',
      numbers=(findings.Number(name='median absolute loss', value=size),),
      change='check how the loss is averaged: a sum over tokens in place of a'
      ' mean, or the ratio of a whole sequence that each of its tokens counts'
      ' again (GSPO); a bound of the gradient norm then cuts nearly all of it',
      curves=(('loss', steps, loss),),
  )


CHECKS = (
    impossible_share,
    kl_negative,
    kl_at_start,
    kl_restarts,
    kl_zero,
    update_large,
    loss_summed,
    advantage_spikes,
)
