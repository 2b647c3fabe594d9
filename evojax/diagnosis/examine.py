"""Examination of a run by every check."""

import dataclasses

import numpy as np
import pandas as pd

from evojax.diagnosis import causes
from evojax.diagnosis import checks
from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis import words
from evojax.runtime import numerals
from evojax.stats import trends

_EVALUATIONS = 5  # Fewest evaluations that tell whether more is solved.
# Findings that are dropped if one of the stronger findings is present.
_SAID_BY = {
    'not_learning': (
        'learning_rate_zero',
        'warmup',
        'too_hard',
        'gradient_zero',
        'outcome_falling',
        'hardly_moves',
        'kl_zero',
        'left_out',
        'reward_hacking',
        'reward_lost',
    ),
    'form_wins': ('reward_hacking',),
    'eval_falling': (
        'evals_part',
        'outcome_falling',
        'reward_falling',
        'train_eval_gap',
    ),
    'one_text': ('efficiency_collapse', 'gives_up', 'submits_at_once'),
    'reward_lost': ('silent',),
    'too_hard': ('reward_lost',),
    'dead_groups': ('reward_lost',),
    'loss_summed': ('advantage_spikes', 'impossible_share'),
    'update_large': ('logprob_gap', 'other_weights', 'stale_sampler'),
    # These findings explain why nothing changes.
    'kl_zero': (
        'dead_groups',
        'gradient_zero',
        'left_out',
        'schedule_ends',
        'too_easy',
        'too_hard',
    ),
    'hardly_moves': (
        'credit',
        'left_out',
        'learning_rate_zero',
        'warmup',
        'gradient_clipped',
        'gradient_zero',
        'too_hard',
        'too_easy',
        'dead_groups',
        'entropy_collapse',
    ),
    # These findings explain the fall, and their remedies are more specific.
    'outcome_falling': (
        'credit',
        'inverted_sign',
        'reward_hacking',
        'length_gaming',
    ),
    'format_bottleneck': ('unreadable', 'right_refused'),
    'right_refused': ('unreadable',),
    'logprob_gap': ('other_weights',),
    'clip_fraction': ('logprob_gap', 'other_weights', 'stale_sampler'),
    'reward_falling': ('kl_explosion', 'kl_negative', 'loops', 'form_wins'),
    'shrinks': ('length_gaming', 'efficiency_collapse', 'submits_at_once'),
    'stale_sampler': ('learning_rate_zero', 'gradient_zero'),
    'calls_unlearned': ('gives_up', 'efficiency_collapse', 'submits_at_once'),
    'hidden_goal': (
        'credit',
        'inverted_sign',
        'outweighed',
        'reward_hacking',
        'shaping_alone',
    ),
    'calls_grow': ('echo_trap', 'malformed_calls', 'turn_limit'),
    'tests_dropped': ('submits_at_once',),
    'filter_by_length': ('filter_starves',),
    'idle_steps': ('dead_groups', 'gradient_zero', 'too_easy', 'too_hard'),
    'repeated_steps': ('narrow_data',),
    'shaping_alone': ('reward_hacking',),
    # These findings name the part, or the property of all rewards, at fault.
    'wrong_paid': (
        'inverted_sign',
        'length_gaming',
        'outweighed',
        'reward_hacking',
        'silent',
    ),
    'gives_up': ('submits_at_once', 'echo_trap'),
    'gradient_zero': (
        'left_out',
        'reward_lost',
        'silent',
        'too_hard',
        'too_easy',
        'dead_groups',
        'entropy_collapse',
        'outcome_falling',
    ),
}
# The same, but only if the stronger finding is critical.
_SAID_BY_CRITICAL = {
    'not_learning': (
        'filter_starves',
        'inverted_sign',
        'outweighed',
        'silent',
    ),
    # A policy becomes certain of what the reward pays for. If a grader accepts
    # everything, all rewards are soon equal.
    'entropy_collapse': ('inverted_sign', 'length_gaming', 'reward_hacking'),
    # Consequences of training a policy towards wrong answers, or of a policy
    # that always writes the same text.
    'entropy_rising': ('inverted_sign',),
    'key_disagrees': ('entropy_collapse', 'inverted_sign'),
    'shrinks': ('inverted_sign', 'not_finite', 'reward_hacking'),
    # Consequences of a tool, or of a grader, that fails.
    'malformed_calls': ('same_error',),
    'other_language': ('loops', 'not_finite'),
    'one_answer': ('grader_open',),
    'gradient_zero': (
        'grader_open',
        'not_finite',
        'plain_refused',
        'reward_falling',
        'right_refused',
    ),
    # A policy whose weights are NaN writes nothing readable, and if solutions
    # are not rewarded, no format is learned.
    'format_bottleneck': ('inverted_sign', 'loops', 'not_finite', 'silent'),
    'outcome_falling': (
        'keys_change',
        'not_finite',
        'right_refused',
        'same_error',
    ),
    'reward_falling': ('not_finite', 'truncation'),
    'too_hard': (
        'loops',
        'other_weights',
        'plain_refused',
        'prompt_cut',
        'right_refused',
        'silent',
        'temperature',
        'truncation',
        'unreadable',
        'length_decides',
        'turn_limit',
    ),
    'gives_up': ('turn_limit',),
    'unreadable': ('temperature', 'truncation', 'stop_string'),
    'truncation': ('loops', 'not_finite', 'other_weights', 'temperature'),
    'dead_groups': (
        'loops',
        'other_weights',
        'plain_refused',
        'right_refused',
        'silent',
        'turn_limit',
    ),
    'loops': ('other_weights',),
}
# Finding -> the findings that it explains. They are dropped, and it becomes as
# severe as they are. A policy that cannot read the question or a tool's reply
# solves nothing, and groups with different outcomes give no gradient if they
# are dropped or if all their rollouts get the same reward.
_EXPLAINS = {
    'filter_starves': ('gradient_zero',),
    'silent': ('dead_groups',),
    'replies_cut': ('too_hard', 'dead_groups'),
    'turns_cut': ('too_hard', 'dead_groups', 'gives_up'),
    'tests_time_out': ('too_hard', 'dead_groups'),
    'template_twice': (
        'too_hard',
        'dead_groups',
        'gradient_zero',
        'one_answer',
        'unreadable',
        'format_bottleneck',
    ),
}
# Finding -> its symptoms. While one of them is critical, so is the finding, and
# it comes first: its remedy is cheap, and only then can symptoms be judged.
_CAUSES = {
    'unusual_setting': {
        'dead_groups',
        'entropy_collapse',
        'gradient_clipped',
        'gradient_zero',
        'hardly_moves',
        'not_finite',
        'outcome_falling',
        'temperature',
        'too_hard',
        'warmup',
    },
    # A completion that is cut cannot be right, however easy its problem is.
    'truncation': {'dead_groups', 'too_hard'},
    # The policy learns what such a part pays for instead of solving problems.
    'outweighed': {'reward_hacking', 'visible_only'},
    # The policy drifts if solutions are hardly rewarded.
    'hidden_goal': {'outcome_falling'},
    'silent': {'outcome_falling'},
}


def examine(run: form.Run) -> findings.Diagnosis:
  """Return the diagnosis of a run by all checks, worst findings first."""
  found: list[findings.Finding] = []
  unknown: list[findings.Unknown] = []
  quiet: list[str] = []
  for check in checks.of(run):
    try:
      finding = check(run)
    except form.NotLogged as error:
      unknown.append(_unknown(run.format, check.__name__, error))
      continue
    if finding is None:
      quiet.append(check.__name__)
    else:
      found.append(finding)
  # Two checks may find the same fault; the first one is more specific.
  found = list({f.check: f for f in reversed(found)}.values())[::-1]
  names = {f.check for f in found}
  severe = {f.check for f in found if f.severity == 'critical'}
  found = [
      f
      for f in found
      if names.isdisjoint(_SAID_BY.get(f.check, ()))
      and severe.isdisjoint(_SAID_BY_CRITICAL.get(f.check, ()))
  ]
  found = _explained(found)
  found.sort(key=lambda f: findings.SEVERITIES.index(f.severity))  # Stable.
  found = causes.attach(_causes_first(found), quiet, run.format)
  verdict, summary = _summary(run, found, quiet)
  return findings.Diagnosis(
      tuple(found), tuple(unknown), tuple(quiet), verdict, summary
  )


def _explained(found: list[findings.Finding]) -> list[findings.Finding]:
  """Return the findings without those that others explain."""
  by_check = {f.check: f for f in found}
  for cause, symptoms in _EXPLAINS.items():
    if cause in by_check:
      both = [by_check.pop(name) for name in symptoms if name in by_check]
      both.append(by_check[cause])
      worst = min((f.severity for f in both), key=findings.SEVERITIES.index)
      by_check[cause] = dataclasses.replace(by_check[cause], severity=worst)
  return list(by_check.values())


def _unknown(
    format_: str, check: str, error: form.NotLogged
) -> findings.Unknown:
  """Return why a check cannot tell, and which options would log its data."""
  options = words.how_to_log(format_, error.names)
  if not options:
    return findings.Unknown(check, str(error), error.names)
  return findings.Unknown(check, f'{error}: {"; ".join(options)}')


def _causes_first(found: list[findings.Finding]) -> list[findings.Finding]:
  """Return the findings; causes of critical ones become critical, and first."""
  severe = {f.check for f in found if f.severity == 'critical'}
  first = [
      dataclasses.replace(f, severity='critical')
      for f in found
      if severe & _CAUSES.get(f.check, set())
  ]
  names = {f.check for f in first}
  return first + [f for f in found if f.check not in names]


def _summary(
    run: form.Run, found: list[findings.Finding], quiet: list[str]
) -> tuple[str, str]:
  loud = [f for f in found if f.severity != 'note']
  if loud:
    return 'findings', f'{loud[0].severity}: {loud[0].text}.'
  if run.n_steps < form.MIN_STEPS:
    return (
        'too_short',
        f'{numerals.counted(run.n_steps, "step")}'
        f' {"is" if run.n_steps == 1 else "are"} too few to judge a trend'
        f' ({form.MIN_STEPS} needed); {len(quiet)} other checks found nothing'
        ' wrong.',
    )
  of = ''
  try:
    _, solved = run.course('outcome')
  except form.NotLogged as error:
    evaluated = run.steps.get('eval_outcome', pd.Series(dtype=float)).dropna()
    if len(evaluated) < _EVALUATIONS:
      return (
          'cannot_tell',
          f'{len(quiet)} checks found nothing wrong; whether more is solved'
          ' than at the start is not known, because'
          f' {_without_outcome(error)}.{_of_reward(run)}',
      )
    solved, of = evaluated.to_numpy(), ' of the evaluation'
  line = trends.trend(solved)
  ends = [float(np.mean(part)) for part in np.array_split(solved, 5)]
  if line.low > 0 or ends[-1] > 0.9:
    return (
        'healthy',
        f'The solved share{of} {_went(line, ends)}, and {len(quiet)} checks'
        ' found nothing wrong.',
    )
  certain = (
      f'but the solved share{of} has fallen'
      if line.high < 0
      else f'and it is not certain that the solved share{of} has risen'
  )
  return (
      'cannot_tell',
      f'{len(quiet)} checks found nothing wrong, {certain}:'
      f' {100 * line.rise:+.1f} points'
      f' [{100 * line.low:+.1f}, {100 * line.high:+.1f}].',
  )


def _of_reward(run: form.Run) -> str:
  """Return a sentence on whether the reward rises, if it is logged."""
  try:
    _, reward = run.course('reward')
  except form.NotLogged:
    return ''
  line = trends.trend(reward)
  said = 'rises' if line.low > 0 else 'falls' if line.high < 0 else ''
  return (
      f' The reward {said or "may not have risen"}: {line.rise:+.2g}'
      f' [{line.low:+.2g}, {line.high:+.2g}].'
  )


def _without_outcome(error: form.NotLogged) -> str:
  """Return why a run has no outcomes by step, as the end of a sentence."""
  if error.names:
    return 'no outcome is logged'
  return f'too few steps have an outcome ({error})'


def _went(line: trends.Trend, ends: list[float]) -> str:
  """Return how the solved share changed, as the end of a sentence.

  Args:
    line: The line through it.
    ends: Its means over consecutive parts of the run; the first and the last
      one are used.
  """
  if line.low <= 0:
    return f'is {ends[-1]:.0%} at the end ({ends[0]:.0%} at first)'
  first, last = (f'{end:.0%}' for end in (ends[0], ends[-1]))
  if first == last:
    first, last = (f'{end:.1%}' for end in (ends[0], ends[-1]))
  return f'rises from {first} to {last}'
