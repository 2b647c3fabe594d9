"""--mode=runs: the runs below a directory, compared in one table.

    python -m evojax.main --mode=runs --workdir=runs --sort=-score
    python -m evojax.main --mode=runs --workdir=runs --format=csv > runs.csv
    python -m evojax.main --mode=runs --format=html > runs/runs.html

Files are only read: no lock is taken and nothing is written, so runs in
progress are not disturbed. Directories that evojax did not make are skipped,
and a run that cannot be read is listed with the reason.
"""

from collections.abc import Mapping, Sequence
import csv
import io
import json
import math
import os
import pathlib
import re
import socket
import sys
from typing import Any
import urllib.parse

from evojax import config as config_lib
from evojax.eval import sealed as sealed_lib
from evojax.ledger import budget
from evojax.ledger import history as history_lib
from evojax.ledger import records
from evojax.report import page as page_lib
from evojax.report import state as state_lib
from evojax.runtime import goodput
from evojax.runtime import metrics as metrics_lib
from evojax.runtime import mirror
from evojax.runtime import numerals
from evojax.runtime import output
from evojax.runtime import run_files

# Errors that reading a damaged file may raise.
_BROKEN = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, IndexError),
    OverflowError,
)
_CONDITION = re.compile(r'([\w./]+)(!=|=|<|>)(.*)', re.DOTALL)
# Fields of a run, without those of its config ('config.grpo.group_size', ...).
FIELDS = (
    *('name', 'mode', 'state', 'step', 'steps', 'split'),
    *('base', 'score', 'low', 'high', 'gain', 'gain_low', 'gain_high'),
    # In a training: the last dev score, and its gain over the first.
    *('dev', 'dev_gain'),
    *('tokens', 'seconds', 'dollars', 'started'),
)

_DEV = 'dev/avg_at_k'

Row = dict[str, Any]


def run(
    root: str, *, sort: str = 'name', only: Sequence[str] = (), format: str
) -> int:
  """Print the runs below a directory; return an exit code.

  Args:
    root: The directory.
    sort: Field to sort by; '-score' puts the largest first.
    only: Conditions on fields, such as 'score>0.5'; a run is shown if all hold.
    format: 'table', 'csv', 'json' or 'html'.

  Raises:
    ValueError: If the directory does not exist, or a field is unknown.
  """
  path = pathlib.Path(root).expanduser()
  if not path.is_dir():
    raise ValueError(
        f'--workdir={root}: there is no such directory; name one that holds'
        ' workdirs, such as runs'
    )
  rows = [read(folder, path) for folder in find(path)]
  known = {name: None for row in rows for name in row}
  for condition in only:
    rows = [row for row in rows if _holds(row, condition, known)]
  name = sort.removeprefix('-')
  _check_field(name, known, f'--sort={sort}')
  # The sort is stable. Runs without a value come last in both directions.
  key = lambda row: _sortable(row.get(name))
  there = [row for row in rows if row.get(name) is not None]
  there.sort(key=key, reverse=sort.startswith('-'))
  rows = there + [row for row in rows if row.get(name) is None]
  if format == 'table':
    _show(path, rows)
  else:
    formats = {'csv': _csv, 'json': _json, 'html': lambda r: page(path, r)}
    sys.stdout.write(formats[format](rows))
  return 0


# ---------------------------------------------------------------------- find


def find(root: pathlib.Path) -> list[pathlib.Path]:
  """Return the workdirs below a directory, or the directory if it is one."""
  found = []
  for folder, folders, files in os.walk(root):
    path = pathlib.Path(folder)
    if _is_run(path, files):
      found.append(path)
      folders.clear()  # The arms below a run are parts of it.
    folders[:] = sorted(f for f in folders if not f.startswith('.'))
  return found


def _is_run(path: pathlib.Path, files: Sequence[str]) -> bool:
  """Return whether a directory is a workdir.

  A config.json alone does not show it: model directories have one as well.
  """
  if run_files.CONFIG not in files:
    return run_files.LEDGER in files
  ours = {run_files.MANIFEST, run_files.LEDGER, run_files.METRICS}
  if ours & set(files):
    return True
  try:
    return {'hash', 'config'} <= json.loads(
        (path / run_files.CONFIG).read_bytes()
    ).keys()
  except _BROKEN:
    return False


# ---------------------------------------------------------------------- read


def read(path: pathlib.Path, root: pathlib.Path) -> Row:
  """Return the fields of a run; those that cannot be read are missing.

  Args:
    path: Its workdir.
    root: Directory that the run's name is relative to.
  """
  name = str(path.relative_to(root))
  row: Row = dict(name=path.name if name == '.' else name, mode='', state='')
  try:
    content = json.loads((path / run_files.CONFIG).read_bytes())
    config = content['config']
    row |= {f'config.{k}': v for k, v in config_lib.flatten(config).items()}
    evolves = (path / run_files.LEDGER).exists()
    row['mode'] = content.get('mode', 'evolve' if evolves else 'train')
    if row['mode'] == 'aa':
      row |= _equal_arms(path)
    elif row['mode'] == 'warmstart':
      row |= _warm_start(path, row)
    else:
      row |= (_evolving if evolves else _training)(path, row)
    if (path / run_files.MANIFEST).exists():
      row['started'] = run_files.starts(path)[0]['start']
  except _BROKEN as error:
    row['state'] = f'broken: {" ".join(str(error).split())}'
  if not row['state'].startswith('broken') and is_held(path):
    row['state'] = row['state'].replace('stopped', 'running')
  return row


def is_held(path: pathlib.Path) -> bool:
  """Return whether a process of this machine works on a run.

  The lock is not tried, because a run that starts at that moment would be
  refused. For a run in an object store, processes of all machines count.
  """
  if found := mirror.of(path):
    return found.in_use()
  try:
    lock = path / '.lock'
    found = re.match(r'pid (\d+) on (\S+) ', lock.read_text())
    if found is None or found[2] != socket.gethostname():
      return False
    os.kill(int(found[1]), 0)
    # The lock file outlives its process, and process ids are reused, so the
    # kernel's table of locks decides where there is one.
    table = pathlib.Path('/proc/locks')
    return not table.exists() or f':{lock.stat().st_ino} ' in table.read_text()
  except PermissionError:  # A process of another user.
    return True
  except (OSError, ValueError):
    return False


def _summary(path: pathlib.Path) -> Row:
  """Return the content of summary.json, {} if it does not exist yet."""
  path = path / run_files.SUMMARY
  try:
    return json.loads(path.read_bytes()) if path.exists() else {}
  except ValueError as error:
    raise ValueError(f'{path.name}: {error}') from error


def _training(path: pathlib.Path, row: Row) -> Row:
  """Return the results of a run of --mode=train, or of one like it (eval)."""
  steps = row.get('config.steps', 0)
  rows = metrics_lib.read(path) if (path / run_files.METRICS).exists() else []
  step = max((r['step'] for r in rows), default=0)
  summary = _summary(path)
  done = summary.get('steps') == step if summary else False
  found: Row = dict(step=step, steps=steps)
  found['state'] = 'finished' if done else f'stopped at step {step} of {steps}'
  if (path / run_files.EVAL).exists():
    metrics = json.loads((path / run_files.EVAL).read_bytes())['metrics']
    return found | dict(state='finished', **_dev(metrics))
  trained = [r for r in rows if 'sampled_tokens' in r]
  if trained:
    # A fork counts only its own steps; another run made those before.
    found['tokens'] = round(sum(r['sampled_tokens'] for r in trained))
    seconds = {r['step']: 0.0 for r in trained}
    for r in trained:
      seconds[r['step']] += sum(
          value
          for name, value in r.items()
          if name.startswith('seconds/') and value is not None
      )
    found['seconds'] = sum(seconds.values())
    found['dollars'] = _dollars(path, row, seconds)
  for r in rows:
    found |= _dev(r)
  scored = [(r['step'], r[_DEV]) for r in rows if r.get(_DEV) is not None]
  if scored:
    found['dev'] = scored[-1][1]
  if len(scored) > 1 and scored[0][0] == 0:
    found['dev_gain'] = scored[-1][1] - scored[0][1]
  if sealed := sealed_lib.read(path):
    gain = {f'gain_{k}': sealed['gain'][k] for k in ('low', 'high')}
    found |= _score('sealed', sealed['after']) | gain
    found |= dict(base=sealed['before']['value'], gain=sealed['gain']['value'])
  return found


def _equal_arms(path: pathlib.Path) -> Row:
  """Return the progress of a run of --mode=aa, counted in arms."""
  done = len(list(path.glob(f'{run_files.ARMS}/aa-*/{run_files.ARM}')))
  ended = (path / run_files.EQUAL_ARMS).exists()
  state = 'finished' if ended else f'stopped after {done} equal arms'
  return dict(step=done, state=state)


def _warm_start(path: pathlib.Path, row: Row) -> Row:
  """Return the progress of a run of --mode=warmstart, which logs no metrics."""
  steps = row['config.warmstart.steps']
  saved = (path / run_files.CHECKPOINTS).glob('step_*')
  saved = [name for p in saved if (name := p.name[5:]).isdecimal()]
  step = max(map(int, saved), default=0)
  ended = step == steps and (path / run_files.POLICY).is_dir()
  state = 'finished' if ended else f'stopped at step {step} of {steps}'
  return dict(step=step, steps=steps, state=state)


def _dollars(
    path: pathlib.Path, row: Row, seconds: Mapping[int, float]
) -> float | None:
  """Return the price of all devices; None without a price.

  Args:
    path: The workdir.
    row: Fields of the run.
    seconds: Seconds by step. A run may continue on other devices; a step counts
      with those of the start that made it.
  """
  price = row.get('config.evolve.dollars_per_device_hour')
  if not price or not (path / run_files.MANIFEST).exists():
    return None
  start_of = goodput.start_of(path)
  spent = sum(s * start_of(step)['devices'] for step, s in seconds.items())
  return spent * price / 3600


def _dev(metrics: Mapping[str, Any]) -> Row:
  """Return the score in a row of metrics, {} if there is none."""
  for split in ('dev', 'sealed'):
    if metrics.get(f'{split}/avg_at_k') is not None:
      names = {'value': ''} | {end: f'_{end}' for end in ('low', 'high')}
      values = {
          k: metrics.get(f'{split}/avg_at_k{e}') for k, e in names.items()
      }
      return _score(split, values)
  return {}


def _score(split: str, estimate: Mapping[str, Any]) -> Row:
  low, high = estimate['low'], estimate['high']
  return dict(split=split, score=estimate['value'], low=low, high=high)


def _evolving(path: pathlib.Path, row: Row) -> Row:
  """Return the results of a run that evolves, from its ledger."""
  run_ = history_lib.read(path)
  opened = run_.find(records.Open)
  # Older configs have `trials`, each of which is one round now.
  evolve = opened.config['evolve'] if opened else {}
  rounds = evolve.get('rounds', evolve.get('trials', 0))
  done = len(run_.races)
  found: Row = dict(
      step=done,
      steps=rounds,
      state='finished'
      if run_.ended
      else f'stopped at round {done} of {rounds}',
      tokens=run_.trained_tokens,
      seconds=run_.wall_seconds,
  )
  price = row.get('config.evolve.dollars_per_device_hour')
  if price:
    spent = budget.Budget(dollars_per_device_hour=price)
    found['dollars'] = spent.cost(budget.spent(run_.rows))
  if final := run_.find(records.Final):
    evolved, base = final.scores['evolved'], final.scores['base']
    gain = final.gains['evolved']
    values = dict(value=evolved.value, low=evolved.low, high=evolved.high)
    found |= _score('sealed', values)
    found |= dict(base=base.value, gain=gain.value)
    found |= dict(gain_low=gain.low, gain_high=gain.high)
    if spent := final.compute.get('evolved'):
      found['tokens'] = spent.total
  return found


# ----------------------------------------------------------- sort and choose


def _check_field(name: str, known: Mapping[str, Any], flag: str) -> None:
  if name not in FIELDS and name not in known:
    raise ValueError(
        f'{flag}: {name!r} is not a field of a run; choose one of'
        f' {", ".join(FIELDS)}, or one of its config, such as'
        ' config.optim.learning_rate'
    )


def _sortable(value: Any) -> tuple[int, Any]:
  """Return a sort key that puts numbers before texts."""
  number = isinstance(value, (int, float)) and not isinstance(value, bool)
  return (0, value) if number else (1, str(value))


def _holds(row: Row, condition: str, known: Mapping[str, Any]) -> bool:
  """Return whether a condition holds for a run.

  Raises:
    ValueError: If the condition is malformed, or its field is unknown.
  """
  match = _CONDITION.fullmatch(condition)
  if match is None:
    raise ValueError(
        f'--only={condition}: wanted FIELD=VALUE, or with !=, < or >'
    )
  name, operator, text = match.groups()
  _check_field(name, known, f'--only={condition}')
  value = row.get(name)
  if operator in '!=':
    return (str(value) == text) == (operator == '=')
  try:
    limit = float(text)
  except ValueError as error:
    raise ValueError(f'--only={condition}: {text!r} is not a number') from error
  if _sortable(value)[0]:
    return False
  return value < limit if operator == '<' else value > limit


def differences(rows: Sequence[Row]) -> dict[str, str]:
  """Return the config fields in which runs differ, with the commonest value.

  A run made before a field existed gets the field's default, in its row, too.
  """
  defaults = {
      f'config.{field.path}': field.default
      for field in config_lib.FIELDS
      if not isinstance(field.default, (type, dict))
  }
  configs = [r for r in rows if any(k.startswith('config.') for k in r)]
  names = {k: None for r in configs for k in r if k.startswith('config.')}
  found = {}
  for name in sorted(names.keys() - {'config.name'}):
    for r in configs:
      if name not in r and name in defaults:
        r[name] = defaults[name]
    values = [_text(r.get(name)) for r in configs]
    if len(set(values)) > 1:
      found[name] = max(values, key=values.count)
  return found


# ---------------------------------------------------------------------- show


def _text(value: Any) -> str:
  """Return a config value as it is written on the command line."""
  if isinstance(value, (list, tuple)):
    value = f'({", ".join(map(str, value))})'
  return '-' if value is None else str(value)


def _cells(row: Row) -> dict[str, str]:
  """Return the cells of a run by heading, the most important ones first."""
  number = lambda name, form: '-' if row.get(name) is None else form(row[name])
  score = number('score', numerals.share)
  if None not in (row.get('low'), row.get('high')):
    score += f' {numerals.interval(row)}'
  state = row['state'].partition(':')[0]
  return {
      'state': re.sub(' at (?:step|trial|round) (.*) of ', r' \1/', state),
      'score': score,
      'gain': number('gain', numerals.points),
      'time': number('seconds', numerals.duration),
      'mode': row['mode'] or '-',
      'tokens': number('tokens', '{:,}'.format),
      'dollars': number('dollars', '${:,.2f}'.format),
  }


def _show(root: pathlib.Path, rows: Sequence[Row]) -> None:
  """Print a table; cells that do not fit are listed in a line below the run."""
  if not rows:
    output.say(f'no runs below {root}')
    return
  usual = differences(rows)
  cells = [_cells(row) for row in rows]
  first = min(max(len(row['name']) for row in rows), 24)
  columns, room = {}, output.width() - first
  for heading in cells[0]:
    texts = [heading, *(c[heading] for c in cells)]
    needed = 2 + max(map(len, texts))
    if needed <= room and {*texts[1:]} != {'-'}:
      columns[heading], room = needed, room - needed
  order = [h for h in ('mode', *cells[0]) if h in columns]
  order = list(dict.fromkeys(order))
  line = lambda c: ''.join(f'{c[h]:>{columns[h]}}' for h in order)
  output.say(f'{"run":{first}}{line({h: h for h in order})}')
  for row, texts in zip(rows, cells, strict=True):
    name = row['name']
    if len(name) > first:
      output.say(name)
      name = ''
    output.say(f'{name:{first}}{line(texts)}')
    notes = [
        f'{h} {t}' for h, t in texts.items() if h not in columns and t != '-'
    ]
    notes += _notes(row, usual)
    if notes:
      output.say(f'  {", ".join(notes)}')
  for text in _below(rows, usual):
    output.say(text)


def _notes(row: Row, usual: Mapping[str, str]) -> list[str]:
  """Return the fields in which a run differs, and why it cannot be read."""
  notes = [
      f'{name.removeprefix("config.")}={_text(row.get(name))}'
      for name, value in usual.items()
      if _text(row.get(name)) != value and name in row
      # Fields of the meta-loop do not matter for a policy trained alone.
      and not (row['mode'] != 'evolve' and name.startswith('config.evolve.'))
  ]
  return notes + [row['state']] * row['state'].startswith('broken')


def _below(rows: Sequence[Row], usual: Mapping[str, str]) -> list[str]:
  """Return the lines below a table of runs."""
  found = []
  if usual:
    listed = (f'{n.removeprefix("config.")}={v}' for n, v in usual.items())
    found.append(f'the others have {", ".join(listed)}')
  if len({row.get('split') for row in rows if row.get('split')}) > 1:
    dev = [row['name'] for row in rows if row.get('split') == 'dev']
    names = ', '.join(dev)
    found.append(f'scored on dev problems, not on sealed ones: {names}')
  return found


def page(
    root: pathlib.Path,
    rows: Sequence[Row],
    title: str = '',
    settings: Sequence[Mapping[str, str]] = (),
    meaning: str = '',
    state: state_lib.State | None = None,
    next_seconds: float = 0.0,
) -> str:
  """Return an HTML page of runs; its links work if it is stored in `root`.

  Args:
    root: The directory.
    rows: The runs below it.
    title: Heading of the page; by default it names the directory.
    settings: Rows of a sweep's table, cells by heading, if the runs are the
      points of a sweep.
    meaning: An explanation of the numbers in these rows.
    state: State of what makes the runs, if that is known.
    next_seconds: Seconds until the next page, while that is running.
  """
  usual, runs = differences(rows), []
  for row in rows:
    # If the root is itself the run, its name is no folder below the root.
    folder = row['name'] if (root / row['name']).is_dir() else '.'
    link = f'{folder}/{run_files.REPORT}'
    # In a URL, '#' and '?' end a path, and ':' ends a scheme.
    quoted = urllib.parse.quote(os.fsencode(link))
    runs.append(
        {
            **_cells(row),
            'name': row['name'],
            'page': quoted if (root / link).exists() else '',
            'notes': _notes(row, usual),
        }
    )
  headings = [
      heading
      for heading in ('mode', 'gain', 'time', 'tokens', 'dollars')
      if any(run[heading] != '-' for run in runs)
  ]
  states = [row['state'].partition(':')[0].partition(' ')[0] for row in rows]
  counted = (f'{states.count(s)} {s}' for s in dict.fromkeys(states))
  context = {
      'name': title or mirror.shown(f'Runs below {root}'),
      'verdict': f'{numerals.counted(len(rows), "run")}: {", ".join(counted)}.',
      'state': state or {},
      'runs': runs,
      'settings': settings,
      'meaning': meaning,
      'headings': headings,
      'below': _below(rows, usual),
  }
  return page_lib.render('runs.html', context, next_seconds)


def _plain(rows: Sequence[Row]) -> tuple[list[str], list[Row]]:
  """Return the fields of a CSV or JSON file, and the rows without NaN."""
  fields = [*FIELDS, *differences(rows)]
  finite = (
      lambda v: None if isinstance(v, float) and not math.isfinite(v) else v
  )
  return fields, [{f: finite(row.get(f)) for f in fields} for row in rows]


def _csv(rows: Sequence[Row]) -> str:
  """Return comma-separated values with a header, for spreadsheets or pandas."""
  fields, plain = _plain(rows)
  out = io.StringIO()
  writer = csv.DictWriter(out, fields, lineterminator='\n')
  writer.writeheader()
  writer.writerows(plain)
  return out.getvalue()


def _json(rows: Sequence[Row]) -> str:
  """Return one JSON list of objects, for scripts."""
  return json.dumps(_plain(rows)[1], indent=1, allow_nan=False) + '\n'
