"""Checks of settings: values outside the usual range."""

from collections.abc import Iterable
import re

from evojax import config as config_lib
from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis import words
from evojax.ledger import records

_SOLVED = 0.02  # Share below which nothing is solved.
# Shares of the kinds of problems below which training is narrow, and far too
# narrow for the evaluations.
_PART, _SLICE = 0.2, 0.05
# Decoupled decay d moves a weight w by d |w| times the learning rate, and Adam
# by about the learning rate. From this d on, decay outweighs the gradient for
# |w| = 0.1, and soon destroys the policy.
_RUINOUS_DECAY = 10.0


def unusual_setting(run: form.Run) -> findings.Finding | None:
  """Detect a setting far outside its usual range."""
  values = dict(run.config)
  if not values:
    values = {
        path: run.settings[name]
        for name, path in words.own('evojax', form.SETTINGS).items()
        if name in run.settings
    }
  if not values:
    raise form.NotLogged('no setting is known: --set NAME=VALUE')
  odd = {}
  for path, value in values.items():
    if not config_lib.declaration(path).is_usual(value):
      odd[path] = value
  if not odd:
    return None
  said, changes, remedies = [], [], []
  for path, value in odd.items():
    field = config_lib.declaration(path)
    name = words.of_path(run.format, path)
    low, high = field.usual
    said.append(f'{name} is {value:g} ({low:g} to {high:g} is usual)')
    # The default suits a small policy; other trainers get the range.
    good = f'{field.default:g}' if run.config else f'{low:g} to {high:g}'
    changes.append(f'{name} {value:g} -> {good}')
    remedies.append(records.Remedy(setting=path, value=field.default))
  ruined = odd.get('optim.weight_decay', 0) >= _RUINOUS_DECAY
  return findings.Finding(
      check='unusual_setting',
      severity='critical' if ruined else 'warning',
      text=', '.join(said),
      numbers=tuple(
          findings.Number(name=path, value=float(value))
          for path, value in odd.items()
      ),
      change=', '.join(changes),
      remedies=tuple(remedies),
  )


def stop_string(run: form.Run) -> findings.Finding | None:
  """Detect a stop string that ends completions too early."""
  stop = run.config.get('rollout.stop')  # Known for evojax's own runs only.
  if not stop or float(run.series('outcome')[1].mean()) > _SOLVED:
    return None
  return findings.Finding(
      check='stop_string',
      severity='critical',
      text=f'nothing is solved, and {", ".join(map(repr, stop))} ends'
      ' completions',
      rows=tuple(map(int, run.rollouts.index[:6])),
      change='set rollout.stop to ()',
      remedies=(records.Remedy(setting='rollout.stop'),),
  )


def part_of_the_data(run: form.Run) -> findings.Finding | None:
  """Detect training on a part of the problem families."""
  families = run.config.get('data.families')  # Known for evojax's runs only.
  if not families:
    return None
  asked, known = (
      _kinds(run.config.get(name) or ())
      for name in ('data.families', 'domain.kwargs.families')
  )
  share = len(asked & known) / len(known) if known else 1.0
  narrow = share < _PART
  severity = 'critical' if share < _SLICE else 'warning' if narrow else 'note'
  return findings.Finding(
      check='part_of_the_data',
      severity=severity,
      text=f'training uses only the problems {", ".join(map(str, families))}'
      + (f', {share:.0%} of the kinds in evaluations' if narrow else ''),
      change='data.families -> (), which trains on all families',
      remedies=(records.Remedy(setting='data'),),
  )


def _kinds(families: Iterable[str]) -> set[tuple[str, int]]:
  """Return the kinds of problems, ('name', level), of 'name:first-last'."""
  found = set()
  for family in families:
    match = re.fullmatch(r'(\w+):(\d+)(?:-(\d+))?', str(family))
    if match:
      name, first, last = match.groups()
      levels = range(int(first), int(last or first) + 1)
      found |= {(name, level) for level in levels}
  return found


CHECKS = (stop_string, unusual_setting, part_of_the_data)
