"""Evaluates diagnoses of recorded logs: recall, precision, false alarms.

    python -m benchmarks.diagnose_judge --logs=DIR [--split=judging] [--verbose]
        [--llm_url=http://HOST:PORT/v1 --llm_model=NAME]

Reads the logs of `benchmarks.diagnose_logs`. Prints how many faults were named,
how many of all findings concern the log's fault or its consequences, how many
clean logs raised an alarm, and how many checks lacked data. For comparison it
prints the same for thresholds from the literature and, if it is installed, for
rlwatch (PyPI), which monitors a run in progress; with --llm_url, also for a
language model that reads the same logs, see `diagnose_llm`. Synthetic logs of
agents have rows of their own. Rules and thresholds must be chosen on the split
'tuning' only.
"""

import argparse
from collections.abc import Callable
import importlib
import importlib.util
import json
import math
import pathlib
import tempfile
from typing import Any

import numpy as np

from benchmarks import diagnose_llm
from benchmarks import diagnose_logs
from evojax.diagnosis import arguments
from evojax.diagnosis import examine
from evojax.diagnosis import form
from evojax.diagnosis import readers
from tests.diagnosis import agents_made


def ours(run: Any) -> tuple[set[str], int]:
  """Return the names of our findings, and how many checks lacked data."""
  found = examine.examine(run)
  names = {f.check for f in found.findings if f.severity != 'note'}
  return names, len(found.unknown)


def _mean(run: Any, name: str) -> float:
  """Return a metric's mean over the last third; NaN if it is not logged."""
  try:
    _, values = run.series(name)
  except form.NotLogged:
    return math.nan
  return float(values[-max(len(values) // 3, 1) :].mean())


def literature(run: Any) -> tuple[set[str], int]:
  """Apply the alerts of arXiv:2606.03108 to the last third of a run.

  Each alert compares one metric with one threshold, as in the paper's table.
  """
  found = set()
  if _mean(run, 'dead') > 0.5:
    found.add('dead_groups')
  if _mean(run, 'entropy') < 0.1 or _mean(run, 'mean_logprob') > -0.1:
    found.add('entropy_collapse')
  if _mean(run, 'truncated') > 0.15:
    found.add('truncation')
  if _mean(run, 'kl') > 0.05:
    found.add('kl_explosion')
  if _mean(run, 'n_turns') < 5 or _mean(run, 'edited') < 0.6:
    found.add('gives_up')
  if _mean(run, 'n_turns') > 50:
    found.add('echo_trap')
  if _mean(run, 'calls_failed') > 0.15:
    found.add('malformed_calls')
  rows = run.rollouts
  if 'format_ok' in rows and run.late(rows)['format_ok'].mean() < 0.7:
    found.add('format_bottleneck')
  if {'reward', 'length'} <= set(rows):
    late = run.late(rows)
    if late['reward'].std() > 1e-6 and late['length'].std() > 1e-6:
      if np.corrcoef(late['reward'], late['length'])[0, 1] > 0.3:
        found.add('length_gaming')
  if {'reward', 'outcome'} <= set(rows):
    by = rows.groupby('step')[['reward', 'outcome']].mean()
    third = max(len(by) // 3, 1)
    rise = by[-third:].mean() - by[:third].mean()
    if rise['reward'] > 0.05 and rise['outcome'] < 0.01:
      found.add('reward_hacking')
  return found, 0


# Detector of rlwatch -> the checks with the same meaning.
_RLWATCH = {
    'entropy_collapse': 'entropy_collapse',
    'kl_explosion': 'kl_explosion',
    'reward_hacking': 'reward_hacking',
    'reward_mean_drift': 'reward_hacking',
    'loss_nan': 'not_finite',
    'gradient_norm_spike': 'gradient_spike',
    'advantage_variance': 'advantage_spike',
    'advantage_variance_spike': 'advantage_spike',
}


def rlwatch(run: Any) -> tuple[set[str], int]:
  """Return the findings of rlwatch (PyPI), with its defaults, on a run."""
  config = importlib.import_module('rlwatch.config')
  detectors = importlib.import_module('rlwatch.detectors')

  suite = detectors.DetectorSuite(config.RLWatchConfig())
  steps = run.steps.set_index('step') if len(run.steps) else None
  rows = dict(list(run.rollouts.groupby('step'))) if len(run.rollouts) else {}
  found = set()
  for step in map(int, run.timeline):
    logged = {}
    if steps is not None and step in steps.index:
      values = steps.loc[step].dropna()
      for ours_, theirs in (
          ('entropy', 'entropy'),
          ('kl', 'kl_divergence'),
          ('loss', 'loss'),
          ('grad_norm', 'grad_norm'),
      ):
        if ours_ in values:
          logged[theirs] = float(values[ours_])
    batch = rows.get(step)
    if batch is not None and 'reward' in batch:
      rewards = batch['reward'].dropna().to_numpy()
      logged |= {
          'reward_mean': float(rewards.mean()),
          'reward_std': float(rewards.std()),
          'rewards': rewards,
      }
      if 'advantage' in batch:
        logged['advantage_std'] = float(batch['advantage'].std())
    for alert in suite.check_step(step, **logged):
      found.add(_RLWATCH.get(alert.detector, alert.detector))
  return found, 0


def judge(
    logs: pathlib.Path,
    split: str,
    verbose: bool,
    llm: diagnose_llm.LanguageModel | None = None,
) -> None:
  """Print how well each system names the faults in the logs of a split."""
  systems = {'evojax-diagnose': ours, 'literature': literature}
  if llm:
    systems[f'language model {llm.model}'] = llm
  if importlib.util.find_spec('rlwatch'):
    systems['rlwatch'] = rlwatch
  else:
    print('rlwatch is not installed: left out')
  header = (
      'system',
      'logs',
      'clean',
      'named',
      'precision',
      'alarm on clean',
      'cannot tell',
  )
  rows = []
  for format_ in ('trl', 'verl'):
    names = [
        name
        for name, (_, of, _) in diagnose_logs.jobs().items()
        if of == split and (logs / format_ / name).is_dir()
    ]
    for given in (False, True):
      if given and format_ != 'trl':
        continue
      runs = {}
      for name in names:
        kind = diagnose_logs.jobs()[name][0]
        run = _read(logs / format_ / name, format_, given=given)
        runs[name] = run, diagnose_logs.FAULTS.get(kind)
      for system, apply in systems.items():
        if given and system != 'evojax-diagnose':
          continue
        label = f'{system}, {format_}' + (', settings known' if given else '')
        rows.append((label, *_score(runs, apply, verbose)))
  rows += _agents(logs, split, systems, verbose)
  table = [header, *rows]
  widths = [max(len(str(row[i])) for row in table) for i in range(len(header))]
  for row in table:
    print('  '.join(str(x).ljust(w) for x, w in zip(row, widths, strict=True)))


def _read(folder: pathlib.Path, format_: str, *, given: bool) -> Any:
  """Return the run in a folder; its settings are known only if `given`."""
  saved = folder / arguments.FILE
  if given:
    # Older logs have no file of TRL's own with the arguments.
    values = folder / 'training_args.json'
    settings = {} if saved.is_file() else _settings(values)
    return readers.read(folder, format_, {}, settings)
  with tempfile.TemporaryDirectory() as others:
    for file in folder.iterdir():
      if file != saved:
        pathlib.Path(others, file.name).symlink_to(file.absolute())
    return readers.read(pathlib.Path(others), format_)


def _agents(
    logs: pathlib.Path,
    split: str,
    systems: dict[str, Callable[[Any], Any]],
    verbose: bool,
) -> list[tuple[str, ...]]:
  """Return the rows of the synthetic logs of agents, by format."""
  rows = []
  for format_ in agents_made.VOCABULARIES:
    runs = {}
    for name, log in diagnose_logs.agent_logs().items():
      folder = logs / 'agents' / name
      if (log.format, log.split) == (format_, split) and folder.is_dir():
        run = readers.read(folder, format_)
        runs[name] = run, agents_made.FAULTS.get(log.fault)
    for system, apply in systems.items():
      if runs:
        label = f'{system}, agents, {format_}'
        rows.append((label, *_score(runs, apply, verbose)))
  return rows


def _settings(path: pathlib.Path) -> dict[str, float]:
  """Return a trainer's arguments in the form that `--set` takes."""
  values = json.loads(path.read_text())
  names = {
      'max_completion_length': 'max_tokens',
      'beta': 'kl_coef',
      'max_steps': 'total_steps',
  }
  kept = ('learning_rate', 'warmup_steps', 'temperature', 'max_grad_norm')
  return {
      names.get(key, key): float(value)
      for key, value in values.items()
      if key in names or key in kept
  }


def _score(
    runs: dict[str, tuple[Any, Any]],
    apply: Callable[[Any], Any],
    verbose: bool,
) -> tuple[str, ...]:
  """Return the columns of one system.

  Args:
    runs: Name -> (run, its fault or None).
    apply: The system, called with a run.
    verbose: Whether to print a line per log.
  """
  named = faulty = right = all_ = alarms = clean = unknown = 0
  for name, (run, fault) in runs.items():
    found, cannot = apply(run)
    true = set(fault.finds) | set(fault.may) if fault else set()
    right += len(found & true)
    all_ += len(found)
    unknown += cannot
    if fault is None:
      clean += 1
      alarms += bool(found)
    else:
      faulty += 1
      named += bool(found & set(fault.finds))
    if verbose:
      wrong = ', '.join(sorted(found - true)) or '-'
      print(f'{name}: {", ".join(sorted(found)) or "-"}; wrong: {wrong}')
  return (
      str(len(runs)),
      str(clean),
      f'{named}/{faulty}',
      f'{right}/{all_}',
      f'{alarms}/{clean}',
      f'{unknown / max(len(runs), 1):.1f} checks a log',
  )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
      '--logs',
      type=pathlib.Path,
      required=True,
      help='directory that benchmarks.diagnose_logs wrote',
  )
  parser.add_argument(
      '--split',
      choices=tuple(diagnose_logs.SPLITS),
      default='judging',
      help='rules and thresholds may be chosen on tuning only',
  )
  parser.add_argument(
      '--verbose', action='store_true', help='print a line per log'
  )
  parser.add_argument(
      '--llm_url',
      default='',
      help='a language model to compare with: its URL up to /v1',
  )
  parser.add_argument('--llm_model', default='', help='name of that model')
  parser.add_argument(
      '--llm_key_env', default='', help='environment variable with its key'
  )
  parser.add_argument(
      '--llm_tokens',
      type=int,
      default=8000,
      help='approximate number of tokens of each log that it is shown',
  )
  parser.add_argument(
      '--llm_cache',
      type=pathlib.Path,
      default=pathlib.Path('~/.cache/evojax/diagnose_llm').expanduser(),
      help='directory of its replies',
  )
  given = parser.parse_args()
  if bool(given.llm_url) != bool(given.llm_model):
    parser.error('--llm_url and --llm_model belong together')
  llm = None
  if given.llm_url:
    llm = diagnose_llm.LanguageModel(
        url=given.llm_url,
        model=given.llm_model,
        key_env=given.llm_key_env,
        tokens=given.llm_tokens,
        cache=given.llm_cache,
    )
  judge(given.logs, given.split, given.verbose, llm)


if __name__ == '__main__':
  main()
