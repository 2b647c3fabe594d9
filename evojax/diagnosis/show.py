"""A diagnosis as text for a terminal, and as JSON."""

from collections.abc import Callable, Mapping, Sequence
import json
import pathlib
from typing import Any

from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.report import svg
from evojax.runtime import durable

# Possible causes of a symptom that a terminal shows; the page has all.
_MOST = 3


def lines(run: form.Run, diagnosis: findings.Diagnosis) -> list[str]:
  """Return a diagnosis as lines, with control characters made visible."""
  found = []
  for i, finding in enumerate(diagnosis.findings, 1):
    read = len(finding.rows)
    rollouts = f'      {read} rollout{"s" * (read > 1)}' if read else ''
    found.append(_headline(i, vars(finding)) + rollouts)
    if finding.change:
      replay = f'      {finding.replay}' if finding.replay else ''
      found.append(_change(finding.change) + replay)
    found += [f'  {"may be":<9} {c.text} ({c.look})' for c in likely(finding)]
  if not diagnosis.findings or diagnosis.verdict != 'findings':
    found.append(diagnosis.summary)
  if diagnosis.unknown:
    missing = dict.fromkeys(n for u in diagnosis.unknown for n in u.missing)
    shared = f'not logged: {", ".join(missing)}'
    # Checks whose data no known option would log share the last line.
    reason = lambda each: shared if each.missing else each.why
    found += [
        f'  cannot tell: {", ".join(each.check for each in alike)} ({why})'
        for why, alike in by_reason(diagnosis.unknown, reason)
    ]
  found += [f'  note: {note}' for note in run.notes]
  return [svg.visible(line) for line in found]


def by_reason(
    unknown: Sequence[findings.Unknown],
    reason: Callable[[findings.Unknown], str],
) -> list[tuple[str, list[findings.Unknown]]]:
  """Group checks by reason; those whose data an option would log come first."""
  found: dict[str, list[findings.Unknown]] = {}
  for each in sorted(unknown, key=lambda each: bool(each.missing)):
    found.setdefault(reason(each), []).append(each)
  return list(found.items())


def brief(found: Sequence[Mapping[str, Any]]) -> list[str]:
  """Return findings of `to_json` as lines: what is wrong and what to change."""
  said = []
  for i, finding in enumerate(found, 1):
    said.append(_headline(i, finding))
    if finding['change']:
      said.append(_change(finding['change']))
  return [svg.visible(line) for line in said]


def _headline(number: int, finding: Mapping[str, Any]) -> str:
  since, p = finding['since'], finding['p']
  when = '' if since is None else f' since step {since}'
  sure = '' if p is None else f' (p {p_value(p)})'
  return f'{number} {finding["severity"]:<9} {finding["text"]}{when}{sure}'


def _change(text: str) -> str:
  return f'  {"change":<9} {text}'


def likely(finding: findings.Finding) -> list[findings.Cause]:
  """Return the causes to look at first."""
  return [c for c in finding.causes if not c.unlikely_by][:_MOST]


def p_value(p: float | None) -> str:
  """Return a p-value as '.003' or '< .001'; '' if there is none."""
  if p is None:
    return ''
  if p < 0.001:
    return '< .001'
  return f'{p:.3f}'.lstrip('0')


def to_json(run: form.Run, diagnosis: findings.Diagnosis) -> dict[str, Any]:
  """Return the JSON: findings with evidence, and checks that cannot tell."""
  found = findings.plain(diagnosis)
  for finding, plain in zip(diagnosis.findings, found['findings'], strict=True):
    plain['rollouts'] = [rollout(run, row) for row in finding.rows]
    del plain['rows']
  return {
      'path': str(run.path),
      'format': run.format,
      'steps': run.n_steps,
      'rollouts': len(run.rollouts),
      'settings': findings.plain_mapping(run.settings),
      'notes': list(run.notes),
      **found,
  }


def rollout(run: form.Run, row: int) -> dict[str, Any]:
  """Return the known values of one rollout."""
  values = run.rollouts.loc[row]
  hidden = (
      'text_id',
      'prompt_id',
      'characters',
      'first_call',
      'all_calls',
  )
  return {
      name: findings.plain(value)
      for name, value in values.items()
      if name not in hidden and value == value  # Not NaN.
  }


def write_json(path: pathlib.Path, value: dict[str, Any]) -> None:
  """Write the JSON atomically."""
  text = json.dumps(value, indent=1, allow_nan=False, ensure_ascii=True)
  durable.write_atomic(path, text.encode())
