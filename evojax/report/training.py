"""The page of a run of --mode=train: curves, scores, rollouts, time, config."""

from collections.abc import Mapping, Sequence
import math
import pathlib
from typing import Any

from evojax import config as config_lib
from evojax.report import curves
from evojax.report import rollouts
from evojax.report import state
from evojax.report import svg
from evojax.runtime import numerals
from evojax.runtime import run_files

_SIDES = (('before', 'base policy', 'other'), ('after', 'trained', 'keep'))


def _scores(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
  """Return the scores before and after by split, from the summary."""
  found = []
  for split, report in (summary.get('gain') or {}).items():
    sides = [report[side] for side, _, _ in _SIDES]
    ends = [side[end] for side in sides for end in ('low', 'high')]
    scale = svg.Scale.over(ends, pad=0.15, least=0.05)
    rows = [
        {
            **report[side],
            'name': name,
            'passes': report[side]['pass_at_k'].items(),
            'strip': svg.strip(
                scale,
                f'{name}: {numerals.share(report[side]["value"])}',
                (
                    'whisker',
                    'whisker',
                    (report[side]['low'], report[side]['high']),
                ),
                ('dot', f'dot {kind}', report[side]['value']),
            ),
        }
        for side, name, kind in _SIDES
    ]
    found.append({**report, 'split': split, 'rows': rows})
  return found


def _verdict(
    scores: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    finished: bool,
) -> str:
  """Return a summary of the training in one sentence."""
  for report in scores:
    before, after, gain = (report[n] for n in ('before', 'after', 'gain'))
    interval = gain['low'], gain['high']
    return (
        f'{report["problems"]:,} {report["split"]} problems: from'
        f' {numerals.share(before["value"])} to'
        f' {numerals.share(after["value"])} solved, a gain of'
        f' {numerals.effect(gain["value"], interval)} points.'
    )
  solved = [r['outcome'] for r in rows if r.get('outcome') is not None]
  if not solved:
    return 'The run has no steps.' if finished else 'No step has ended yet.'
  smooth = curves.smooth(solved)
  return (
      f'In training, from {numerals.share(smooth[0])} to'
      f' {numerals.share(smooth[-1])} of the rollouts were solved. The policy'
      ' is scored at the end.'
  )


def context(path: pathlib.Path, running: bool) -> dict[str, Any]:
  """Return all variables of the template.

  Args:
    path: The run's directory; any of its files may be missing.
    running: Whether a process works on the run.
  """
  saved = state.read_json(path / run_files.CONFIG, {}).get('config', {})
  config = config_lib.flatten(saved) if isinstance(saved, dict) else {}
  summary = state.read_json(path / run_files.SUMMARY, {})
  starts = state.read_json(path / run_files.MANIFEST, [])
  rows = curves.read(path)
  done = max((row['step'] for row in rows), default=0)
  line = curves.Line('this training', 'lineage', rows)
  groups = curves.time_groups(rows)
  # A row with only the base policy's score has no tokens.
  tokens = [row['sampled_tokens'] for row in rows if row.get('sampled_tokens')]
  scores = _scores(summary)
  steps = config.get('steps', done)
  where = state.of_training(steps, done, summary, running)
  return {
      'name': state.title(path, config),
      'state': where,
      'verdict': _verdict(scores, rows, where.kind == 'finished'),
      'scores': scores,
      'rows': rows,
      'tokens': sum(tokens),
      'tokens_per_step': sum(tokens) / max(len(tokens), 1),
      'seconds': math.fsum(seconds for _, seconds, _ in groups),
      'curves': curves.curves([line]),
      'time_groups': groups,
      'time_shares': curves.time_shares(rows),
      'sampled': rollouts.over_steps(path, '.'),
      'gamed': rollouts.gamed(path, '.', ''),
      'config': config,
      'starts': starts,
  }
