"""Compares systems on faulty and leaky runs: which repair or name a fault.

    python -m benchmarks.faults --system=evojax [--system=rival='CMD ARG ...']
        [--settings=DIR,...] [--seeds=3] [--first_seed=0] [--tokens=1e6]
        [--workers=1] [--out=runs/faults]
    python -m benchmarks.faults --system=diagnose --tokens=1e5
                                              what the checks name, in minutes
    python -m benchmarks.faults --list        what is planted, with status
    python -m benchmarks.faults --record      the queue of training runs
    python -m benchmarks.faults --creep       faults at a quarter dose, live
    python -m benchmarks.faults --replay      decisions on recorded runs

A setting plants a fault in a sound config; see `settings`. A system is a
command that receives a job and answers in JSON; see `jobs`. Its answer is
judged by a fixed vocabulary and by scores that are measured here, on sealed
problems, with the grader of the clean twin. For each system the table shows how
many faults it repaired, named without repairing, and missed; its false alarms
in sound settings; how many gamed and how many clean policies it stands by, at
several thresholds; the tokens; and the tokens until it knew the cause. Finished
jobs are found in --out, so that the same command continues; so does --record,
within a run. Jobs whose command failed or gave no valid answer count as missed
until --retry repeats them. A recording of --tokens=T is replayed with the same
--tokens.
"""

from collections.abc import Mapping, Sequence
import json
import pathlib
from typing import Any

from absl import app
from absl import flags

from benchmarks import json_lines
from benchmarks.faults import creep
from benchmarks.faults import evaluation
from benchmarks.faults import recording
from benchmarks.faults import settings as settings_lib

_SYSTEMS = flags.DEFINE_multi_string(
    'system',
    [],
    "'evojax', 'diagnose' (plain training, then a diagnosis) or NAME=COMMAND;"
    " the job's path is appended.",
)
_SETTINGS = flags.DEFINE_list(
    'settings', [str(settings_lib.FOLDER)], 'Directories of settings.'
)
_SEEDS = flags.DEFINE_integer('seeds', 3, 'Number of seeds.', lower_bound=1)
_FIRST = flags.DEFINE_integer('first_seed', 0, 'The first seed.', 0)
_TOKENS = flags.DEFINE_float(
    'tokens',
    recording.TOKENS,
    "Sampled tokens of a job, or of a recorded run; 'diagnose' trains 8 updates"
    ' at least.',
    1,
)
_PROBLEMS = flags.DEFINE_integer(
    'problems', recording.PROBLEMS, 'Problems of a score of --record.', 2
)
_SECONDS = flags.DEFINE_float('seconds', 4 * 3600.0, 'Limit of a job.', 1)
_OUT = flags.DEFINE_string('out', 'runs/faults', 'Folder of jobs and rows.')
_RETRY = flags.DEFINE_bool(
    'retry', False, 'Run jobs again whose answer was not valid.'
)
_WORKERS = flags.DEFINE_integer('workers', 1, 'Jobs of systems at once.', 1)
_RECORDED = flags.DEFINE_string(
    'recorded',
    str(settings_lib.FOLDER / 'recorded.jsonl'),
    'Rows of --record.',
)
_LIST = flags.DEFINE_bool('list', False, 'Show the settings.')
_RECORD = flags.DEFINE_bool('record', False, 'Train what is not recorded yet.')
_CREEP = flags.DEFINE_bool('creep', False, 'Propose faults at a quarter dose.')
_REPLAY = flags.DEFINE_bool('replay', False, 'Replay decisions on --recorded.')
_RUNS = flags.DEFINE_integer('runs', 10_000, 'Simulated runs of --replay.', 1)


def _show(
    found: Sequence[settings_lib.Setting],
    rows: Mapping[Any, Any],
    tokens: int,
) -> None:
  """Print the settings."""
  for s in found:
    status, _ = recording.admission(s, rows, tokens)
    print(f'{s.name:28} {s.kind:8} {status:8} {s.summary}')


def _creep(
    found: Sequence[settings_lib.Setting],
    seeds: Sequence[int],
    out: pathlib.Path,
) -> None:
  """Propose each fault of a single value in a run of its clean twin."""
  out.mkdir(parents=True, exist_ok=True)
  path = out / 'creep.jsonl'
  known = {(row['setting'], row['seed']) for row in json_lines.read(path)}
  for seed in seeds:
    for setting in found:
      if not settings_lib.factor(setting) or (setting.name, seed) in known:
        continue
      row = creep.live(setting, seed, out)
      json_lines.append(path, [row])
      print(json.dumps(row), flush=True)


def main(_):
  try:
    commands = evaluation.systems(_SYSTEMS.value)
    found = settings_lib.find(tuple(map(pathlib.Path, _SETTINGS.value)))
  except (ValueError, settings_lib.SettingError) as error:
    raise app.UsageError(str(error)) from error
  recorded = pathlib.Path(_RECORDED.value)
  rows, tokens = recording.read(recorded), int(_TOKENS.value)
  seeds = range(_FIRST.value, _FIRST.value + _SEEDS.value)
  out = pathlib.Path(_OUT.value).resolve()
  if _LIST.value:
    _show(found, rows, tokens)
  if _RECORD.value:
    for run in recording.queue(found, seeds):
      if (run.arm, run.seed, tokens) not in rows:
        folder = out / 'recording' / f'{run.arm}-{run.seed}'.replace(' ', '-')
        recording.record(
            run, recorded, folder, tokens=tokens, problems=_PROBLEMS.value
        )
  if _REPLAY.value:
    known = recording.read(recorded)
    lines = evaluation.replay(found, known, _RUNS.value, tokens)
    print('\n'.join(lines))
  if _CREEP.value:
    _creep(found, seeds, out)
  if commands:
    done = evaluation.run_jobs(
        commands,
        found,
        seeds,
        out,
        out / 'rows.jsonl',
        tokens=tokens,
        seconds=_SECONDS.value,
        workers=_WORKERS.value,
        retry=_RETRY.value,
    )
    print('\n'.join(evaluation.table(done)))
  chosen = (_LIST, _RECORD, _CREEP, _REPLAY)
  if not (commands or any(flag.value for flag in chosen)):
    names = ', '.join(f'--{flag.name}' for flag in chosen)
    raise app.UsageError(f'give --system or one of {names}')


if __name__ == '__main__':
  app.run(main)
