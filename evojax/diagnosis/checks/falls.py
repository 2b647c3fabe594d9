"""Advice on a reward or a solved share that falls, by the shape of the fall.

If updates ruin a policy, its score falls from step to step. If a score falls at
once, it is more likely that something else has broken.
"""

import numpy as np

from evojax.diagnosis import form
from evojax.diagnosis import words
from evojax.stats import trends

_FEWEST = 16  # Minimum number of steps to tell the two shapes apart.
_NEAR = 2  # Steps on either side of a fall, without the two next to it.
_MOST = 0.7  # Share of the fall between these steps if it is sudden.
_COURSE = 4  # Fewest steps that show a trend.
_LOST = 0.25  # Share of its peak that a score has lost.
# P-value of a fall after a peak. Of 400 simulated series without a fall, at
# most 1.3 % reach it with independent Normal noise, and 1 to 3 % with the noise
# of a reward that is rarely paid. With noise correlated from step to step (0.5
# to 0.8), 4 to 40 % of flat series do; therefore the finding is a warning.
_CERTAIN = 0.002
_NOTHING = 0.05  # Share of a reward that is left if it falls to about 0.
# P-value, and relative size, of what else changes at the step of a fall.
_CHANGED, _OTHER = 0.01, 0.2
# Growth of completions from which a limit may cut them.
_LONGER = 1.5
# An answer that is marked as in math data, DeepSeek-R1's format or GSM8K.
MARK = r'\\boxed\{|</answer>|####'


def from_peak(values: np.ndarray) -> trends.Change | None:
  """Return the fall of a score that had risen before, if it loses a quarter.

  A line or a change point of the whole series may only show the rise.

  Args:
    values: One value per step.
  """
  found = trends.fall_from_peak(values)
  if found is None or found.p > _CERTAIN:
    return None
  lost = found.before - found.after
  return found if lost > _LOST * abs(found.before) else None


def sudden(values: np.ndarray, change: trends.Change) -> bool:
  """Return whether values fall within two steps, and did not fall before.

  If a sudden fall leaves almost nothing, they may have fallen before.

  Args:
    values: One value per step.
    change: Their change point.
  """
  at, fall = change.index, change.before - change.after
  if len(values) < _FEWEST or fall <= 0:
    return False
  before = values[max(at - 1 - _NEAR, 0) : at - 1]
  after = values[at + 1 : at + 1 + _NEAR]
  if before.mean() - after.mean() < _MOST * fall:
    return False
  if abs(change.after) < _NOTHING * abs(change.before):
    return True
  return at < _COURSE or trends.trend(values[:at]).high >= 0


def advice(
    run: form.Run,
    steps: np.ndarray,
    values: np.ndarray,
    change: trends.Change,
    lower: str,
) -> str:
  """Return what to change, most likely first.

  Args:
    run: The run.
    steps: The steps of the values.
    values: One value per step.
    change: Their change point.
    lower: By how much to lower the learning rate.
  """
  if sudden(values, change):
    other = also(run, int(steps[change.index]))
    return (
        f'find out what happened at that step{other}: a restart, new data, or a'
        ' server, a tool or a grader that failed (read rollouts from before and'
        f' after); or {lower}'
    )
  return (
      f'{_longer(run, int(steps[change.index]))}{lower}; unless problems get'
      ' harder, or a server, a tool or a grader fails more and more often'
  )


def _longer(run: form.Run, step: int) -> str:
  """Return what to check if completions grow and cut ones are not logged."""
  if 'truncated' in {*run.rollouts, *run.steps}:
    return ''
  try:
    steps, length = run.course('length')
  except form.NotLogged:
    return ''
  before, after = length[steps < step], length[steps >= step]
  if not len(before) or not len(after):
    return ''
  first = float(before[: max(len(length) // 3, 1)].mean())
  if (late := float(after.mean())) < _LONGER * first:
    return ''
  return (
      f'check whether {words.word(run.format, "max_tokens")} cuts completions,'
      f' which grow from {first:.3g} to {late:.3g} tokens, before they answer,'
      ' and raise it; or '
  )


def also(run: form.Run, step: int) -> str:
  """Return what else changes at a step, such as prompts or the learning rate.

  Args:
    run: The run.
    step: The first step of the fall.
  """
  rows, found = run.rollouts, {}
  if 'prompt' in rows:
    found['characters of a prompt'] = rows['prompt'].str.len()
  if 'completion' in rows and not run.has_turns:
    marks = rows['completion'].str.contains(MARK)
    found['share of marked answers'] = marks.astype(float)
  courses = {
      name: values.groupby(rows['step']).mean()
      for name, values in found.items()
  }
  if 'learning_rate' in run.steps:
    rate = run.steps.set_index('step')['learning_rate'].dropna()
    courses['learning rate'] = rate
  said = []
  for name, course in courses.items():
    if len(course) < _FEWEST:
      continue
    values = course.to_numpy(float)
    change = trends.change_point(values)
    before, after = change.before, change.after
    jump = values[change.index] - values[change.index - 1]
    if (
        change.p < _CHANGED
        and abs(int(course.index[change.index]) - step) <= 1
        and abs(after - before) > _OTHER * max(abs(before), abs(after))
        and jump / (after - before) > _MOST
    ):
      said.append(f'{name}: {before:.3g} to {after:.3g}')
  return f' ({"; ".join(said)})' if said else ''


def learning_rate(run: form.Run) -> str:
  """Return the trainer's name of the learning rate, with its highest value."""
  word = words.word(run.format, 'learning_rate')
  if 'learning_rate' not in run.steps:
    return word
  return f'{word} (it was {run.series("learning_rate")[1].max():.2g})'


def after_first(run: form.Run) -> str:
  """Return what to change if only the first step is as it should be."""
  return (
      'check what differs after the first update: the weights that generation'
      ' gets, its caches, and the mode of the model (read completions of the'
      f' second step); or {words.word(run.format, "learning_rate")}: a tenth of'
      ' it'
  )
