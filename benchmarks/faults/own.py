"""The system 'evojax': an evolving run, and the answer from its ledger.

    python -m benchmarks.faults.own JOB

It runs the config of the job for as many rounds as the tokens allow. The named
causes are the intervention classes of the kept changes. If none was kept, they
are those of the remedies that were tried or, without any, those that the last
alerts call for. It names 'grader' if a change that had passed the race failed
on the evaluator's own problems, or if the gain in rollouts is missing from the
sealed scores. It names 'outside' if a finding calls for a change that no
harness can make, or if nothing was kept and nothing was learned.
"""

import collections
from collections.abc import Sequence
import json
import pathlib
import sys
from typing import Any

from benchmarks.faults import jobs
from benchmarks.faults import runner
from evojax import config as config_lib
from evojax.evolve.propose import remedies
from evojax.harness import surface as surface_lib
from evojax.ledger import history as history_lib
from evojax.ledger import records
from evojax.runtime import run_files

_ROUNDS = 99  # More than the tokens pay for: the budget ends the run.
# Part of the gate's reason if a gain is not confirmed.
_REFUSED = 'of the gain'
# Largest excess of the rollouts' solved share, and of its gain, over the upper
# ends of the sealed intervals.
_NOT_SEALED = 0.10
_LEARNS = 0.05  # Least rise of the solved share in a run that learns.
# A small domain has fewer problems.
_SEALED = {'eval.problems': 128, 'eval.samples': 4}


def answer(
    history: history_lib.History,
    policy: pathlib.Path,
    values: dict[str, Any],
    surface: surface_lib.Surface,
) -> dict[str, Any]:
  """Return the answer that follows from a finished run.

  Args:
    history: The run's history.
    policy: Directory of the trained policy.
    values: Flat config under the run's last harness.
    surface: The values that a harness of the run may change.
  """
  trials = [t for t in history.trials if t.verify]
  kept = [t for t in trials if t.status == 'keep' and t.delta]
  since, tokens = None, history.base.sampled_tokens if history.base else 0
  first = kept[0].races[-1].round if kept and kept[0].races else None
  for race in history.races:
    tokens += sum(arm.sampled_tokens for arm in race.arms)
    if race.round == first:
      since = tokens
  found = dict(tokens=tokens, since=since, policy=str(policy), values=values)
  diagnoses = history.all(records.Diagnose)
  loud = [f for d in diagnoses for f in d.findings if f.severity != 'note']
  # After a repair, what is left may be less than critical. A warning counts
  # only if it is still there at the end: one of many diagnoses may err.
  newest = diagnoses[-1].findings if diagnoses else ()
  outside = [
      remedy
      for finding in loud
      if finding.severity == 'critical' or (not kept and finding in newest)
      for remedy in remedies.outside(surface, finding)
  ]
  if outside:
    graders = any(remedy.setting == 'grader' for remedy in outside)
    causes = ['grader', 'outside'] if graders else ['outside']
    return dict(
        found, status='named', causes=causes, since=_when(history, surface)
    )
  refused = any(_REFUSED in why for t in trials for why in t.verify.reasons)
  if refused or _gap(history) > _NOT_SEALED:
    return dict(found, status='named', causes=['grader'], since=since or tokens)
  if kept:
    causes = _first(t.intervention_class for t in kept)
    return dict(found, status='repaired', causes=causes)
  if trials and _risen(history) < _LEARNS:
    return dict(found, status='named', causes=['outside'], since=tokens)
  causes = _first(t.intervention_class for t in trials if _is_remedy(t, loud))
  causes = causes or _first(
      c for m in _alerts(diagnoses[-1:]) for c in m.calls_for
  )
  status = 'named' if causes else 'nothing'
  return dict(found, status=status, causes=causes)


def _when(history: history_lib.History, surface: surface_lib.Surface) -> int:
  """Return the tokens before the first finding that no harness can repair."""
  for diagnosis in history.all(records.Diagnose):
    if any(remedies.outside(surface, f) for f in diagnosis.findings):
      before = [r for r in history.races if r.round < diagnosis.round]
      arms = [arm for race in before for arm in race.arms]
      return history.base.sampled_tokens + sum(a.sampled_tokens for a in arms)
  return 0


def _is_remedy(
    trial: history_lib.Trial, found: Sequence[records.Finding]
) -> bool:
  """Return whether a finding called for a trial."""
  return trial.hypothesize.trigger in {finding.check for finding in found}


def _gap(history: history_lib.History) -> float:
  """Return how much more the policy's rollouts solve than its sealed score.

  The smaller of the differences in level and in gain counts: training may ask
  easier problems, or start under a limit that the sealed score does not have.
  The upper ends of the sealed intervals count, since few sealed problems may be
  harder by chance.
  """
  final = history.find(records.Final)
  late = _late(history)
  if not (late and final and history.base and history.base.outcome):
    return 0.0
  gain = _risen(history) - final.gains['evolved'].high
  return min(late - final.scores['evolved'].high, gain)


def _late(history: history_lib.History) -> float:
  """Return the solved share of the policy's last rollouts; 0 without any.

  Only rollouts under its last harness count: another one may ask other
  problems.
  """
  if not (history.races and history.versions):
    return 0.0
  late = [
      arm.outcome[-1]
      for arm in history.races[-1].arms
      if arm.harness == history.versions[-1].harness and arm.outcome
  ]
  return sum(late) / len(late) if late else 0.0


def _risen(history: history_lib.History) -> float:
  """Return the rise of the solved share over the run's rollouts."""
  late = _late(history)
  if not (late and history.base and history.base.outcome):
    return 0.0
  return late - history.base.outcome[0]


def _alerts(diagnoses: Sequence[records.Diagnose]) -> list[records.Measure]:
  """Return the alerts of some diagnoses."""
  measures = (m for d in diagnoses for m in d.measures)
  return [m for m in measures if m.level in ('warn', 'critical')]


def _first(names: Any) -> list[str]:
  """Return the most frequent names, as many as may be named."""
  return [
      n for n, _ in collections.Counter(names).most_common(jobs.MOST_CAUSES)
  ]


def main(path: str) -> None:
  job = json.loads(pathlib.Path(path).read_text())
  given = pathlib.Path(job['config'])
  config = config_lib.from_mapping(json.loads(given.read_text()))
  changed = config_lib.with_fields(
      config,
      {
          'evolve.rounds': _ROUNDS,
          'evolve.tokens': job['tokens'],
          **_SEALED,
          'eval.problems': min(_SEALED['eval.problems'], config.eval.problems),
      },
  )
  run = pathlib.Path(job['workdir']) / 'run'
  mine = pathlib.Path(job['workdir']) / 'config.json'
  runner.start('evolve', changed, mine, run)
  history = history_lib.read(run)
  values = config_lib.flatten(changed)
  surface = runner.surface_of(changed)
  if history.versions:
    sha256 = history.versions[-1].harness
    overlay = json.loads(
        (run / run_files.HARNESSES / sha256 / 'overlay.json').read_text()
    )
    values = config_lib.flatten(surface.apply(changed, overlay))
  said = answer(history, run / 'policy', values, surface)
  summary = json.loads((run / run_files.SUMMARY).read_text())
  # Includes backtests and scores; without a sealed score, no sum exists.
  compute = summary['compute'].get('evolved', {})
  said['tokens'] = max(said['tokens'], compute.get('total', 0))
  pathlib.Path(job['answer']).write_text(json.dumps(said))


if __name__ == '__main__':
  main(sys.argv[1])
