"""--mode=sweep: run one config under many settings and seeds; show a table.

    python -m evojax.main --mode=sweep --config=configs/math.py
        --sweep=configs/sweeps/reference.py [--executor=local --workers=2]

For the file, see `sweep_file`. A point is one setting under one seed. It runs
as its own command in its own workdir, <workdir>/<setting>/seed-<n>. Finished
points are not run again, so the same command continues a sweep, and after
settings or seeds were added it runs only the new points. Points that another
config has made are refused.

    <workdir>/sweep.json, sweep.html    the table, rewritten every minute
    <workdir>/array.sh                  with --executor=slurm, for sbatch

Where the sweep is in an object store, array.sh and the logs of Slurm are in
runs/<name of the sweep> of this machine instead.
"""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import copy
import dataclasses
import itertools
import json
import math
import os
import pathlib
import runpy
import shlex
import time
from typing import Any

import ml_collections
from rich import console as console_lib

from evojax import config as config_lib
from evojax.eval import report as report_lib
from evojax.modes import runs
from evojax.modes import sweep_file
from evojax.report import state as state_lib
from evojax.runtime import accelerators
from evojax.runtime import commands
from evojax.runtime import config_checks
from evojax.runtime import durable
from evojax.runtime import mirror
from evojax.runtime import numerals
from evojax.runtime import output
from evojax.runtime import preemption
from evojax.runtime import run_files
from evojax.runtime import workdir as workdir_lib
from evojax.stats import intervals

TABLE, PAGE = 'sweep.json', 'sweep.html'
_POLL_SECONDS = 0.5
_PAGE_SECONDS = 60.0  # Between two pages of a running sweep.


@dataclasses.dataclass(frozen=True)
class CommandLine:
  """The part of the command line that every point gets."""

  config: str  # The value of --config.
  fields: Mapping[str, Any]  # Fields of the config that no setting has.
  flags: Sequence[str] = ()  # Other flags, '--name=value'.


@dataclasses.dataclass(frozen=True)
class Point:
  """A setting under a seed."""

  setting: str
  seed: int
  path: pathlib.Path  # Its workdir.
  command: commands.Command


def run(
    config: ml_collections.ConfigDict,
    workdir: str,
    *,
    sweep: str,
    given: CommandLine,
    executor: str,
    workers: int,
    arm_resources: Sequence[str],
    arm_hosts: str,
    dry_run: bool,
) -> int:
  """Run the unfinished points of a sweep, and show the table of all points.

  Args:
    config: The config that the settings change.
    workdir: Directory of the sweep.
    sweep: Path of the sweep's file.
    given: The part of the command line that every point gets; `config` was
      loaded from given.config.
    executor: 'inprocess' (one after the other), 'local', 'ray' or 'slurm'.
    workers: Number of points that run at a time.
    arm_resources: Ray resources of a point on each of its machines.
    arm_hosts: Machines of a point under Ray, see `commands.share`.
    dry_run: Print the commands and run nothing.

  Returns:
    An exit code: 1 if points failed, else 0.

  Raises:
    ValueError: If the file or a setting is wrong, another config has made a
      point, or another sweep works in the directory; nothing has been started.
    Preempted: After SIGINT or SIGTERM; points in progress have been saved.
  """
  read_ = sweep_file.read(sweep)
  if executor == 'ray':
    commands.check_share(arm_resources, arm_hosts)
  root = pathlib.Path(workdir).expanduser().absolute()
  if made_by := workdir_lib.owner(root):
    raise ValueError(
        f'--workdir={mirror.shown(str(root))} holds a run of --mode={made_by};'
        ' give the sweep a directory of its own, for the workdirs of its runs'
    )
  configs = {
      name: check(config, given, name, fields)
      for name, fields in read_.settings.items()
  }
  _check_given(read_, given)
  _refuse_equals(configs)
  points = list(make_points(read_, root, given))
  left = [point for point in points if not point.command.is_done()]
  _refuse_others(points, left, configs, read_.mode)
  if dry_run:
    for point in left:
      print(shlex.join(point.command.argv()))  # One line each, for other tools.
    return 0
  engine, failed = None, []
  if left and executor != 'slurm':
    kind = 'local' if executor == 'inprocess' else executor
    shares = []
    if kind == 'local':
      meshes = [each.mesh.to_dict() for each in configs.values()]
      at_once = min(max(1, workers), len(left))
      shares = accelerators.divide(at_once, meshes, beside=False)
    engine = commands.open_engine(kind, arm_resources, arm_hosts, shares)
  # Each of two sweeps would find the points of the other one in use and count
  # them as failed.
  with workdir_lib.lock_folder(root, seconds=0.0):
    for point in left:
      point.command.log.parent.mkdir(parents=True, exist_ok=True)
    if left and executor == 'slurm':
      script = write_array(root, left, workers)
      script = shlex.quote(str(script))
      output.say(f'{len(left)} points are left: sbatch {script}')
    if engine:
      pool = commands.Pool(engine, max(1, workers))
      page = lambda: write_table(root, points, running=True)
      try:
        failed = _run(pool, left, page)
      except BaseException:
        write_table(root, points)  # The page must not say "running" any more.
        raise
    show(write_table(root, points), root)
  for why in failed:
    output.say(f'error: {why}', error=True)
  return 1 if failed else 0


# ---------------------------------------------------------------- the points


def check(
    config: ml_collections.ConfigDict,
    given: CommandLine,
    name: str,
    fields: Mapping[str, Any],
) -> ml_collections.ConfigDict:
  """Check a setting before anything is started; return its config.

  Raises:
    ValueError: If it has an unknown field, or its config is invalid.
  """
  fields = dict(fields)
  try:
    if variant := fields.pop('variant', None):
      get_config = runpy.run_path(given.config.partition(':')[0])['get_config']
      config = get_config(variant)
    # References are kept, so that a change has the effect that it has on the
    # command line.
    config = copy.deepcopy(config).unlock()
    for field, value in {**given.fields, **fields}.items():
      config_lib.check_field(config, field)
      value = _literal(value)
      if isinstance(value, dict):
        value = ml_collections.ConfigDict(value)  # A copy, for this setting.
      config.update_from_flattened_dict({field: value})
    config = config.copy_and_resolve_references()
    config_checks.validate(config)
  except (ValueError, TypeError) as error:
    raise ValueError(f'--sweep: setting {name!r}: {error}') from error
  return config


def _check_given(sweep: sweep_file.Sweep, given: CommandLine) -> None:
  """Refuse flags that the sweep's file would override.

  Raises:
    ValueError: Naming the flag and what overrides it.
  """
  if 'seed' in given.fields:
    raise ValueError(
        f'--config.seed={given.fields["seed"]}: SEEDS of the --sweep file sets'
        ' it for every run; leave the flag out'
    )
  for (name, fields), field in itertools.product(
      sweep.settings.items(), given.fields
  ):
    for own, value in fields.items():
      # Either may be a group that holds the other.
      if f'{own}.'.startswith(f'{field}.') or f'{field}.'.startswith(f'{own}.'):
        raise ValueError(
            f'--config.{field}={_literal(given.fields[field])}: the --sweep'
            f' file sets {own}={value} in setting {name!r}; leave the flag out,'
            ' or edit the file'
        )
  variant = given.config.partition(':')[2]
  chosen = {
      str(f.get('variant') or variant) for f in sweep.settings.values()
  }
  if variant and variant not in chosen:
    raise ValueError(
        f'--config={given.config}: every setting of the --sweep file has a'
        f' variant of its own, {", ".join(sorted(chosen))}; leave :{variant}'
        ' out, or edit the file'
    )


def _refuse_equals(configs: Mapping[str, ml_collections.ConfigDict]) -> None:
  """Refuse settings whose runs would be identical.

  Raises:
    ValueError: Naming two such settings.
  """
  found: dict[str, str] = {}
  for name, config in configs.items():
    values = config_lib.to_mapping(config)
    del values['name']  # No run depends on its name.
    same = found.setdefault(json.dumps(values, sort_keys=True), name)
    if same != name:
      raise ValueError(
          f'--sweep: settings {same!r} and {name!r} have equal configs, so that'
          ' their runs would be the same; change a field or leave one out'
      )


def make_points(
    sweep: sweep_file.Sweep, root: pathlib.Path, given: CommandLine
) -> Iterator[Point]:
  """Yield the points: all settings under the first seed, and so on.

  In this order, a sweep that is stopped early has compared all settings under
  some of the seeds.
  """
  for seed, (name, fields) in itertools.product(
      sweep.seeds, sweep.settings.items()
  ):
    path = root / name / f'seed-{seed}'
    fields = dict(fields)
    variant = fields.pop('variant', None)
    config = given.config
    if variant:
      config = f'{config.partition(":")[0]}:{variant}'
    values = {**given.fields, **fields, 'seed': seed}
    flags = (
        f'--mode={sweep.mode}',
        f'--config={config}',
        f'--workdir={mirror.shown(str(path))}',
        *(f'--config.{f}={_literal(value)}' for f, value in values.items()),
        *given.flags,
    )
    log = root / 'logs' / f'{name}-{seed}.log'
    done = lambda path=path: _is_finished(path)
    command = commands.Command(f'{name}/seed-{seed}', flags, log, done)
    yield Point(name, seed, path, command)


def _literal(value: Any) -> Any:
  """Return a value whose text can be parsed as a flag."""
  grouped = isinstance(value, ml_collections.ConfigDict)
  return value.to_dict() if grouped else value


def _refuse_others(
    points: Sequence[Point],
    left: Sequence[Point],
    configs: Mapping[str, ml_collections.ConfigDict],
    mode: str,
) -> None:
  """Refuse points of another config, which the table would show unmarked.

  Args:
    points: All points.
    left: The points that have not ended; they may differ in fields that a
      resumed run may change.
    configs: Config of each setting, with any seed.
    mode: Mode of the sweep.

  Raises:
    ValueError: If there are such points.
  """
  unfinished, found = {point.path for point in left}, {}
  for point in points:
    config = configs[point.setting]
    config.seed = point.seed
    # Without rounds, --mode=evolve only trains.
    of = mode if config.evolve.rounds else 'train'
    ended = point.path not in unfinished
    if changes := workdir_lib.changes(point.path, config, of, ended=ended):
      found[point.command.name] = point, changes
  if not found:
    return
  name, (point, changes) = next(iter(found.items()))
  lines = ''.join(
      f'\n  {field}: {json.dumps(was)} -> {json.dumps(now)}'
      for field, (was, now) in changes.items()
  )
  more = f' (other points that differ: {len(found) - 1})' * (len(found) > 1)
  where = mirror.shown(str(point.path))
  raise ValueError(
      f'the point {name} was run with another config:{lines}\nNothing has been'
      f' started{more}. Undo the change, delete {where} so that the point is'
      ' run again, or choose another --workdir'
  )


def _is_finished(path: pathlib.Path) -> bool:
  """Return whether a run has ended."""
  ended = lambda: (path / run_files.SUMMARY).exists() and (
      runs.read(path, path.parent)['state'] == 'finished'
  )
  if not ended():  # In a store, the copy may be older than the run.
    mirror.refresh(path)
  return ended()


# ------------------------------------------------------------------- running


def _run(pool: commands.Pool, left: Sequence[Point], after: Any) -> list[str]:
  """Run points; return one message for each that failed.

  Args:
    pool: Runs the points; closed at the end.
    left: The points.
    after: Called whenever points have ended, and every `_PAGE_SECONDS`.
  """
  failed, waiting = [], {point.command.name: point for point in left}
  written = -math.inf
  with contextlib.ExitStack() as stack:
    # Logs of points that a signal ends.
    stack.callback(lambda: [_put_log(p) for p in waiting.values()])
    asked = stack.enter_context(preemption.stop_flag())
    stack.enter_context(contextlib.closing(pool))
    preemption.note()
    for point in left:
      pool.submit(point.command)
    while waiting:
      if asked:
        output.say(preemption.line(asked, 'what has begun is saved'))
        raise preemption.Preempted(asked)
      pool.advance()
      ended = []
      for name in [n for n in waiting if n not in pool.pending]:
        ended.append(waiting.pop(name))
        _put_log(ended[-1])
        try:
          pool.check(name)
        except commands.CommandError as error:
          failed.append(str(error))
      if ended or time.monotonic() - written > _PAGE_SECONDS:
        after()
        written = time.monotonic()
      if ended:
        count = len(left) - len(waiting)
        output.say(f'{count} of {len(left)} points have ended')
      time.sleep(_POLL_SECONDS)
  return failed


def _put_log(point: Point) -> None:
  """Upload the log of a point that has begun, if the sweep is in a store."""
  if point.command.log.exists():
    mirror.put(point.command.log)


def write_array(
    root: pathlib.Path, left: Sequence[Point], workers: int
) -> pathlib.Path:
  """Write an `sbatch` script of a job array with one task per point.

  Slurm reads the script and writes the logs, and the copy of a sweep in a store
  is removed at the end. Therefore they are then in a directory of this machine.
  """
  # Slurm splits an option at blanks, and replaces what follows a % in a path.
  option = lambda text: f'#SBATCH {shlex.quote(text)}'
  if mirror.is_copy(root):
    name = mirror.shown(str(root)).rpartition('/')[2]
    root = pathlib.Path('runs', name).absolute()
    (root / 'logs').mkdir(parents=True, exist_ok=True)
  at_once = f'%{workers}' if workers else ''
  lines = [
      '#!/usr/bin/env bash',
      option(f'--job-name={root.name}'),
      option(f'--array=0-{max(0, len(left) - 1)}{at_once}'),
      option(f'--output={str(root).replace("%", "%%")}/logs/%a.log'),
      '#SBATCH --signal=B:TERM@60  # Then a run saves; send this file again.',
      'set -euo pipefail',
      f'cd {shlex.quote(os.getcwd())}',
      f'export PYTHONPATH={shlex.quote(commands.python_path())}',
      'commands=(',
      *(f'  {shlex.quote(shlex.join(p.command.argv()))}' for p in left),
      ')',
      'eval "exec ${commands[$SLURM_ARRAY_TASK_ID]}"',
  ]
  path = root / 'array.sh'
  durable.write_atomic(path, '\n'.join(lines + ['']).encode())
  return path


# --------------------------------------------------------------------- table


def tabulate(points: Sequence[Point]) -> list[dict[str, Any]]:
  """Return one row per setting, with means over its finished seeds.

  Intervals show the spread between seeds. `over` is the mean difference to the
  first setting, paired by seed, over the seeds for which both have a score.

  Returns:
    JSON values: setting, seeds (with a score), unscored (seeds that have ended
    without one), of (all), split, and score, gain, over, dev and dev_gain (see
    `runs.FIELDS`) as [mean, low, high] with Student's 95 % interval, or None.
  """
  scores: dict[str, dict[int, Mapping[str, Any]]] = {}
  for point in points:
    of = scores.setdefault(point.setting, {})
    if point.command.is_done():
      of[point.seed] = runs.read(point.path, point.path.parent)
  # A run that has spent its budget has ended without a score.
  scored = {
      name: {n: r['score'] for n, r in of.items() if r.get('score') is not None}
      for name, of in scores.items()
  }
  first = next(iter(scores))
  split = lambda row: row.get('split')  # None without a score.
  rows = []
  for name, by_seed in scores.items():
    values = lambda field, runs_=by_seed: [
        r[field] for r in runs_.values() if r.get(field) is not None
    ]
    over = [
        score - scored[first][seed]
        for seed, score in scored[name].items()
        if seed in scored[first] and name != first
    ]
    rows.append(
        {
            'setting': name,
            'seeds': len(scored[name]),
            'unscored': len(by_seed) - len(scored[name]),
            'of': sum(point.setting == name for point in points),
            'split': next(filter(None, map(split, by_seed.values())), None),
            # Scores are shares, and the others differences of shares.
            'score': _interval([*scored[name].values()], least=0.0),
            'gain': _interval(values('gain'), least=-1.0),
            'over': _interval(over, least=-1.0),
            'dev': _interval(values('dev'), least=0.0),
            'dev_gain': _interval(values('dev_gain'), least=-1.0),
        }
    )
  return rows


def _interval(
    values: Sequence[float], least: float
) -> list[float | None] | None:
  """Return mean, low and high, the ends within [least, 1]."""
  if not values:
    return None
  found = intervals.student(values)
  ends = [max(found.low, least), min(found.high, 1.0)]
  return [found.value, *(ends if len(values) > 1 else (None, None))]


def write_table(
    root: pathlib.Path, points: Sequence[Point], *, running: bool = False
) -> list[dict[str, Any]]:
  """Write the table and the page of a sweep; return the table.

  Args:
    root: Directory of the sweep.
    points: All points.
    running: Whether the page will be written again; it then says so.
  """
  rows = tabulate(points)
  durable.write_json(root / TABLE, rows)
  mirror.put(root / TABLE)
  listed = [
      runs.read(point.path, root) for point in points if point.path.is_dir()
  ]
  title, text = mirror.shown(f'Sweep {root}'), meaning(rows)
  left = [point.command.name for point in points if not point.command.is_done()]
  if left:
    more = f' and {len(left) - 9} more' * (len(left) > 9)
    text += f' Not finished: {", ".join(left[:9])}{more}; see logs/ beside this'
    text += ' page.'
  state, seconds = None, 0.0
  if running:
    done = f'{len(points) - len(left)} of {len(points)} points have ended'
    state, seconds = state_lib.State('running', done), _PAGE_SECONDS
  page = runs.page(root, listed, title, cells(rows), text, state, seconds)
  durable.write_atomic(root / PAGE, page.encode())
  mirror.put(root / PAGE)
  return rows


def meaning(rows: Sequence[Mapping[str, Any]]) -> str:
  """Return an explanation of the numbers in a table."""
  split = next((row['split'] for row in rows if row['split']), None)
  of = f' on {split} problems' if split else ''
  over = f' Over: points over {rows[0]["setting"]}, by seed.'
  dev = ' Dev: the last score on dev problems, and its gain over the first.'
  text = (
      f'Score: the solved share{of}. Gain: points over the base policy.'
      f'{over * (len(rows) > 1)}{dev * _has_dev(rows)} All are means over seeds'
      ' with 95 % intervals (Student t).'
  )
  for row in rows:
    if row['unscored']:
      ended = numerals.counted(row['unscored'], 'run')
      text += f' {row["setting"]}: {ended} ended without a score.'
  return text


def _has_dev(rows: Sequence[Mapping[str, Any]]) -> bool:
  """Return whether dev scores are to be shown beside sealed ones."""
  sealed = any(row['split'] == 'sealed' for row in rows)
  return sealed and any(row['dev'] for row in rows)


def cells(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
  """Return the cells of each row of a table by heading."""
  found, shows_dev = [], _has_dev(rows)
  for row in rows:
    texts = {'setting': row['setting'], 'seeds': f'{row["seeds"]}/{row["of"]}'}
    for what, form in (
        ('score', numerals.share),
        ('gain', numerals.points),
        ('over', numerals.points),
        *[('dev', numerals.share), ('dev_gain', numerals.points)] * shows_dev,
    ):
      text = ''
      if row[what]:
        value, low, high = row[what]
        text = form(value)
        if low is not None:
          sign = '' if form is numerals.share else '+'
          text += f' {numerals.between((low, high), sign + ".1f")}'
      texts[what.replace('_', ' ')] = text
    found.append(texts)
  return found


def show(rows: Sequence[Mapping[str, Any]], root: pathlib.Path) -> None:
  """Print a table."""
  texts, console = cells(rows), console_lib.Console(highlight=False)
  column = lambda heading: (heading, *(text[heading] for text in texts))
  tables = [('setting', 'seeds', 'score', 'gain')]
  # One table would be too wide.
  if any(text['over'] for text in texts):
    tables.append(('setting', 'over'))
  if _has_dev(rows):
    tables.append(('setting', 'dev', 'dev gain'))
  for headings in tables:
    report_lib.print_table(console, *map(column, headings))
  output.say(f'{meaning(rows)} page: {root / PAGE}')
