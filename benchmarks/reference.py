"""Records runs of real checkpoints, and prints the README's table of them.

    python -m benchmarks.reference --record=WORKDIR     after such a run
    python -m benchmarks.reference                      prints the table

launch/reference_run.sh trains and records. The rows are lines of
benchmarks/reference.jsonl. A row without `date` is planned and has not been
run; a run replaces the row of the same checkpoint and hardware. The table of
the README, between two marks, is written anew with every row.

tokens_per_second_device is the number of sampled tokens divided by the time of
a whole step and by the devices. It and mfu (see `evojax.models.flops.model`)
are medians over all steps except the first, which compiles. device_hours and
dollars count all devices of a start until its last step, loading and steps that
a restart repeats included, at --config.evolve.dollars_per_device_hour. Where a
run continued on other devices, the row names both.
"""

import json
import pathlib
import statistics
from typing import Any

from absl import app
from absl import flags

from evojax import domains
from evojax.models import decoder
from evojax.models import hf_config
from evojax.report import curves
from evojax.runtime import goodput
from evojax.runtime import mirror
from evojax.runtime import storage

_RECORD = flags.DEFINE_string('record', '', 'Workdir of a finished run.')
_ROWS = flags.DEFINE_string('rows', '', 'Another file of rows.')

ROOT = pathlib.Path(__file__).resolve().parents[1]
ROWS = ROOT / 'benchmarks' / 'reference.jsonl'
# Files of a policy's directory that say what it is.
_OF_MODEL = 'config.json', 'RANDOM_WEIGHTS'
MARKS = '<!-- reference rows -->', '<!-- end of reference rows -->'
_HEAD = (
    '| checkpoint | hardware | steps | solved before | after |'
    ' tokens/s/device | MFU | device-hours | cost | jax, evojax | run on |'
)


def _hardware(start: dict[str, Any]) -> str:
  """Return the name of the devices of a start."""
  if start['platform'] == 'cpu':
    return f'CPU, {start["cpus"]} cores'
  return f'{start["devices"]} x {start["device"]}'


def row(workdir: str) -> dict[str, Any]:
  """Return the row of a finished run of --mode=train.

  Args:
    workdir: A path, or a URL, of which only the run's own files are downloaded.

  Raises:
    ValueError: If the workdir holds no such run, or one that has not ended.
    storage.StorageError: If the store does not answer.
  """
  with mirror.opened(workdir, lambda name: '/' not in name) as path:
    return _row(pathlib.Path(path).expanduser())


def _row(workdir: pathlib.Path) -> dict[str, Any]:
  """Return the row of a run in a directory of this machine."""
  try:
    config, summary, starts = (
        json.loads((workdir / f'{name}.json').read_text())
        for name in ('config', 'summary', 'manifest')
    )
    scores = summary['gain'].get('sealed') or summary['gain']['dev']
  except (OSError, KeyError) as error:
    raise ValueError(
        f'--record={workdir} holds no finished run of --mode=train ({error});'
        ' the same command of launch/reference_run.sh continues it'
    ) from error
  config, last = config['config'], starts[-1]
  path = config['model']['path']
  model = domains.policy_path(path, _OF_MODEL)
  parameters = decoder.count_params(hf_config.load(model))
  rows = [r for r in curves.read(workdir) if 'tokens_per_second' in r]
  steady = rows[1:] or rows
  start_of = goodput.start_of(workdir)
  held = goodput.held(workdir)
  hours = sum(start['devices'] * seconds for start, seconds in held) / 3600
  used = dict.fromkeys(_hardware(start) for start, seconds in held if seconds)
  speeds = [
      r['tokens_per_second'] / start_of(r['step'])['devices'] for r in steady
  ]
  # Steps of a start that did not know the peak of its devices have no mfu.
  shares = [r['mfu'] for r in steady if 'mfu' in r]
  price = config['evolve']['dollars_per_device_hour']
  return {
      'checkpoint': path.rstrip('/').rpartition('/')[2],
      'parameters': parameters,
      'random': (model / 'RANDOM_WEIGHTS').exists(),
      'hardware': ', then '.join(used),
      'config': config['name'],
      'steps': summary['steps'],
      'split': scores['split'],
      'problems': scores['problems'],
      'samples': scores['samples'],
      **{
          side: {k: scores[side][k] for k in ('value', 'low', 'high')}
          for side in ('before', 'after', 'gain')
      },
      'tokens_per_second_device': statistics.median(speeds),
      'mfu': statistics.median(shares) if shares else None,
      'goodput': rows[-1]['goodput'],
      'device_hours': hours,
      'dollars': hours * price if price else None,
      'jax': last['jax'],
      'evojax': last['commit'],
      'date': last['start'][:10],
  }


def read(path: pathlib.Path = ROWS) -> list[dict[str, Any]]:
  """Return all rows."""
  return [json.loads(line) for line in path.read_text().splitlines()]


def record(new: dict[str, Any], path: pathlib.Path = ROWS) -> None:
  """Write a row; it replaces the row of the same checkpoint and hardware."""
  key = lambda r: (r['checkpoint'], r['hardware'])
  rows = read(path) if path.exists() else []
  rows = [r for r in rows if key(r) != key(new)]
  lines = (json.dumps(r) + '\n' for r in [*rows, new])
  path.write_text(''.join(lines))


def _price(dollars: float | None) -> str:
  if dollars is None:
    return 'no price'
  return f'${dollars:,.2f}' if dollars >= 0.01 else 'below $0.01'


def _cells(r: dict[str, Any]) -> list[str]:
  name = r['checkpoint'] + ' (random weights)' * bool(r.get('random'))
  if 'date' not in r:
    return [name, r['hardware'], *[''] * 8, '**not run yet**']
  commit, dirty, _ = r['evojax'].partition('-dirty')
  share = lambda side: '{value:.1%} [{low:.1%}, {high:.1%}]'.format(**r[side])
  return [
      name,
      r['hardware'],
      str(r['steps']),
      share('before'),
      share('after'),
      f'{r["tokens_per_second_device"]:,.0f}',
      'peak unknown' if r['mfu'] is None else f'{r["mfu"]:.1%}',
      f'{r["device_hours"]:.3g}',
      _price(r['dollars']),
      f'{r["jax"]}, {commit[:9] or "unknown"}{dirty}',
      r['date'],
  ]


def table(rows: list[dict[str, Any]]) -> str:
  """Return the rows as a table in Markdown; those that were run come first."""
  ordered = sorted(rows, key=lambda r: 'date' not in r)
  lines = [_HEAD, '|' + ' --- |' * (_HEAD.count('|') - 1)]
  lines += ['| ' + ' | '.join(_cells(r)) + ' |' for r in ordered]
  return '\n'.join(lines)


def with_table(text: str, rows: list[dict[str, Any]]) -> str:
  """Return a text with the table between the marks.

  Raises:
    ValueError: If the text has no marks.
  """
  begin, end = (text.find(mark) for mark in MARKS)
  if not -1 < begin < end:
    raise ValueError(f'README.md lacks the marks {MARKS}; put them back')
  head, tail = text[: begin + len(MARKS[0])], text[end:]
  return f'{head}\n{table(rows)}\n{tail}'


def main(_):
  path = pathlib.Path(_ROWS.value or ROWS)
  if _RECORD.value:
    try:
      record(row(_RECORD.value), path)
    except (ValueError, storage.StorageError) as error:
      raise SystemExit(mirror.shown(f'error: {error}')) from error
  if path == ROWS:
    readme = ROOT / 'README.md'
    readme.write_text(with_table(readme.read_text(), read(path)))
  print(table(read(path)))


if __name__ == '__main__':
  app.run(main)
