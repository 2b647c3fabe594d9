"""Jobs of systems, the evaluator's measurements of them, and the tables."""

import collections
from collections.abc import Iterable, Mapping, Sequence
from concurrent import futures
import json
import pathlib
import shlex
import shutil
import statistics
import subprocess
import sys
import threading
from typing import Any

from benchmarks import json_lines
from benchmarks.faults import creep
from benchmarks.faults import jobs
from benchmarks.faults import recording
from benchmarks.faults import runner
from benchmarks.faults import settings as settings_lib
from benchmarks.faults import verdicts
from evojax import config as config_lib

_SHIPPED = {'evojax': 'own', 'diagnose': 'diagnosed'}  # Modules beside this.
# By folder: jobs of a setting share the scores of its base policy.
_scoring: dict[pathlib.Path, threading.Lock] = {}
Row = Mapping[str, Any]


def systems(given: Sequence[str]) -> dict[str, list[str]]:
  """Return the command of each system by name.

  Raises:
    ValueError: If an entry is not of the form NAME=COMMAND.
  """
  found = {}
  for text in given:
    name, is_, command = text.partition('=')
    if text in _SHIPPED:
      command = f'{sys.executable} -m benchmarks.faults.{_SHIPPED[text]}'
    elif not (name.isidentifier() and is_ and command.strip()):
      known = ', '.join(map(repr, _SHIPPED))
      raise ValueError(f'--system={text!r}: {known} or NAME=COMMAND')
    found[name] = shlex.split(command)
    if shutil.which(found[name][0]) is None:
      raise ValueError(f'--system={text!r}: no program {found[name][0]!r}')
  return found


def _score(
    config: Any,
    folder: pathlib.Path,
    policy: str | pathlib.Path,
    job: pathlib.Path,
) -> float:
  """Score a policy on sealed problems, in its own process.

  Args:
    config: Config whose grader is used.
    folder: Receives the score; a score that exists is returned.
    policy: Folder of the policy.
    job: Folder of the job, with the domain that the config may name.
  """
  result = folder / 'score' / 'eval.json'
  if result.exists():
    return json.loads(result.read_text())['metrics']['sealed/avg_at_k']
  changed = config_lib.with_fields(
      config,
      {
          'seed': recording.SEALED_SEED,
          'model.path': str(policy),
          'eval.split': 'sealed',
          'eval.problems': recording.asked(config),
          'eval.samples': recording.SAMPLES,
      },
  )
  folder.mkdir(parents=True, exist_ok=True)
  runner.start(
      'evaluate',
      changed,
      folder / 'config.json',
      folder / 'score',
      jobs.environment(job),
  )
  return _score(config, folder, policy, job)


def _measure(
    setting: settings_lib.Setting, folder: pathlib.Path, policy: pathlib.Path
) -> verdicts.Scores:
  """Return the evaluator's scores of a policy, and of the one before."""
  clean, planted = settings_lib.clean(setting), settings_lib.planted(setting)
  base = settings_lib.write_policy(setting, folder / jobs.POLICY)
  # Only leaky settings have a second grader.
  own = planted if setting.kind == 'leaky' else clean
  found = {}
  for name, config in (('true', clean), ('own', own)):
    if name == 'own' and own is clean:
      found |= {k.replace('true', 'own'): v for k, v in found.items()}
      continue
    found[name] = _score(config, folder / name, policy, folder)
    # All jobs of a setting share the scores of the policy before training.
    before = folder.parents[1] / 'base' / setting.name / name
    with _scoring.setdefault(before, threading.Lock()):
      found[f'base_{name}'] = _score(config, before, base, folder)
  return verdicts.Scores(**found)


def run_job(
    system: str,
    command: Sequence[str],
    setting: settings_lib.Setting,
    seed: int,
    out: pathlib.Path,
    *,
    tokens: int,
    seconds: float,
    stop: threading.Event,
) -> dict[str, Any]:
  """Give a system one job; return the row with its result.

  Args:
    system: Name of the system.
    command: Command of the system.
    setting: The planted fault.
    seed: Seed of the job.
    out: Contains the job's folder.
    tokens: Tokens that the system may sample.
    seconds: Time limit, after which the command is killed.
    stop: Kills the command when it is set.
  """
  folder = out / 'jobs' / f'{system}-{setting.name}-{seed}'
  job = jobs.make(
      setting,
      folder,
      seed=seed,
      tokens=tokens,
      seconds=seconds,
  )
  row = dict(system=system, setting=setting.name, kind=setting.kind, seed=seed)
  row |= dict(budget=tokens)
  answer, scores, why = None, None, ''
  try:
    answer = jobs.run(command, job, stop)
    if answer.policy is not None:
      scores = _measure(setting, folder, answer.policy)
  except jobs.AnswerError as error:
    why = str(error)
  except subprocess.CalledProcessError as error:
    answer, why = None, f'its policy cannot be scored: {error}'
  row['verdict'] = verdicts.judge(setting, answer, scores)
  row |= dict(why=why, gap=scores and scores.gap, true=scores and scores.true)
  row |= dict(tokens=answer and answer.tokens, since=answer and answer.since)
  row |= dict(status=answer and answer.status)
  return row


def run_jobs(
    commands: Mapping[str, Sequence[str]],
    found: Sequence[settings_lib.Setting],
    seeds: Iterable[int],
    out: pathlib.Path,
    path: pathlib.Path,
    *,
    tokens: int,
    seconds: float,
    workers: int = 1,
    retry: bool = False,
) -> list[Row]:
  """Run the jobs that have no row; return the rows of all jobs in the file.

  Two processes with different settings may add to the same file. The last of
  several rows of a job counts.

  Args:
    commands: Commands of the systems by name.
    found: The settings.
    seeds: Seeds of the jobs.
    out: Folder of the jobs.
    path: File of the rows, JSON lines; the same call continues.
    tokens: Tokens per job.
    seconds: Time limit per job.
    workers: Jobs that run at once. Rows are added in the order in which jobs
      end.
    retry: Whether jobs without a valid answer are run again.
  """
  out.mkdir(parents=True, exist_ok=True)
  rows = {
      _job_of(row): row
      for row in json_lines.read(path)
      if row['budget'] == tokens
  }
  known = {job for job, row in rows.items() if not (retry and row['why'])}
  left = [
      (system, command, setting, seed)
      for seed in seeds
      for setting in found
      for system, command in commands.items()
      if (system, setting.name, seed) not in known
  ]
  stop = threading.Event()
  limits = dict(tokens=tokens, seconds=seconds, stop=stop)
  with futures.ThreadPoolExecutor(workers) as pool:
    running = [pool.submit(run_job, *job, out, **limits) for job in left]
    try:
      for done in futures.as_completed(running):
        row = done.result()
        rows[_job_of(row)] = row
        json_lines.append(path, [row])
        print(json.dumps(row), flush=True)
    except BaseException:
      stop.set()
      pool.shutdown(cancel_futures=True)
      raise
  return list(rows.values())


def _job_of(row: Row) -> tuple[str, str, int]:
  return row['system'], row['setting'], row['seed']


def table(rows: Sequence[Row]) -> list[str]:
  """Return the lines of the table by system."""
  lines = []
  for system in sorted({row['system'] for row in rows}):
    mine = [row for row in rows if row['system'] == system]
    lines.append(f'{system}: {len(mine)} jobs')
    if invalid := sum(bool(row['why']) for row in mine):
      note = '(--retry repeats them)'
      lines.append(f'  without a valid answer: {invalid} {note}')
    for kind, names in verdicts.VERDICTS.items():
      counts = collections.Counter(
          row['verdict'] for row in mine if row['kind'] == kind
      )
      if counts:
        text = ', '.join(f'{name} {counts[name]}' for name in names)
        lines.append(f'  {kind:8} {counts.total():3}: {text}')
    curve = verdicts.stands_by(mine)
    if curve:
      lines.append('  policies it stands by; gamed: own gain above the true')
    for row in curve:
      lines.append(
          f'    by more than {100 * row["threshold"]:2.0f} points:'
          f' {row["gamed_kept"]} of {row["gamed"]} gamed,'
          f' {row["clean_kept"]} of {row["clean"]} clean'
      )
    for name, what in (('tokens', 'sampled'), ('since', 'until it knew')):
      known = [row[name] for row in mine if row[name] is not None]
      if known:
        middle = statistics.median(known)
        lines.append(f'  tokens {what}: {middle:,.0f} (median of {len(known)})')
  return lines


def replay(
    found: Sequence[settings_lib.Setting],
    rows: Mapping[Any, Row],
    runs: int,
    tokens: int = recording.TOKENS,
) -> list[str]:
  """Return a summary of recorded runs, and the gate's decisions on them.

  Args:
    found: The settings.
    rows: Their recorded rows.
    runs: Number of simulated runs, of faults at a quarter of their dose.
    tokens: Sampled tokens of the recorded runs.
  """
  lines = []
  for setting in found:
    status, ahead = recording.admission(setting, rows, tokens)
    points = ', '.join(f'{100 * x:+.1f}' for x in ahead)
    lines.append(f'{setting.name:28} {setting.kind:8} {status:8} {points}')
  made = recording.branches(found, rows, tokens)
  lines.append(f'branches of leaky settings and their twins: {len(made)}')
  for row in verdicts.kept_curve(made) if made else ():
    kept = [
        f'{row.get(f"{kind}_kept", 0)} kept, {row.get(f"{kind}_refused", 0)}'
        f' refused of {row.get(kind, 0)} {kind}'
        for kind in ('gamed', 'clean')
    ]
    lines.append(f'  gain asked for {row["share"]:4.2f}: {"; ".join(kept)}')
  return [*lines, 'a quarter of a dose', *creep.lines(runs)]
