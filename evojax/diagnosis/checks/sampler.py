"""Checks of the sampler: does the trainer update the policy that sampled?"""

import numpy as np

from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis import words
from evojax.diagnosis.checks import values
from evojax.stats import intervals
from evojax.stats import trends

_SURE = 0.01
_GAP = 0.05  # Nats per token between sampler and trainer; bfloat16 gives 0.02.
# Nats per token that no setting explains: to the trainer, the tokens are nearly
# arbitrary.
_OTHER = 2.0
_TIMES = 10.0  # Gap of a step that stands out, relative to the usual gap.
_RARE, _OFTEN = 0.02, 0.5  # Bounds of the share of exceptional steps.
# Factor by which a gap grows from a start that is within rounding.
_GROWS = 3.0
_ABOVE = 1.05  # Largest ratio of trainer to sampler if none exceeds 1.
_MOVED = 0.2  # KL, nats per token, of a policy that writes other texts.
_SAME = 0.1  # Relative change of a mean that counts as none.
# KL between rollouts and update, nats per token, of a batch that is off-policy.
_JUMP = 0.1
# Factor by which a norm or a metric may differ without counting as changed.
_USUAL = 1.2
# KL of an update whose batch the policy would no longer sample, and the factor
# by which it has then grown.
_APART = 0.01
_GREW = 30.0
# The same if rewards change, too, so that rollouts do follow the policy.
_PARTED, _PARTS = 0.05, 10.0  # Nats per token, and their growth.
# Growth of the age of rollouts, in updates and as a factor, that shows that no
# limit stops it.
_AGES, _OLDER = 2.0, 2.0
# Distance from 1 of the mean ratio of probabilities over tokens that an older
# policy has sampled; its expectation is 1, however old that policy is.
_RATIO, _RATIO_SEVERE = 0.03, 0.2
# Difference of a token's log-probs, in nats, if it was never sampled, or with
# other settings: a factor of 1000. Rounding changes rare tokens by 1 or 2.
_NEVER = 7.0
_FAR, _LARGE = 4.0, 2.0  # Such gaps, and losses, relative to the other steps.
_EDGE = 20.0  # Steps are apart if their KL is so many times the usual.

# Settings of the sampler that leave out tokens, or change their probabilities,
# with the values that do neither.
_OFF = {'top_p': 1.0, 'top_k': 0.0, 'min_p': 0.0, 'repetition_penalty': 1.0}
# Values that leave nearly all that the policy would sample.
_MILD = {
    'top_p': (0.8, 1.0),
    'top_k': (20.0, float('inf')),
    'min_p': (0.0, 0.1),
    'repetition_penalty': (0.95, 1.1),
}

# Texts that say what to change; `_cause` chooses one.
_WEIGHTS = (
    "the sampler's weights are older than the trainer's: does every update"
    ' reach it (a LoRA adapter, too), and is its prefix cache reset then?'
)
_ENGINES = (
    'the weights do reach the sampler, as the reward moves, and still it'
    ' computes another policy: compare the precision and the kernels of both'
    ' on one batch; in a mixture of experts, train with the experts that the'
    ' sampler chose (routing replay)'
)
_CACHE = (
    'find out what happens only before these steps, such as a sync of the'
    " weights after which the sampler's prefix cache is not reset"
)
_MISSING = (
    'look at single tokens, since the gradient is as usual in these steps: does'
    ' the sampler return the log-prob of each (0 is none)? or '
)
_LOADED = (
    'the sampler has other weights than the trainer, or reads other tokens: are'
    ' weights loaded before it generates (after sleep, too)?'
)
_TRUNCATED = (
    'turn top_p, top_k and min_p off: the sampler divides by the probability of'
    ' the tokens that they leave, the trainer does not'
)
_FILTERED = (
    'turn off {}, since the trainer computes log-probs of the whole policy'
)
_SETTINGS = (
    'take log-probs after the temperature in both, or set {temperature} to 1;'
    ' no dropout in the trainer; precision, chat template and tokens as in the'
    ' trainer; no repetition penalty (a generation config of the model may set'
    ' one); all weights in the sampler (those of a vision encoder, too)'
)


def logprob_gap(run: form.Run) -> findings.Finding | None:
  """Detect sampler and trainer log-probs that disagree on the same tokens."""
  steps, gap = run.course('gap')
  mean = intervals.mean(gap)
  change = trends.change_point(gap)
  late = intervals.mean(gap[change.index :])
  jumped = change.p < _SURE and change.after > 2 * change.before
  found = late if jumped else mean
  apart = _apart(gap, max(_GAP, _TIMES * float(np.median(gap))))
  if found.low < _GAP and not apart.any():
    return None
  text = f'sampler and trainer differ by {found.value:.2g} nats per token'
  if apart.any():
    jumped = False
    text = (
        f'in {apart.mean():.0%} of the steps sampler and trainer differ by'
        f' {gap[apart].mean():.2g} nats per token, in the others by'
        f' {gap[~apart].mean():.2g}'
    )
    found = intervals.mean(gap[apart])
  rises = trends.departure(gap)
  cause = _cause(run, steps, gap, apart, rises)
  at = change.index
  if cause.endswith(_WEIGHTS):  # The gap grows once weights are not updated.
    at = min(at, rises)
  return findings.Finding(
      check='logprob_gap',
      severity='critical' if found.low > 4 * _GAP else 'warning',
      text=text,
      since=int(steps[at]) if jumped else None,
      p=change.p if jumped else None,
      numbers=(findings.number('log-prob gap', found, 'nats per token'),),
      change=cause,
      curves=(('log-prob gap', steps, gap),),
  )


def _apart(values: np.ndarray, least: float) -> np.ndarray:
  """Return which steps are far above the others; none if they are many.

  A series that rises, or that jumps once, has no such steps: at least three
  rises from usual to high values are required.
  """
  high = values > least
  runs = int((np.diff(high.astype(int)) == 1).sum())
  if not _RARE <= high.mean() <= _OFTEN or runs < 3:
    return np.zeros(len(values), bool)
  return high


def _cause(
    run: form.Run,
    steps: np.ndarray,
    gap: np.ndarray,
    apart: np.ndarray,
    rises: int,
) -> str:
  """Return what to change, by when and how far the log-probs diverge.

  Args:
    run: The run.
    steps: The steps of the gap.
    gap: One value per step.
    apart: Which steps are far above the others.
    rises: Index from which the gap rises, if it does.
  """
  if apart.any():
    usual = _usual_gradient(run, steps[apart])
    return f'{_MISSING}{_CACHE}' if usual else _CACHE
  early = float(np.mean(gap[: max(len(gap) // 10, 2)]))
  late = float(np.mean(gap[-max(len(gap) // 5, 2) :]))
  line = trends.trend(gap)
  if early > _OTHER:
    return _LOADED
  filters = _filters(run)
  filtered = _FILTERED.format(', '.join(filters.values())) if filters else ''
  # The gap may grow from some step on, so that no line fits all steps.
  rest = gap[rises:]
  grows = line.low > 0 or (
      len(rest) >= form.MIN_STEPS and trends.trend(rest).low > 0
  )
  if grows and early < max(_GAP, late / _GROWS):
    told = [filtered] * bool(filtered)
    told += [_ENGINES] * _moves(run, 'reward') + [_WEIGHTS]
    return '; or '.join(told)
  if filtered:
    return filtered
  if {'ratio', 'ratio_high'} <= set(run.steps):
    ratio, high = (run.series(n)[1] for n in ('ratio', 'ratio_high'))
    if high.mean() <= _ABOVE and ratio.mean() < 1 - _GAP:
      return _TRUNCATED
  temperature = words.word(run.format, 'temperature')
  return _SETTINGS.format(temperature=temperature)


def _filters(run: form.Run) -> dict[str, str]:
  """Return the settings that change what is sampled, and their values."""
  return {
      name: f'{words.word(run.format, name)} {run.settings[name]:g}'
      for name, off in _OFF.items()
      if run.settings.get(name, off) != off
  }


def filtered_sampling(run: form.Run) -> findings.Finding | None:
  """Detect a training that does not sample from the policy that it updates.

  Tokens that the sampler leaves out still count in the log-probs of the loss,
  and are never explored.
  """
  if run.config:
    return None  # evojax trains without such filters.
  if not any(name in run.settings for name in _OFF):
    raise form.NotLogged('top_p, top_k and such are not known: --set top_p=...')
  changed = _filters(run)
  if not changed:
    return None
  severe = any(
      not low <= run.settings[name] <= high
      for name, (low, high) in _MILD.items()
      if name in changed
  )
  said = ', '.join(changed.values())
  return findings.Finding(
      check='filtered_sampling',
      severity='warning' if severe else 'note',
      text=f'training samples with {said}, which is not the policy whose'
      ' log-probs it updates',
      numbers=tuple(
          findings.Number(name=name, value=float(run.settings[name]))
          for name in changed
      ),
      change=', '.join(
          f'{words.word(run.format, name)} off ({_OFF[name]:g})'
          for name in changed
      ),
  )


def _usual_gradient(run: form.Run, steps: np.ndarray) -> bool:
  """Return whether these steps have no larger gradients than the others.

  Gradients are larger if many tokens are less likely than the sampler said.
  """
  if 'grad_norm' not in run.steps:
    return False
  table = run.steps.dropna(subset=['grad_norm'])
  among = table['step'].isin(steps)
  if min(among.sum(), (~among).sum()) < 3:
    return False
  norm, other = table['grad_norm'][among], table['grad_norm'][~among]
  return float(norm.median()) < _USUAL * float(other.median())


def other_weights(run: form.Run) -> findings.Finding | None:
  """Detect a sampler whose tokens are as good as arbitrary to the trainer."""
  steps, gap = run.course('gap')
  found = intervals.mean(gap)
  if found.low < _OTHER:
    return None
  return findings.Finding(
      check='other_weights',
      severity='critical',
      text=f'sampler and trainer differ by {found.value:.2g} nats per token,'
      ' as two different models do',
      numbers=(findings.number('log-prob gap', found, 'nats per token'),),
      change=_LOADED,
      curves=(('log-prob gap', steps, gap),),
  )


def stale_sampler(run: form.Run) -> findings.Finding | None:
  """Detect rollouts that stay as they were while the policy moves away.

  This replaces `logprob_gap` if the gap of log-probs is not logged. Rollouts of
  ever older versions of the policy are found in any case.
  """
  if 'staleness' in run.steps and (older := _ever_older(run)) is not None:
    return older
  if 'gap' in set(run.steps) | set(run.rollouts):
    return None  # `logprob_gap` compares the policies themselves.
  if 'kl' not in run.steps and 'kl_update' in run.steps:
    return _apart_from_rollouts(run)
  steps, kl = run.course('kl')
  line = trends.trend(kl)
  late = float(kl[-max(len(kl) // 5, 2) :].mean())
  if line.p > _SURE or line.low <= 0 or late < _MOVED:
    return None
  if not _flat(run, 'reward', 'length'):
    return None
  return findings.Finding(
      check='stale_sampler',
      severity='warning',
      text=f'the policy moves {late:.2g} nats per token away from its start,'
      ' but rewards and lengths of the rollouts stay as they were',
      numbers=(
          findings.Number(name='KL, at last', value=late, unit='nats a token'),
      ),
      change=_WEIGHTS,
      ruled_out=('frozen',),
      curves=(('KL', steps, kl),),
  )


def _flat(run: form.Run, *names: str) -> bool:
  """Return whether the means of some metrics hardly change."""
  for name in names:
    _, values = run.course(name)
    course = trends.trend(values)
    bound = _SAME * abs(float(values.mean()))
    if max(abs(course.low), abs(course.high)) > bound:
      return False
  return True


def _moves(run: form.Run, name: str) -> bool:
  """Return whether the mean of a metric certainly changes, and by much."""
  if name not in run.steps:
    return False
  change = trends.change_point(run.course(name)[1])
  bound = 2 * _SAME * abs(change.before)
  return change.p < _SURE and abs(change.after - change.before) > bound


def _apart_from_rollouts(run: form.Run) -> findings.Finding | None:
  """Find updates ever further from the policy that sampled their batch."""
  steps, kl = run.course('kl_update')
  size = np.abs(kl)
  early = float(np.median(size[: max(len(size) // 3, 4)]))
  late = float(np.median(size[-max(len(size) // 5, 2) :]))
  line = trends.trend(np.log(np.maximum(size, 1e-9)))
  if line.p > _SURE or late < max(_APART, _GREW * early):
    return None
  if not _flat(run, 'reward', *(n for n in ('length',) if n in run.steps)):
    return None
  return findings.Finding(
      check='stale_sampler',
      severity='critical',
      text='the policy moves ever further from that of its rollouts, to'
      f' {late:.2g} nats per token, and their rewards stay as they were',
      numbers=(
          findings.Number(name='KL, at last', value=late, unit='nats a token'),
      ),
      change=_WEIGHTS,
      ruled_out=('small_steps', 'frozen'),
      curves=(('KL of the update', steps, kl),),
  )


def _ever_older(run: form.Run) -> findings.Finding | None:
  """Find rollouts whose age, in updates, grows without a limit."""
  steps, age = run.course('staleness')
  early = float(np.median(age[: max(len(age) // 3, 4)]))
  end = len(age) - max(len(age) // 5, 2)
  late = float(np.median(age[end:]))
  # At first, the age of asynchronous rollouts grows up to their limit.
  half = age[len(age) // 2 :]
  if len(half) < form.MIN_STEPS or late < max(_AGES + early, _OLDER * early):
    return None
  line = trends.trend(half)
  if line.p > _SURE or line.low <= 0:
    return None
  # In single steps at the end, rollouts may be young again.
  young = age[:end] <= early + _AGES / 2
  return findings.Finding(
      check='stale_sampler',
      severity='warning',
      text=f'rollouts get ever older: {early:.2g} updates at first, {late:.2g}'
      ' in the end',
      since=int(steps[np.flatnonzero(young)[-1] + 1]),
      p=line.p,
      numbers=(
          findings.Number(name='age, at last', value=late, unit='updates'),
      ),
      change='check what should keep rollouts from getting older than the loss'
      ' allows: a staleness limit may compare wrong counts (after a restart,'
      ' say); or keep fewer rollouts in flight, since generation is too slow',
      ruled_out=('small_steps', 'frozen'),
      curves=(('age of rollouts', steps, age),),
  )


def off_policy(run: form.Run) -> findings.Finding | None:
  """Detect updates that part ever further from the policy of their batch.

  Here the rollouts follow the policy, but too late, or they are used for too
  many updates. If their rewards do not change, they do not follow it at all,
  which `stale_sampler` reports.
  """
  steps, kl = run.course('kl_update')
  size = np.maximum(np.abs(kl), 1e-9)
  change = trends.change_point(np.log(size))
  early = float(np.median(size[: max(len(size) // 5, 4)]))
  late = float(np.median(size[-max(len(size) // 5, 2) :]))
  if change.p > _SURE or late < max(_PARTED, _PARTS * early):
    return None
  if not _moves(run, 'reward'):
    return None
  old = ''
  if 'staleness' in run.steps:
    age = float(np.median(run.course('staleness')[1]))
    old = f' (their median age is {age:.2g} updates)' * (age >= 1)
  return findings.Finding(
      check='off_policy',
      severity='warning',
      text=f'the policy parts from that of its rollouts: {early:.2g} nats per'
      f' token at first, {late:.2g} in the end',
      since=int(steps[change.index]),
      p=change.p,
      numbers=(
          findings.Number(name='KL, at last', value=late, unit='nats a token'),
      ),
      change=f'train on younger rollouts{old}, or make fewer updates of one'
      f' batch; or {words.word(run.format, "learning_rate")}: a third of it;'
      ' also bound the ratio from above where the advantage is negative (dual'
      ' clip)',
      curves=(('KL of the update', steps, kl),),
  )


def kl_jumps(run: form.Run) -> findings.Finding | None:
  """Detect single updates whose rollouts the policy would not have written."""
  steps, kl = run.course('kl_update')
  size = np.abs(kl)
  apart = _apart(size, max(_JUMP, _EDGE * float(np.median(size))))
  if not apart.any():
    return None
  return findings.Finding(
      check='kl_jumps',
      severity='warning',
      text=f'in {apart.mean():.0%} of the updates the policy is'
      f' {size[apart].mean():.2g} nats per token from that of the rollouts, in'
      f' the others {size[~apart].mean():.2g}',
      since=int(steps[np.flatnonzero(apart)[0]]),
      numbers=(
          findings.Number(
              name='such updates', value=float(apart.mean()), unit='share'
          ),
      ),
      change='train on the tokens that were sampled, not on a text that is'
      ' encoded again (turns, tool calls, chat templates)',
      curves=(('KL of the update', steps, kl),),
  )


def unsampled_tokens(run: form.Run) -> findings.Finding | None:
  """Detect steps in which single tokens are trained that were not sampled."""
  steps, high = run.course('gap_high')
  apart = _apart(high, max(_NEVER, _FAR * float(np.median(high))))
  if not apart.any() or not _small_mean(run, steps[apart]):
    return None
  times = _loss(run, steps[apart])
  spikes = f', and the loss is {times:.1f} times as large' if times else ''
  return findings.Finding(
      check='unsampled_tokens',
      severity='critical' if times else 'warning',
      text=f'in {apart.mean():.0%} of the steps sampler and trainer differ by'
      f' {high[apart].mean():.0f} nats at a token (by {high[~apart].mean():.2g}'
      f' in the others), and hardly on average{spikes}: tokens are trained that'
      ' were never sampled',
      since=int(steps[np.flatnonzero(apart)[0]]),
      numbers=(
          findings.Number(
              name='such steps', value=float(apart.mean()), unit='share'
          ),
      ),
      change='train on the token ids that the sampler returns: turns, calls or'
      ' a template that are encoded again become other tokens (compare both'
      ' ids in such a step), and special tokens may be added or lost',
      curves=(('largest log-prob gap', steps, high),),
  )


def _small_mean(run: form.Run, steps: np.ndarray) -> bool:
  """Return whether the mean gap is small in these steps, or not logged."""
  if 'gap' not in run.steps:
    return True
  among = run.steps['gap'][run.steps['step'].isin(steps)]
  return not float(among.mean()) >= _GAP


def _loss(run: form.Run, steps: np.ndarray) -> float | None:
  """Return how many times as large the loss is in these steps.

  None if it is less than _LARGE times as large, or not known.
  """
  if 'loss' not in run.steps:
    return None
  table = run.steps.dropna(subset=['loss'])
  size, among = table['loss'].abs(), table['step'].isin(steps)
  if min(among.sum(), (~among).sum()) < 3:
    return None
  times = float(size[among].median() / max(size[~among].median(), 1e-9))
  return times if times > _LARGE else None


def gap_restarts(run: form.Run) -> findings.Finding | None:
  """Detect a gap of log-probs that grows until something is started again."""
  steps, gap = run.course('gap')
  found = values.restarts(gap)
  if not found:
    return None
  at = found[0]
  often = f', {len(found)} times in the run' if len(found) > 1 else ''
  return findings.Finding(
      check='gap_restarts',
      severity='warning',
      text=f'the gap between sampler and trainer grows to {gap[at - 1]:.2g}'
      f' nats per token, and falls at once to {gap[at]:.2g}, as at its start'
      + often,
      since=int(steps[0]),
      numbers=(
          findings.Number(name='such falls', value=float(len(found))),
      ),
      change='check what a restart of the engine or of the run renews, and an'
      ' update of the weights does not: the prefix cache of the engine (reset'
      ' it with each update), or weights to which changes are added again and'
      ' again (an adapter in bfloat16)',
      curves=(('log-prob gap', steps, gap),),
  )


def ratio_off(run: form.Run) -> findings.Finding | None:
  """Detect a mean ratio of trainer to sampler that is not 1 from the start.

  The mean is over tokens that the sampler drew. If its log-probs are those of
  the distribution from which it drew them, the expected ratio of any other
  policy's probability to its own is 1.
  """
  steps, ratio = run.course('ratio')
  if 'gap' in {*run.steps, *run.rollouts}:
    return None  # `logprob_gap` tells more, and a bound may cut the ratio.
  mean = intervals.mean(ratio)
  early = float(ratio[: max(len(ratio) // 10, 2)].mean())
  below = mean.high < 1 - _RATIO and early < 1 - _RATIO
  if not below and not (mean.low > 1 + _RATIO and early > 1 + _RATIO):
    return None
  temperature = words.word(run.format, 'temperature')
  return findings.Finding(
      check='ratio_off',
      severity='critical'
      if abs(mean.value - 1) > _RATIO_SEVERE
      else 'warning',
      text=f'the ratio of trainer to sampler is {mean.value:.3g} on average and'
      f' {early:.3g} in the first steps: over tokens that were sampled it is 1,'
      ' however old the weights of the sampler are',
      numbers=(findings.number('mean ratio', mean),),
      change=_SETTINGS.format(temperature=temperature),
      curves=(('ratio', steps, ratio),),
  )


CHECKS = (
    filtered_sampling,
    other_weights,
    logprob_gap,
    ratio_off,
    stale_sampler,
    off_policy,
    kl_jumps,
    unsampled_tokens,
    gap_restarts,
)
