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
dollars count all devices from the first to the last step, including restarts,
at --config.evolve.dollars_per_device_hour.
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

_RECORD = flags.DEFINE_string('record', '', 'Workdir of a finished run.')
_ROWS = flags.DEFINE_string('rows', '', 'Another file of rows.')

ROOT = pathlib.Path(__file__).resolve().parents[1]
ROWS = ROOT / 'benchmarks' / 'reference.jsonl'
MARKS = '<!-- reference rows -->', '<!-- end of reference rows -->'
_HEAD = (
    '| checkpoint | hardware | solved before | after | tokens/s/device | MFU |'
    ' device-hours | cost | jax, evojax | run on |'
)


def row(workdir: pathlib.Path) -> dict[str, Any]:
  """Return the row of a finished run of --mode=train.

  Raises:
    ValueError: If the workdir holds none, or not yet.
  """
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
  model = domains.policy_path(config['model']['path'])
  parameters = decoder.count_params(hf_config.load(model))
  rows = [r for r in curves.read(workdir) if 'tokens_per_second' in r]
  steady = rows[1:] or rows
  median = lambda name: statistics.median(r[name] for r in steady)
  devices = last['devices']
  name = f'{devices} x {last["device"]}'
  if last['platform'] == 'cpu':
    name = f'CPU, {last["cpus"]} cores'
  hours = goodput.wall_seconds(workdir) / 3600 * devices
  price = config['evolve']['dollars_per_device_hour']
  return {
      'checkpoint': model.name,
      'parameters': parameters,
      'random': (model / 'RANDOM_WEIGHTS').exists(),
      'hardware': name,
      'config': config['name'],
      'steps': summary['steps'],
      'split': scores['split'],
      'problems': scores['problems'],
      'samples': scores['samples'],
      **{
          side: {k: scores[side][k] for k in ('value', 'low', 'high')}
          for side in ('before', 'after', 'gain')
      },
      'tokens_per_second_device': median('tokens_per_second') / devices,
      'mfu': median('mfu') if 'mfu' in steady[-1] else None,
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


def _cells(r: dict[str, Any]) -> list[str]:
  name = r['checkpoint'] + ' (random weights)' * bool(r.get('random'))
  if 'date' not in r:
    return [name, r['hardware'], *[''] * 7, '**not run yet**']
  share = lambda side: '{value:.1%} [{low:.1%}, {high:.1%}]'.format(**r[side])
  return [
      name,
      r['hardware'],
      share('before'),
      share('after'),
      f'{r["tokens_per_second_device"]:,.0f}',
      'peak unknown' if r['mfu'] is None else f'{r["mfu"]:.1%}',
      f'{r["device_hours"]:.3g}',
      'no price' if r['dollars'] is None else f'${r["dollars"]:,.2f}',
      f'{r["jax"]}, {r["evojax"][:9] or "unknown"}',
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
      record(row(pathlib.Path(_RECORD.value).expanduser()), path)
    except ValueError as error:
      raise SystemExit(f'error: {error}') from error
  if path == ROWS:
    readme = ROOT / 'README.md'
    readme.write_text(with_table(readme.read_text(), read(path)))
  print(table(read(path)))


if __name__ == '__main__':
  app.run(main)
