"""Compares search rules for equal tokens, on replays of recorded training.

    python -m benchmarks.searchers --record     the queue of training runs
    python -m benchmarks.searchers [--rivals=PYTHON] [--tokens=5e5,1e6]
    python -m benchmarks.searchers --live [--rivals=PYTHON] [--best=optuna]
        [--workers=1]

All rules get the same tokens in the same worlds, which `tables` builds from the
rows of `recording`: evojax's race, the same race with shuffled alerts, trials
with a fixed number of arms, greedy steps, random search, plain training of the
seed and, if --rivals names the Python of their environment, Optuna and Syne
Tune (`rivals`). The race is simulated without merging arms. Each searcher gets
the options that are best for it on this very table; evojax has its config's
defaults.

A run of the queue takes about 3 minutes of one core, and there are 204. Two
processes with different --settings may add to the same rows:

    taskset -c 0 python -m benchmarks.searchers --record \\
        --settings=math_brevity_paid,math

--live trains policies on broken settings under separate seeds (`versus`):
evojax, the searcher --best, PBT, the base policy under the reference recipe,
and plain training of the seed. A job of 500,000 tokens takes about 8 minutes of
one core, and much longer where a fault makes completions short. Jobs that have
a row in --live_rows are not repeated; `--live --jobs=` prints the table of the
rows so far.
"""

import math
import pathlib

from absl import app
from absl import flags

from benchmarks import json_lines
from benchmarks.faults import evaluation
from benchmarks.faults import settings as settings_lib
from benchmarks.searchers import design
from benchmarks.searchers import replays
from benchmarks.searchers import report
from benchmarks.searchers import tables
from benchmarks.searchers import versus

_RECORD = flags.DEFINE_bool('record', False, 'Train what is not recorded yet.')
_ROWS = flags.DEFINE_string(
    'rows', str(pathlib.Path(__file__).with_name('rows.jsonl')), 'The tables.'
)
_SETTINGS = flags.DEFINE_list(
    'settings', list(design.SETTINGS), 'Broken settings, or names of domains.'
)
_SEEDS = flags.DEFINE_integer('seeds', 3, 'Seeds per harness.', lower_bound=2)
_BITS = flags.DEFINE_integer(
    'bits', design.BITS, '2^bits harnesses.', 1, design.BITS
)
_UPDATES = flags.DEFINE_integer('updates', 96, 'Updates a run.', lower_bound=2)
_EVERY = flags.DEFINE_integer('every', 12, 'Updates between marks.', 1)
_PROBLEMS = flags.DEFINE_integer('problems', 128, 'Problems of a score.', 2)
_TOKENS = flags.DEFINE_list('tokens', ['5e5', '1e6'], 'Tokens of a replay.')
_WORLDS = flags.DEFINE_integer('worlds', 50, 'Worlds of the replays.', 2)
_REPEATS = flags.DEFINE_integer('repeats', 20, 'Replays of a world.', 1)
_TUNING = flags.DEFINE_integer('tuning', 100, 'Replays that tune options.', 1)
_LIVE = flags.DEFINE_bool('live', False, 'Train policies, system by system.')
_BEST = flags.DEFINE_enum(
    'best', 'optuna', ['optuna', 'asha', 'bohb'], 'Searcher of --live.'
)
_JOBS = flags.DEFINE_list('jobs', list(versus.SETTINGS), 'Settings of --live.')
_LIVE_SEEDS = flags.DEFINE_integer('live_seeds', 5, 'Seeds of --live.', 1)
_LIVE_ROWS = flags.DEFINE_string(
    'live_rows',
    str(pathlib.Path(__file__).with_name('live.jsonl')),
    'Rows of --live.',
)
_SYSTEMS = flags.DEFINE_list('systems', [], 'Systems of --live; [] means all.')
_OUT = flags.DEFINE_string('out', 'runs/searchers', 'Folder of --live.')
_WORKERS = flags.DEFINE_integer('workers', 1, 'Jobs of --live at once.', 1)
_SECONDS = flags.DEFINE_float('seconds', 4 * 3600.0, 'Limit of a job.', 1)
_RIVALS = flags.DEFINE_string('rivals', '', "Python of the rivals' packages.")


def _record(path: pathlib.Path) -> None:
  """Train the runs that have not been recorded."""
  # jax is loaded only here, for training.
  from benchmarks.searchers import recording

  plan = recording.Plan(
      updates=_UPDATES.value,
      every=_EVERY.value,
      problems=_PROBLEMS.value,
      bits=_BITS.value,
  )
  done = {tables.key(row) for row in json_lines.read(path)}
  for run in plan.queue(_SETTINGS.value, _SEEDS.value):
    if run.key not in done:
      row = recording.record(run, plan, path)
      last = tables.shares(row)[-1].mean()
      print(f'{run.key}: {100 * last:.1f} {row["ended"]}', flush=True)


def _tokens() -> list[float]:
  """Return --tokens as numbers."""
  found = []
  for text in _TOKENS.value:
    try:
      found.append(float(text))
    except ValueError:
      found.append(math.nan)
    if not 1 <= found[-1] < math.inf:
      raise app.UsageError(f'--tokens={text}: give numbers from 1 on, as 5e5')
  if not found:
    raise app.UsageError('--tokens is empty: give numbers from 1 on, as 5e5')
  return found


def _live(tokens: int) -> None:
  """Run the jobs of all systems for so many tokens; print their table."""
  try:
    found = [settings_lib.read(settings_lib.FOLDER / n) for n in _JOBS.value]
  except settings_lib.SettingError as error:
    raise app.UsageError(str(error)) from error
  systems = versus.systems(_BEST.value, _RIVALS.value)
  if unknown := set(_SYSTEMS.value) - set(systems):
    raise app.UsageError(
        f'--systems={",".join(sorted(unknown))}: known are'
        f' {", ".join(systems)}; searchers need --rivals'
    )
  first = versus.FIRST_SEED
  rows = evaluation.run_jobs(
      {n: systems[n] for n in _SYSTEMS.value or systems},
      found,
      range(first, first + _LIVE_SEEDS.value),
      pathlib.Path(_OUT.value).resolve(),
      pathlib.Path(_LIVE_ROWS.value),
      tokens=tokens,
      seconds=_SECONDS.value,
      workers=_WORKERS.value,
  )
  print('\n'.join(versus.lines(rows)))


def main(_):
  tokens = _tokens()
  if _LIVE.value:
    _live(int(tokens[0]))
    return
  path = pathlib.Path(_ROWS.value)
  try:
    designs = [design.read(name) for name in _SETTINGS.value]
  except ValueError as error:
    raise app.UsageError(str(error)) from error
  if _RECORD.value:
    _record(path)
    return
  found = tables.tables(json_lines.read(path))
  for each in designs:
    if each.name not in found:
      print(
          f'{each.name}: not all harnesses are recorded under two seeds;'
          ' --record trains them'
      )
      continue
    for limit in tokens:
      plan = replays.Plan(
          tokens=limit,
          worlds=_WORLDS.value,
          repeats=_REPEATS.value,
          tuning=_TUNING.value,
      )
      rows = report.run(path, each.name, plan, each.changes, _RIVALS.value)
      best = replays.best_known(found[each.name], plan)
      lines = report.lines(found[each.name], rows, best, plan)
      print('\n'.join(lines), flush=True)


if __name__ == '__main__':
  app.run(main)
