"""Checks of scores of evaluations, which training does not see."""

import dataclasses

import numpy as np

from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis import words
from evojax.diagnosis.checks import falls
from evojax.diagnosis.checks import shares
from evojax.ledger import records
from evojax.stats import trends

_FEWEST = 4  # Minimum number of evaluations.
_LOST, _HALF = 0.1, 0.5  # Shares of a score that are lost.
# Standard errors by which two stretches of a score differ. Of 4,000 simulated
# flat series of 4 to 40 evaluations, at most 0.8 % reach this with independent
# noise, 2 % if neighbours have a correlation of 0.5, and 1 to 19 % with 0.8, of
# which few lose a tenth of their score.
_FAR = 8.0
_MEDIAN = 0.6745  # Median size of a standard Normal variable.
_SOLVES = 0.1  # Share solved in training that excludes an evaluation at 0.
_STEEP = 100.0  # A usual gradient norm is below 10.
_AT_ONCE = 0.7  # Share of a jump that lies between two evaluations.
# Minimum drop of a training score after evaluations, in standard errors and as
# a share of its level.
_ERRORS, _LOWER = 5.0, 0.1
_SIDE = 3  # Steps on either side that show the level around a step.
_CALLED = {'reward': 'reward', 'outcome': 'solved share'}


def _not_logged() -> form.NotLogged:
  return form.NotLogged(
      'scores of an evaluation are not logged', ['evaluation']
  )


def _courses(run: form.Run) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Return the name of each score of an evaluation -> steps and scores."""
  return {
      name.removeprefix(form.EVALUATION): run.series(name)
      for name in run.steps
      if name.startswith(form.EVALUATION)
  }


def _scores(run: form.Run) -> tuple[np.ndarray, np.ndarray]:
  """Return steps and scores of the evaluation.

  Raises:
    form.NotLogged: If there are fewer than _FEWEST.
  """
  for name in ('eval_outcome', 'eval_reward'):
    if name in run.steps:
      steps, scores = run.series(name)
      if len(scores) < _FEWEST:
        raise form.too_few(len(scores), 'evaluation', _FEWEST)
      return steps, scores
  raise _not_logged()


@dataclasses.dataclass(frozen=True)
class _Change:
  """A change of a score between two stretches of evaluations."""

  before: float
  after: float
  index: int  # The last evaluation of the first stretch.


def _fall(scores: np.ndarray) -> _Change | None:
  """Return the fall of a score from its best stretch to its last one."""
  width, means = _stretches(scores)
  best = int(np.argmax(means[:-width])) if len(means) > width else 0
  before, after = float(means[best]), float(means[-1])
  if before <= 0 or before - after < max(
      _LOST * before, _FAR * _noise(scores, width)
  ):
    return None
  return _Change(before, after, best + width - 1)


def _rise(scores: np.ndarray) -> _Change | None:
  """Return the rise of a score from its first stretch to its last one."""
  width, means = _stretches(scores)
  before, after = float(means[0]), float(means[-1])
  if after - before < _FAR * _noise(scores, width):
    return None
  return _Change(before, after, width - 1)


def _stretches(scores: np.ndarray) -> tuple[int, np.ndarray]:
  """Return the length of a stretch, and the means of all stretches."""
  width = max(min(len(scores) // 4, 4), 2)
  means = np.lib.stride_tricks.sliding_window_view(scores, width).mean(-1)
  return width, means


def _noise(scores: np.ndarray, width: int) -> float:
  """Return the standard error of the difference of two stretches."""
  return trends.noise(scores) * np.sqrt(2 / width)


def eval_falling(run: form.Run) -> findings.Finding | None:
  """Detect scores of evaluations that fall."""
  steps, scores = _scores(run)
  found = _fall(scores)
  if found is None:
    return None
  show = '{:.0%}'.format if 'eval_outcome' in run.steps else '{:.3g}'.format
  course = shares.score(run)
  rises = course is not None and trends.trend(course).low > 0
  return findings.Finding(
      check='eval_falling',
      severity='critical' if found.after < _HALF * found.before else 'warning',
      text=f'the score of the evaluation falls from {show(found.before)} to'
      f' {show(found.after)}'
      + (', while that of training rises' if rises else ''),
      since=int(steps[found.index]),
      change=f'{_sum_of_loss(run)}go back to the checkpoint with the best'
      f' evaluation, and from there {falls.learning_rate(run)}: a third of it'
      + (
          '; the reward pays for what the evaluation does not (read the'
          ' rollouts that gained most)'
          if rises
          else ''
      ),
      remedies=(records.Remedy(setting='learning_rate', times=1 / 3),),
      curves=(('evaluation', steps, scores),),
  )


def _sum_of_loss(run: form.Run) -> str:
  """Return what to check if another term of the loss outweighs the policy's."""
  if 'grad_norm' not in run.steps:
    return ''
  norm = float(run.steps['grad_norm'].median())
  if not norm > _STEEP:
    return ''
  return (
      f'the gradient norm is about {norm:.3g}: check whether a term of the loss'
      ' (such as the balance of experts) is a sum where the others are means.'
      ' If none is, '
  )


def evals_part(run: form.Run) -> findings.Finding | None:
  """Detect a score of evaluations that falls while another one rises."""
  courses = {n: c for n, c in _courses(run).items() if len(c[0]) >= _FEWEST}
  if len(courses) < 2:
    raise form.NotLogged('fewer than two scores of evaluations are logged')
  drops = {
      name: found
      for name, (_, scores) in courses.items()
      if (found := _fall(scores))
  }
  rises = {
      name: found
      for name, (_, scores) in courses.items()
      if name not in drops and (found := _rise(scores))
  }
  if not drops or not rises:
    return None
  (down, fall), (up, rise) = (next(iter(x.items())) for x in (drops, rises))
  steps, scores = courses[down]
  return findings.Finding(
      check='evals_part',
      severity='warning',
      text=f'{down} falls from {fall.before:.2g} to {fall.after:.2g}, while'
      f' {up} rises from {rise.before:.2g} to {rise.after:.2g}',
      since=int(steps[fall.index]),
      change=f'find out what {up} counts as better and {down} does not. If both'
      f' score one data set, the policy games the judge of {up} (read the'
      ' answers that gained most there). If they score two, it forgets what'
      f' training does not ask for (raise {words.word(run.format, "kl_coef")},'
      ' or train on such problems, too). Until then, use the checkpoint before'
      ' the fall',
      remedies=(records.Remedy(setting='grader'),),
      curves=((up, *courses[up]), (down, steps, scores)),
  )


def eval_zero(run: form.Run) -> findings.Finding | None:
  """Detect an evaluation score that is always 0, as if no answer were read."""
  courses = {name: scores for name, (_, scores) in _courses(run).items()}
  if not courses:
    raise _not_logged()
  zero = [
      name
      for name, scores in courses.items()
      if len(scores) >= _FEWEST and not np.any(scores)
  ]
  if not zero:
    return None
  # The problems may be too hard at first, but not if training solves some.
  solved = shares.solved_late(run)
  others = max(float(scores[-1]) for scores in courses.values())
  if solved > _SOLVES:
    known = f'training solves {solved:.0%}'
  elif others > _SOLVES:
    known = 'others are not'
  elif np.isnan(solved) and (line := _reward_rises(run)):
    end = line.start + line.rise
    known = f'the reward of training rises from {line.start:.2g} to {end:.2g}'
  else:
    return None
  return findings.Finding(
      check='eval_zero',
      severity='warning',
      text=f'{", ".join(zero)} is 0 in all evaluations, though {known}',
      change='check how this evaluation reads an answer: control tokens,'
      ' quotes or spaces that its parser leaves in, another template, or'
      ' another limit of tokens than in training (grade a reference solution);'
      ' and what it counts as solved, such as rewards of exactly 1; unless its'
      ' problems are far harder',
      remedies=(records.Remedy(setting='grader'),),
  )


def _reward_rises(run: form.Run) -> trends.Trend | None:
  """Return the line through the reward of training, if it rises."""
  if 'reward' not in run.steps or run.steps['reward'].count() < form.MIN_STEPS:
    return None
  line = trends.trend(run.series('reward')[1])
  return line if line.low > 0 else None


def eval_jumps(run: form.Run) -> findings.Finding | None:
  """Detect a score that jumps between two evaluations and stays there.

  Training changes a policy only gradually. There is no finding if the score of
  training jumps, too.
  """
  steps, scores = _scores(run)
  width = max(min(len(scores) // 4, 4), 3)
  if len(scores) < 2 * width:
    raise form.too_few(len(scores), 'evaluation', 2 * width)
  at = trends.change_point(scores, width).index
  before, after = scores[at - width : at], scores[at : at + width]
  jump = float(after.mean() - before.mean())
  if (
      abs(jump) <= max(_FAR * _noise(scores, width), 1e-9)
      or (scores[at] - scores[at - 1]) / jump < _AT_ONCE
      or np.ptp(before) + np.ptp(after) > abs(jump)
      or _training_jumps(run, int(steps[at - 1]), int(steps[at]), jump)
  ):
    return None
  return findings.Finding(
      check='eval_jumps',
      severity='warning',
      text=f'the score of the evaluation jumps from {before.mean():.2g} to'
      f' {after.mean():.2g} between two evaluations and stays there, while that'
      ' of training does not jump',
      since=int(steps[at]),
      numbers=(findings.Number(name='jump', value=jump),),
      change='check whether it scores the same problems as before, in the same'
      ' way: a subset that is drawn again at a restart (without a seed),'
      ' another limit, template, temperature or grader. Scores from before and'
      ' after cannot be compared',
      curves=(('evaluation', steps, scores),),
  )


def _training_jumps(run: form.Run, last: int, first: int, jump: float) -> bool:
  """Return whether the score of training also changes, by half as much.

  Args:
    run: The run.
    last: Step of the last evaluation before the jump.
    first: Step of the first one after it.
    jump: The change of the evaluation's score.
  """
  wide = max(first - last, form.MIN_STEPS)
  for steps, scores in shares.scores(run):
    before = scores[(steps > last - wide) & (steps <= last)]
    after = scores[(steps >= first) & (steps < first + wide)]
    if len(before) and len(after):
      return bool((after.mean() - before.mean()) / jump > _HALF)
  return False


def after_evaluations(run: form.Run) -> findings.Finding | None:
  """Detect a score of training that is lower in the step after evaluations."""
  held = [c for c in run.steps if c.startswith(('eval_', form.EVALUATION))]
  if not held:
    raise _not_logged()
  known = run.steps.loc[run.steps[held].notna().any(axis=1), 'step']
  name = 'reward' if 'reward' in run.steps else 'outcome'
  steps, scores = run.course(name)
  # The level around a step, without the step itself.
  padded = np.pad(scores, _SIDE, constant_values=np.nan)
  around = np.lib.stride_tricks.sliding_window_view(padded, 2 * _SIDE + 1)
  level = np.nanmedian(np.delete(around, _SIDE, axis=1), axis=1)
  left = scores - level
  places = np.searchsorted(steps, known.to_numpy()) + 1
  after = np.zeros(len(steps), bool)
  after[places[places < len(steps)]] = True
  if after.sum() < _FEWEST or after.mean() > _HALF:
    raise form.too_few(int(after.sum()), 'step', _FEWEST, 'after evaluations')
  lower = float(np.median(left[~after]) - np.median(left[after]))
  spread = float(np.median(np.abs(left[~after]))) / _MEDIAN
  error = spread / np.sqrt(after.sum())
  usual = abs(float(np.median(scores[~after])))
  if lower <= max(_ERRORS * error, _LOWER * usual):
    return None
  return findings.Finding(
      check='after_evaluations',
      severity='warning',
      text=f'in the step after an evaluation the {_CALLED[name]} of training is'
      f' lower by {lower:.2g} than in the steps around it ({usual:.2g})',
      since=int(steps[after][0]),
      numbers=(findings.Number(name='lower by', value=lower),),
      change='check what an evaluation changes and does not restore: the'
      ' problems or answers that an environment or a grader keeps, the mode of'
      ' the model, the temperature or the cache of the sampler',
      remedies=(records.Remedy(setting='grader'),),
      curves=((_CALLED[name], steps, scores),),
  )


def train_eval_gap(run: form.Run) -> findings.Finding | None:
  """Detect training scores that rise while evaluation scores do not."""
  if 'eval_outcome' not in run.steps:
    if 'eval_reward' in run.steps:
      raise form.NotLogged(
          'scores of the evaluation lie outside [0, 1]: they do not say what is'
          ' solved'
      )
    raise _not_logged()
  scored = run.steps[['step', 'eval_outcome']].dropna()
  if len(scored) < 4:
    raise form.too_few(len(scored), 'evaluation', 4)
  steps, solved = run.course('outcome')
  line = trends.trend(solved)
  held = trends.trend(scored['eval_outcome'])
  gap = line.rise - held.rise
  if line.p > shares.SURE or gap < 0.1 or held.high > line.low:
    return None
  # If the problems are far harder, no policy would raise their score.
  rare = float(scored['eval_outcome'].max()) < shares.RARELY
  return findings.Finding(
      check='train_eval_gap',
      severity='warning' if rare else 'critical',
      text='the solved share rises in training but not in the evaluation'
      + (', of which hardly anything is ever solved' if rare else ''),
      p=line.p,
      numbers=(
          findings.number(
              'rise in training',
              line.interval,
          ),
          findings.number(
              'rise in the evaluation',
              held.interval,
          ),
      ),
      change=f'{words.word(run.format, "data")}: train on more kinds of'
      f' problems; or check {words.word(run.format, "grader")}',
      curves=(
          ('solved', steps, solved),
          ('evaluation', scored['step'], scored['eval_outcome']),
      ),
  )


def eval_scale(run: form.Run) -> findings.Finding | None:
  """Detect an evaluation whose scores are rewards, not shares solved."""
  if 'eval_reward' not in run.steps:
    if 'eval_outcome' in run.steps:
      return None
    raise _not_logged()
  steps, scores = run.series('eval_reward')
  low, high, last = map(float, (scores.min(), scores.max(), scores[-1]))
  if low >= 0 and high <= 1:
    return None
  within = -1 <= low < 0 and high <= 1
  known = f': {last:.2g} then is {(1 + last) / 2:.0%}' if within else ''
  return findings.Finding(
      check='eval_scale',
      severity='note',
      text='the score of the evaluation is as'
      f' {f"low as {low:.2g}" if low < 0 else f"high as {high:.2g}"}: a reward,'
      ' not the share solved',
      numbers=(findings.Number(name='last score', value=last),),
      change='log scores of 0 and 1 in the evaluation if it is to tell what is'
      f' solved{f" (they may be -1 and 1{known})" if low < 0 else ""}',
      curves=(('evaluation', steps, scores),),
  )


CHECKS = (
    train_eval_gap,
    eval_falling,
    evals_part,
    eval_zero,
    eval_jumps,
    after_evaluations,
    eval_scale,
)
