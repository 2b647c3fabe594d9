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

_FEWEST = 4  # Evaluations that show a course.
_LOST, _HALF = 0.1, 0.5  # Shares of a score that are lost.
# Standard errors by which two stretches of a score differ. Of 4,000 simulated
# flat courses of 4 to 40 evaluations at most .8 % do with independent noise;
# where neighbours correlate by .5, 2 %; by .8, 1 to 19 %, of which few lose a
# tenth of their score.
_FAR = 8.0
_MEDIAN = 0.6745  # Median size of a standard Normal variable.
_SOLVES = 0.1  # Share solved in training, from which an evaluation is not at 0.
_STEEP = 100.0  # A usual gradient norm is below 10.


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
  """Return the standard error of the difference of two stretches.

  It is taken from the median of second differences, to which neither a slope
  nor a single jump adds.
  """
  second = float(np.median(np.abs(np.diff(scores, 2))))
  return second / _MEDIAN / np.sqrt(6) * np.sqrt(2 / width)


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
  """Return what to look at if a term of the loss outweighs the policy's."""
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
  """Detect a score of evaluations that is always 0, as no answer is read."""
  courses = {name: scores for name, (_, scores) in _courses(run).items()}
  if not courses:
    raise _not_logged()
  zero = [
      name
      for name, scores in courses.items()
      if len(scores) >= _FEWEST and not np.any(scores)
  ]
  # Hard problems are not solved at first; some are, if training solves some.
  solved = shares.solved_late(run)
  others = max(float(scores[-1]) for scores in courses.values())
  if not zero or not max(np.nan_to_num(solved), others) > _SOLVES:
    return None
  known = 'others are not'
  if solved > _SOLVES:
    known = f'training solves {solved:.0%}'
  return findings.Finding(
      check='eval_zero',
      severity='warning',
      text=f'{", ".join(zero)} is 0 in all evaluations, though {known}',
      change='check how this evaluation reads an answer: control tokens,'
      ' quotes or spaces that its parser leaves in, another template, or'
      ' another limit of tokens than in training (grade a reference solution);'
      ' unless its problems are far harder',
      remedies=(records.Remedy(setting='grader'),),
  )


def train_eval_gap(run: form.Run) -> findings.Finding | None:
  """Detect training scores that rise while evaluation scores do not."""
  if 'eval_outcome' not in run.steps:
    if 'eval_reward' in run.steps:
      raise form.NotLogged(
          'scores of the evaluation leave [0, 1]: they do not say what is'
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
  # Problems that are far harder would not rise with any policy.
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
  """Detect an evaluation whose scores are rewards and no share solved."""
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


CHECKS = (train_eval_gap, eval_falling, evals_part, eval_zero, eval_scale)
