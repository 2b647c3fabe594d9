"""The system 'evojax': a run that evolves, and what its ledger says.

    python -m benchmarks.faults.own JOB

It runs the config of the job with as many rounds as the tokens allow. The
causes are the intervention classes of the changes that it kept; where nothing
was kept, those that its last alerts call for. It says 'grader' where the
evaluator's own problems refused a change that had passed the race, or where
what rollouts gained is not in the sealed scores; and 'outside' where nothing
helped and the policy still does not learn.
"""

import collections
from collections.abc import Sequence
import json
import pathlib
import subprocess
import sys
from typing import Any

from benchmarks.faults import jobs
from evojax import config as config_lib
from evojax.harness import surface as surface_lib
from evojax.ledger import history as history_lib
from evojax.ledger import records

_USED = 0.5  # Part of the limit that a completion uses, about.
_REFUSED = 'of the gain'  # What the gate says of a gain that is not there.
# Share solved that rollouts gained more than the sealed scores.
_NOT_SEALED = 0.10
_SEALED = dict(problems=128, samples=4)


def rounds_for(config: Any, tokens: int) -> int:
  """Return the rounds that sample about so many tokens, one at least."""
  grpo, e = config.grpo, config.evolve
  step = grpo.prompts * grpo.group_size * config_lib.token_limit(config) * _USED
  arms = (1 + e.candidates) * e.pairs
  return max(1, int((tokens / step - e.first_updates) / (arms * e.updates)))


def answer(
    history: history_lib.History, policy: pathlib.Path, values: dict[str, Any]
) -> dict[str, Any]:
  """Return what a finished run says, in the shape of an answer."""
  trials = [t for t in history.trials if t.verify]
  kept = [t for t in trials if t.status == 'keep' and t.delta]
  since, tokens = None, history.base.sampled_tokens if history.base else 0
  first = kept[0].races[-1].round if kept and kept[0].races else None
  for race in history.races:
    tokens += sum(arm.sampled_tokens for arm in race.arms)
    if race.round == first:
      since = tokens
  found = dict(tokens=tokens, since=since, policy=str(policy), values=values)
  refused = any(_REFUSED in why for t in trials for why in t.verify.reasons)
  if refused or _gap(history) > _NOT_SEALED:
    return dict(found, status='named', causes=['grader'], since=since or tokens)
  causes = _first(t.intervention_class for t in kept)
  if causes:
    return dict(found, status='repaired', causes=causes)
  diagnoses = [t.diagnose for t in history.trials if t.diagnose]
  alerts = _alerts(diagnoses[-1:])
  if any(m.name == 'slow_learning' for m in alerts) and trials:
    return dict(found, status='named', causes=['outside'], since=tokens)
  causes = _first(c for m in alerts for c in m.calls_for)
  status = 'named' if causes else 'nothing'
  return dict(found, status=status, causes=causes)


def _gap(history: history_lib.History) -> float:
  """Return how much more the policy's rollouts gained than its sealed score."""
  final = history.find(records.Final)
  arms = history.races[-1].arms if history.races else ()
  late = [a.outcome[-1] for a in arms if a.role == 'incumbent' and a.outcome]
  if not (late and final and history.base and history.base.outcome):
    return 0.0
  own = sum(late) / len(late) - history.base.outcome[0]
  return own - final.gains['evolved'].value


def _alerts(diagnoses: Sequence[records.Diagnose]) -> list[records.Measure]:
  """Return the alerts of some diagnoses."""
  measures = (m for d in diagnoses for m in d.measures)
  return [m for m in measures if m.level in ('warn', 'critical')]


def _first(names: Any) -> list[str]:
  """Return the commonest names, as many as may be named."""
  return [
      n for n, _ in collections.Counter(names).most_common(jobs.MOST_CAUSES)
  ]


def main(path: str) -> None:
  job = json.loads(pathlib.Path(path).read_text())
  given = pathlib.Path(job['config'])
  config = config_lib.from_mapping(json.loads(given.read_text()))
  changed = config.copy_and_resolve_references()
  with changed.unlocked():
    changed.evolve.rounds = rounds_for(config, job['tokens'])
    changed.eval.update(_SEALED)
  run = pathlib.Path(job['workdir']) / 'run'
  mine = pathlib.Path(job['workdir']) / 'config.json'
  mine.write_text(config_lib.to_json(changed))
  subprocess.run(
      [sys.executable, '-m', 'benchmarks.faults.runner', 'evolve']
      + [str(mine), str(run)],
      check=True,
  )
  history = history_lib.read(run)
  values = config_lib.flatten(changed)
  surface = surface_lib.recipe()
  if history.versions:
    sha256 = history.versions[-1].harness
    overlay = json.loads(
        (run / 'harness' / sha256 / 'overlay.json').read_text()
    )
    values = config_lib.flatten(surface.apply(changed, overlay))
  said = answer(history, run / 'policy', values)
  summary = json.loads((run / 'summary.json').read_text())
  # With backtests and scores; without a sealed score nobody added them up.
  compute = summary['compute'].get('evolved', {})
  said['tokens'] = max(said['tokens'], compute.get('total', 0))
  pathlib.Path(job['answer']).write_text(json.dumps(said))


if __name__ == '__main__':
  main(sys.argv[1])
