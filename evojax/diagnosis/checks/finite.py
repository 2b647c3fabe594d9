"""The check of metrics and rewards that are not finite numbers."""

from collections.abc import Iterable

import numpy as np

from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis import words
from evojax.ledger import records
from evojax.stats import intervals

_UNGRADED = 0.01  # Share of rollouts without a reward that is no accident.
_MOSTLY = 0.5  # Share from which rewards may be missing by design.
_TWICE = 2  # Steps without a finite loss that are no accident.
_OF_SAMPLER = ('gap', 'entropy', 'kl_update', 'ratio')
_HOLES = 0.2  # Share of the steps that may lack a loss by accident.
_BEFORE = 5  # Steps before the loss ends in which it may have exploded,
_LARGE = 5.0  # and the factor by which a gradient norm or a KL then grows.
_PRODUCT = (
    'use `where` instead of a product of 0 and infinity (a mask times ratios or'
    ' log-probs that overflow)'
)
_OF_UPDATES = ('learning_rate', 'clip', 'kl', 'entropy', 'loss', 'grad_norm')


def not_finite(run: form.Run) -> findings.Finding | None:
  """Detect a loss, gradient or reward that is, or becomes, NaN or infinite."""
  never = [n for n in ('loss', 'grad_norm') if n in run.never_finite]
  if never and run.n_steps >= _TWICE:
    return _never_finite(run, never)
  ends = _ends(run)
  if ends:
    step = min(ends.values())
    change = (
        f'{words.word(run.format, "learning_rate")}: a third of it, from the'
        ' last checkpoint before that step'
    )
    if 'kl' in ends or 'kl' in run.never_finite:
      change = (
          'a KL that is not finite makes the loss NaN, even with a coefficient'
          f' of 0 (0 x NaN is NaN): compute no KL loss at all; or {change}'
      )
    elif _grew(run, step):
      change = f'{change}; or {_PRODUCT}'
    else:
      change = f'{_PRODUCT}, since nothing grew before; or {change}'
    s = 's' if len(ends) == 1 else ''
    text = f'{", ".join(ends)} become{s} NaN or infinite'
    severity = _severity_of_end(run, step, ends)
    if severity != 'critical':
      text = f'{text}, or end{s} where other metrics of updates end, too'
    return findings.Finding(
        check='not_finite',
        severity=severity,
        text=text,
        since=step,
        change=change,
        remedies=(records.Remedy(setting='learning_rate', times=1 / 3),),
    )
  if found := _without_reward(run):
    return found
  if not {'loss', 'grad_norm'} & set(run.steps):
    raise form.not_logged(['loss', 'grad_norm'])
  return _holes(run) or _sampler_holes(run)


def _without_reward(run: form.Run) -> findings.Finding | None:
  """Find rollouts whose reward is not a finite number."""
  rows = run.rollouts
  if 'reward' not in rows:
    return None
  # Trainers leave out what they could not grade, or what a filter drops.
  for name, value in (('error', 0.0), ('kept', 1.0)):
    if name in rows:
      rows = rows[rows[name].fillna(value) == value]
  absent = rows['reward'].isna()
  by_step = absent.groupby(rows['step']).mean()
  if not len(by_step):
    return None
  share = intervals.mean(by_step)
  if share.value < _UNGRADED:
    return None
  return findings.Finding(
      check='not_finite',
      severity='note' if share.value >= _MOSTLY else 'warning',
      text=f'{share.value:.1%} of the rollouts have no reward: it is missing,'
      ' NaN or infinite',
      since=int(by_step.index[(by_step > 0).to_numpy()][0]),
      numbers=(findings.number('rollouts without a reward', share, 'share'),),
      rows=tuple(map(int, rows.index[absent][:6])),
      change=f'{words.word(run.format, "reward")}: return a number for every'
      ' completion, since one NaN makes all advantages of its group NaN; unless'
      ' these rollouts train nothing',
      curves=(
          ('without a reward', by_step.index.to_numpy(), by_step.to_numpy()),
      ),
  )


def _grew(run: form.Run, end: int) -> bool:
  """Return whether the gradient norm or the KL is large before a step."""
  before = run.steps[run.steps['step'] < end]
  for name in ('grad_norm', 'kl'):
    size = before[name].abs().dropna() if name in before else ()
    if len(size) < form.MIN_STEPS:
      continue
    usual = float(size[: len(size) // 2].median())
    if float(size[-_BEFORE:].max()) > _LARGE * usual:
      return True
  return False


def _holes(run: form.Run) -> findings.Finding | None:
  """Find steps without a loss and a KL whose gradient is finite."""
  if not {'loss', 'kl', 'grad_norm'} <= set(run.steps):
    return None
  return _missing_together(
      run,
      ['loss', 'kl'],
      ['grad_norm'],
      'the gradient is finite',
      'the mask of the KL: NaN x 0 is NaN, so that a masked token makes the'
      ' mean NaN (use `where` instead of a product); the weights are not'
      ' affected, and no learning rate helps',
  )


def _sampler_holes(run: form.Run) -> findings.Finding | None:
  """Find steps in which the sampler's log-probs are not numbers."""
  names = [n for n in _OF_SAMPLER if n in run.steps]
  there = [n for n in ('loss', 'grad_norm', 'reward') if n in run.steps]
  if 'gap' not in names or not there:
    return None
  return _missing_together(
      run,
      names,
      there,
      'the other metrics are there',
      'check the log-probs that the sampler returns in these steps: they are'
      ' NaN if weights are updated while it generates, and minus infinity for a'
      ' token that its top_p or top_k removed; a loss that uses them in a ratio'
      ' drops or spoils these rollouts',
  )


def _missing_together(
    run: form.Run, names: list[str], there: list[str], but: str, change: str
) -> findings.Finding | None:
  """Find single steps in which all of some metrics are missing.

  Args:
    run: The run.
    names: The metrics.
    there: Other metrics, which are present in these steps.
    but: A clause for the finding, which says that these are present.
    change: What to change.
  """
  table = run.steps.dropna(subset=there)
  absent = table[names].isna()
  holes = absent.all(axis=1).to_numpy()
  # A metric that is logged only now and then, or sometimes without another one
  # of them, has no holes, and the last step may be incomplete.
  if not holes[1:-1].any() or holes.mean() > _HOLES:
    return None
  if (absent.any(axis=1) != holes).any() or len(table) < form.MIN_STEPS:
    return None
  listed = ', '.join(names[:-1]) + ' and ' * (len(names) > 1) + names[-1]
  return findings.Finding(
      check='not_finite',
      severity='warning',
      text=f'in {holes.sum()} of {len(table)} steps {listed}'
      f' {"are no numbers" if len(names) > 1 else "is no number"} (or not'
      f' logged), while {but}',
      since=int(table['step'].to_numpy()[holes][0]),
      change=change,
      ruled_out=('large_steps',),
  )


def _ends(run: form.Run) -> dict[str, int]:
  """Return the metrics that end together with the loss -> the step after."""
  found = {}
  for name in ('loss', 'grad_norm', 'kl', 'entropy'):
    if name not in run.steps:
      continue
    there = run.steps[name].notna().to_numpy()
    # A metric that is logged only now and then has gaps everywhere.
    last = np.flatnonzero(there)
    if len(last) >= form.MIN_STEPS and len(there) - last[-1] > 3:
      found[name] = int(run.steps['step'].to_numpy()[last[-1] + 1])
  return found if {'loss', 'grad_norm'} & set(found) else {}


def _severity_of_end(run: form.Run, step: int, ends: Iterable[str]) -> str:
  """Return how severe it is that metrics end before a step.

  Steps without any metric of an update may have rollouts that the trainer has
  not used yet; steps without a reward as well may be evaluations.
  """
  late = run.steps[run.steps['step'] >= step]

  def logged(*names: str) -> bool:
    found = late[[n for n in names if n in late and n not in ends]]
    return bool(found.notna().any(axis=1).mean() > 0.5)

  if logged(*_OF_UPDATES):
    return 'critical'
  sampled = 'reward' in run.rollouts and (run.rollouts['step'] >= step).any()
  return 'warning' if logged('reward') or sampled else 'note'


def _never_finite(run: form.Run, names: list[str]) -> findings.Finding:
  """Return the finding of a loss that no step makes finite.

  No learning rate has this effect in the first step: something is divided by a
  count of 0, or an input of the loss is not a number.
  """
  missing = {
      part: float(run.rollouts[form.PART + part].isna().mean())
      for part in run.parts
  }
  missing = {part: share for part, share in missing.items() if share > 0}
  said = ', '.join(f'{p} in {s:.0%}' for p, s in missing.items())
  change = (
      f'{words.word(run.format, "micro_batch")}: at most the completions of a'
      ' mini-batch divided by the number of devices, since a mean over none is'
      ' NaN; or look for masks that leave no token, and for tokens that the'
      ' sampler draws and the trainer does not have (a padded vocabulary)'
  )
  if 'loss' in run.steps:
    change = (
        f'{words.word(run.format, "accumulation")} 1, since the loss of a'
        f' whole update is finite; or {change}'
    )
  if missing:
    change = (
        f'{words.word(run.format, "reward")}: return a number for every'
        f' completion (now missing: {said} of them)'
    )
  return findings.Finding(
      check='not_finite',
      severity='critical',
      text=f'{" and ".join(names)} {"is" if len(names) == 1 else "are"} NaN or'
      ' infinite from the first step',
      change=change,
      ruled_out=('large_steps',),
      rows=tuple(
          map(
              int,
              run.rollouts.index[
                  run.rollouts[[form.PART + p for p in missing]]
                  .isna()
                  .any(axis=1)
              ][:6],
          )
      )
      if missing
      else (),
  )


CHECKS = (not_finite,)
