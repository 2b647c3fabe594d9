"""Examination of a run by every check."""

import numpy as np

from evojax.diagnosis import checks
from evojax.diagnosis import estimates
from evojax.diagnosis import findings
from evojax.diagnosis import form

# Findings that are dropped if one of the stronger findings is present.
_SAID_BY = {
    'not_learning': (
        'learning_rate_zero',
        'warmup',
        'too_hard',
        'gradient_zero',
        'outcome_falling',
        'hardly_moves',
    ),
    'hardly_moves': (
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
    'outcome_falling': ('inverted_sign', 'reward_hacking', 'length_gaming'),
    'hidden_goal': ('inverted_sign', 'reward_hacking', 'shaping_alone'),
    'shaping_alone': ('reward_hacking',),
    'gives_up': ('submits_at_once', 'echo_trap'),
    'gradient_zero': (
        'too_hard',
        'too_easy',
        'dead_groups',
        'entropy_collapse',
        'outcome_falling',
    ),
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
      unknown.append(findings.Unknown(check.__name__, str(error)))
      continue
    if finding is None:
      quiet.append(check.__name__)
    else:
      found.append(finding)
  # Two checks may find the same fault; the first one is more specific.
  found = list({f.check: f for f in reversed(found)}.values())[::-1]
  names = {f.check for f in found}
  found = [f for f in found if names.isdisjoint(_SAID_BY.get(f.check, ()))]
  found.sort(key=lambda f: findings.SEVERITIES.index(f.severity))  # Stable.
  verdict, summary = _summary(run, found, quiet)
  return findings.Diagnosis(
      tuple(found), tuple(unknown), tuple(quiet), verdict, summary
  )


def _summary(
    run: form.Run, found: list[findings.Finding], quiet: list[str]
) -> tuple[str, str]:
  loud = [f for f in found if f.severity != 'note']
  if loud:
    return 'findings', f'{loud[0].severity}: {loud[0].text}.'
  if run.n_steps < form.MIN_STEPS:
    return (
        'too_short',
        f'{run.n_steps} steps are too few to judge a course'
        f' ({form.MIN_STEPS} needed); nothing else is wrong.',
    )
  try:
    _, solved = run.course('outcome')
  except form.NotLogged:
    return (
        'cannot_tell',
        f'{len(quiet)} checks found nothing; whether it solves more cannot be'
        ' told, because no outcome is logged.',
    )
  line = estimates.trend(solved)
  ends = [float(np.mean(part)) for part in np.array_split(solved, 5)]
  if line.low > 0 or ends[-1] > 0.9:
    return (
        'healthy',
        f'The run looks healthy: solved went from {ends[0]:.0%} to'
        f' {ends[-1]:.0%}, and {len(quiet)} checks found nothing wrong.',
    )
  return (
      'cannot_tell',
      f'{len(quiet)} checks found nothing wrong, and solved has not risen for'
      f' sure: {100 * line.rise:+.1f} points [{100 * line.low:+.1f},'
      f' {100 * line.high:+.1f}].',
  )
