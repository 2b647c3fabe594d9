"""Sealed scores, and a one-sentence summary of the run."""

import collections
import pathlib
from typing import Any

from evojax.ledger import history
from evojax.ledger import records
from evojax.report import state
from evojax.report import svg
from evojax.runtime import numerals

# Explains a decision such as 'keep, +1.9 [-0.1, +3.8]'.
KEEP = (
    'A change is kept if its e-value, the evidence of all its pairs for a gain,'
    ' reaches its threshold, it raises no new critical alert, and the gain also'
    ' shows on perturbed problems or under a stricter judge, if the domain has'
    ' them. The repair of a critical finding need only show that it loses less'
    ' than 2 points, unless its arms vary so much that some may collapse.'
)
NOT_RUN = (
    '"not run": controls, which are variants of the shipped configs. A finished'
    ' run of one, or any other run on the same base policy, is scored on the'
    ' same problems by --compare=DIR.'
)
# Status of a trial -> the end of a sentence that counts such trials.
_ENDS = {
    'discard': 'not shown to be better than the incumbent',
    'vetoed': 'stopped by a replay of updates',
    'disqualified': 'refused by the gate',
    'size_blocked': 'too large for the memory of a device',
    'superseded': 'left undecided when another change was kept or taken back',
    'taken back': 'taken back, as it did not stay ahead of its former harness',
    history.UNVERIFIED: 'ahead, but after the last score on perturbed problems',
    history.BUSY: 'not judged on a busy machine',
}
# Policies of the run itself; all others come from compared runs.
OWN = ('base', 'continued', 'evolved', 'retrained')
_ORDER = (*OWN, 'seed', 'random', 'reference')


def names(kept: bool, start: str = 'seed harness') -> dict[str, str]:
  """Return the display names of a run's policies.

  Compared policies have names of their own.

  Args:
    kept: Whether any change was kept.
    start: The harness that the run started from.
  """
  found = {'base': 'base policy'}
  if kept:
    return found | {
        'evolved': 'evolved',
        'retrained': 'retrained from base',
    }
  return found | {
      'evolved': 'raced (nothing kept)',
      'retrained': f'{start}, from base',
  }


def names_of(run: history.History) -> dict[str, str]:
  """Return the display names of a run's policies."""
  opened = run.find(records.Open)
  if opened and opened.forked:
    return names(bool(run.kept), f'harness of {opened.forked}')
  return names(bool(run.kept))


def names_of_compared(path: pathlib.Path) -> dict[str, str]:
  """Return the display names of compared runs, from their directories.

  By default they are named by config variant, which two runs may share.
  """
  found = {}
  for file in sorted(path.glob('sealed/*/compared.json')):
    name = file.parent.name
    folder = pathlib.Path(state.read_json(file, {}).get('workdir', '')).name
    if folder and name not in folder:
      found[name] = f'{name} ({folder})'
  return found


def scores(run: history.History, path: pathlib.Path) -> list[dict[str, Any]]:
  """Return the sealed scores of this run's policies and of compared runs.

  Everything except the name is None for a policy that was not run.

  Args:
    run: The history of the run.
    path: Its directory.
  """
  final = run.find(records.Final)
  if final is None:
    return []
  called = names_of(run) | names_of_compared(path)
  ends = [end for s in final.scores.values() if s for end in (s.low, s.high)]
  scale = svg.Scale.over(ends, pad=0.15, least=0.05)

  def strip(name: str, score: records.Estimate) -> svg.Strip:
    kind = 'keep' if name in OWN and name != 'base' else 'other'
    return svg.strip(
        scale,
        f'{name}: {numerals.share(score.value)}',
        ('whisker', 'whisker', (score.low, score.high)),
        ('dot', f'dot {kind}', score.value),
    )

  first = [name for name in _ORDER if name in final.scores]
  return [
      {
          'name': called.get(name, name),
          'value': (score := final.scores[name]),
          'strip': score and strip(name, score),
          'gain': final.gains.get(name),  # Over the base policy.
          # The evolved policy's gain over this one.
          'behind': final.evolved_over.get(name),
          'tokens': final.compute.get(name),
      }
      for name in dict.fromkeys((*first, *final.scores))
  ]


def _against(final: records.Final) -> str:
  """Return the scores of compared runs that show the gain of evolving."""
  others = [
      f'{numerals.share(other.value)} for {what}'
      for name, what in (
          ('seed', 'a run of the seed harness alone'),
          ('reference', 'one of the reference recipe'),
      )
      if (other := final.scores.get(name))
  ]
  return f', against {" and ".join(others)}' if others else ''


def regret(final: records.Final) -> dict[str, Any] | None:
  """Return how far the evolved policy is behind the best compared one.

  Returns:
    JSON values: the name of the best policy of another run, the share that it
    solves more (negative if the evolved one is ahead) with its 95 % interval
    over problems, and its total tokens; None without such a policy.
  """
  rivals = {
      name: score.value
      for name, score in final.scores.items()
      if score and name in final.evolved_over and name not in OWN
  }
  if not rivals:
    return None
  best = max(rivals, key=lambda name: rivals[name])
  behind = final.evolved_over[best]
  compute = final.compute.get(best)
  return {
      'best': best,
      'value': -behind.value,
      'low': -behind.high,
      'high': -behind.low,
      'tokens': compute and compute.total,
  }


def _end(trial: history.Trial) -> str:
  """Return the end of a sentence that counts trials like this one."""
  found = trial.verify
  ahead = found and found.threshold and found.e_value >= found.threshold
  if trial.status == 'discard' and ahead:
    if found.alerts:
      return 'ahead, but raised a new critical alert'
    return 'ahead, but not shown to be so on perturbed problems'
  if trial.status == 'superseded':
    if not trial.races:
      hopeless = trial.queued and trial.queued.hopeless
      if hopeless:
        return 'left waiting, because the predicted gain could hardly be proved'
      return 'still waiting for a race'  # `records.Queued` says for what.
    if ahead:
      return 'ahead while an earlier change was still compared with its shadow'
  return _ENDS.get(trial.status, 'failed')


def why_none(run: history.History) -> str:
  """Return why no change was kept, in one sentence.

  Returns:
    The sentence; '' if a change was kept or may still be tried.
  """
  tried = run.tried
  if run.kept:
    return ''
  if not tried:
    if not run.find(records.Final):
      return ''
    notes = [h.note for h in run.all(records.Hypothesize) if not h.proposer]
    why = next((f': {note}' for note in reversed(notes) if note), ' to the end')
    return f'Nothing was kept: no change was tried{why}.'
  counts = collections.Counter(map(_end, tried))
  parts = [
      f'{count} {"was" if count == 1 else "were"} {end}'
      for end, count in counts.items()
  ]
  changes = numerals.counted(len(tried), 'change')
  if len(parts) == 1:
    subject = f'the {changes} were' if len(tried) > 1 else 'the only change was'
    found = f'Nothing was kept: {subject} {next(iter(counts))}'
  else:
    found = f'Nothing was kept: of {changes}, {"; ".join(parts)}'
  if seen := [trial.mde for trial in tried if trial.mde]:
    # Changes that never raced have no detectable effect. The maximum is that of
    # the round with the widest spread.
    gain = numerals.points(max(seen)).removeprefix('+')
    raced = numerals.counted(len(seen), 'change')
    found += (
        f'. In the {raced} that raced, a gain of {gain} points would have been'
        ' seen with a probability of 80 % or more'
    )
  return f'{found}.'


def _fault(run: history.History) -> str:
  """Return the fault that ended a run, and what to change; '' if none did."""
  diagnosis = run.find(records.Diagnose)
  found = diagnosis.findings if diagnosis else ()
  critical = [f for f in found if f.severity == 'critical' and f.remedies]
  if not critical:
    return ''
  settings = dict.fromkeys(r.setting for f in critical for r in f.remedies)
  return (
      f'Ended at a fault that only you can repair: {critical[0].text}. To'
      f' change: {", ".join(settings)}.'
  )


def verdict(run: history.History, running: bool) -> str:
  """Return a summary of the run in one sentence."""
  tried = run.tried
  so_far = f'{len(run.kept)} of {numerals.counted(len(tried), "change")} kept'
  if unchecked := sum(bool(run.unchecked(trial)) for trial in run.kept):
    so_far += f' ({unchecked} with the horizon not checked)'
  if run.added:
    so_far += f', {numerals.counted(len(run.added), "diagnostic")} added'
  fault = _fault(run) if run.ended == history.FAULT else ''
  if fault:
    so_far = f'{fault} {so_far}'
  if final := run.find(records.Final):
    base, evolved = final.scores['base'], final.scores['evolved']
    if fault and not run.races:
      return (
          f'{fault} Nothing was raced; on sealed problems the policy solves'
          f' {numerals.share(evolved.value)}'
          f' [{100 * evolved.low:.1f}, {100 * evolved.high:.1f}].'
      )
    what = 'the race' if run.kept else 'training without a change'
    return (
        f'{so_far}; on sealed problems {what} takes the base policy'
        f' from {numerals.share(base.value)} to {numerals.share(evolved.value)}'
        f' [{100 * evolved.low:.1f}, {100 * evolved.high:.1f}]'
        f'{_against(final)}. {why_none(run)}'
    ).rstrip()
  if run.kept:
    gained = numerals.points(run.levels.get(run.head, 0.0))
    so_far += f', {gained} points by the sum of their effects'
  if run.ended:
    return f'Ended ({run.ended}) without sealed scores: {so_far}.'
  begun = 'Running' if running else 'Stopped; the same command continues'
  if not tried and not run.added:
    return f'{begun}: no change has been decided yet.'
  return f'{begun}: {so_far}.'
