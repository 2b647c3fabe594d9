"""Counts the rounds that a fault takes to be repaired, with and without skills.

    python -m benchmarks.skills --fault=math_kl_strong
        --library=own=DIR[,DIR] --library=elsewhere=DIR,DIR
        [--seeds=5] [--first_seed=0] [--rounds=6] [--out=runs/skills]
        [--config=PATH=VALUE ...]

A fault of benchmarks/faults (or a directory like one) is planted and evolves,
for every seed, under four libraries of skills:

empty       none; only the shipped interventions
own         skills that runs of this domain learned: their directories skills/
elsewhere   skills that runs of two other domains learned; one that held in a
            single other domain does not apply here, see evojax.evolve.skills
wrong       the skills of `own` with the opposite change: what `own` multiplies
            is divided, and a weight of the reward changes its sign

The evidence of a wrong skill is that of its original, so a run trusts it as
much. A library that is not given is left out; others may be given by any name.
A run has repaired its fault after round r if the values of the policy's harness
are in the ranges of [repaired.paths] of the fault from round r to the last one;
rounds count from 1. A run that has not is counted as one round more than it
had, which is too few, and is marked by `>`.

The table shows all seeds, means with t intervals, and the difference to `empty`
within seeds. The checks of a run repair what they name before any skill is
tried; the table also says how many proposals came from a skill.

The command works as a queue: finished runs in --out are not repeated.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import pathlib
from typing import Any

from absl import app
from absl import flags
import numpy as np
from scipy import stats

from benchmarks import runs as runs_lib
from benchmarks.faults import jobs
from benchmarks.faults import runner
from benchmarks.faults import settings as settings_lib
from evojax import config as config_lib
from evojax.evolve import skills as skills_lib
from evojax.harness import surface as surface_lib
from evojax.ledger import history as history_lib
from evojax.ledger import records

_FAULT = flags.DEFINE_string('fault', 'math_kl_strong', 'Name or directory.')
_LIBRARIES = flags.DEFINE_multi_string(
    'library', [], 'NAME=DIR,...: directories with skills of other runs.'
)
_SEEDS = flags.DEFINE_integer('seeds', 5, 'Number of seeds.', lower_bound=1)
_FIRST = flags.DEFINE_integer('first_seed', 0, 'The first seed.')
_ROUNDS = flags.DEFINE_integer('rounds', 6, 'Rounds of a run.', lower_bound=1)
_OUT = flags.DEFINE_string('out', 'runs/skills', 'Folder of the runs.')
_CONFIG = flags.DEFINE_multi_string(
    'config', [], 'PATH=VALUE (JSON) of the runs, such as evolve.pairs=3.'
)


@dataclasses.dataclass(frozen=True)
class Repair:
  """How fast one run repaired its fault."""

  rounds: int  # Until it was repaired; one more than it had if it was not.
  repaired: bool
  from_skills: int  # Proposals that a skill made.

  def __str__(self) -> str:
    return f'{self.rounds}' if self.repaired else f'>{self.rounds - 1}'


def invert(skill: skills_lib.Skill) -> skills_lib.Skill | None:
  """Return the skill with the opposite change; None if it has no opposite."""
  opposite = {}
  for path, (operation, value) in skill.overlay.items():
    if not skills_lib.is_number(value) or not value:
      return None
    if operation == 'set' and not surface_lib.is_weight(path):
      return None  # Most settings have no negative values.
    inverse = 1 / value if operation == 'scale' else -value
    opposite[path] = operation, float(f'{inverse:.6g}')
  return dataclasses.replace(skill, overlay=opposite) if opposite else None


def write_inverted(
    directories: Sequence[str],
    setting: settings_lib.Setting,
    folder: pathlib.Path,
) -> None:
  """Write the opposites of all skills in some directories.

  Raises:
    ValueError: If no skill has an opposite.
  """
  surface = runner.surface_of(settings_lib.clean(setting))
  known = skills_lib.read_all(directories, surface)
  found = [s for s in map(invert, known) if s is not None]
  if not found:
    raise ValueError(
        f'none of the {len(known)} skills in {", ".join(directories)} scales a'
        ' value or sets a weight, so none has an opposite; give'
        ' --library=wrong=DIR'
    )
  for skill in found:
    skills_lib.write(folder, skill)


def check_applies(
    name: str, directories: Sequence[str], setting: settings_lib.Setting
) -> None:
  """Check that a library has a skill that a run of the fault may use.

  Raises:
    ValueError: If it has none, or a directory does not exist.
  """
  skills_lib.check_directories(directories)
  surface = runner.surface_of(settings_lib.clean(setting))
  known = skills_lib.read_all(directories, surface)
  if not any(
      setting.base in s.domains or len(s.domains) >= skills_lib.CROSS_DOMAIN
      for s in known
  ):
    domains = sorted({d for s in known for d in s.domains})
    raise ValueError(
        f'--library={name}: none of its {len(known)} skills applies in'
        f' {setting.base}: they held in {domains}, and a skill applies in the'
        f' domains where it held, or anywhere after {skills_lib.CROSS_DOMAIN};'
        ' add the skills of another domain'
    )


def libraries(
    given: Sequence[str], setting: settings_lib.Setting, out: pathlib.Path
) -> dict[str, tuple[str, ...]]:
  """Return the directories of each library, the empty one first.

  Raises:
    ValueError: If an argument is not NAME=DIR,..., or a library cannot work.
  """
  found = {'empty': ()}
  for text in given:
    name, _, directories = text.partition('=')
    if not (name.isidentifier() and directories) or name in found:
      raise ValueError(f'--library={text!r}: give NAME=DIR,DIR, each name once')
    found[name] = tuple(
        str(pathlib.Path(d).resolve()) for d in directories.split(',')
    )
    check_applies(name, found[name], setting)
  if 'own' in found and 'wrong' not in found:
    wrong = out / 'wrong'
    write_inverted(found['own'], setting, wrong)
    found['wrong'] = (str(wrong),)
  return found


def finish(
    setting: settings_lib.Setting,
    seed: int,
    rounds: int,
    skills: Sequence[str],
    changes: Mapping[str, Any],
    folder: pathlib.Path,
) -> history_lib.History:
  """Return the history of a run of a fault; start it only if it has not ended.

  Args:
    setting: The planted fault.
    seed: Seed of the run.
    rounds: Its rounds.
    skills: Directories of skills.
    changes: Further values of its config, by dotted path.
    folder: Folder of the run.

  Raises:
    subprocess.CalledProcessError: If it fails.
  """
  run, job = folder / 'run', folder / 'job'
  if not (run / runs_lib.SUMMARY).exists():
    if not run.exists():
      jobs.make(setting, job, seed=seed, tokens=0, seconds=0)
    values = json.loads((job / 'config.json').read_text())
    config = config_lib.from_mapping(values).copy_and_resolve_references()
    flat = {'evolve.rounds': rounds, 'evolve.skills': tuple(skills), **changes}
    with config.unlocked():
      config.update_from_flattened_dict(flat)
    runner.start(
        'evolve', config, folder / 'config.json', run, jobs.environment(job)
    )
  return history_lib.read(run)


def repair(
    history: history_lib.History,
    values: Mapping[str, Mapping[str, Any]],
    paths: Mapping[str, tuple[float, float]],
) -> Repair:
  """Return when a run repaired its fault.

  Args:
    history: The run.
    values: Flat config values under each harness, by its hash.
    paths: Path -> range of a repaired value.
  """
  rounds = max((race.round for race in history.races), default=-1) + 1
  head = dict.fromkeys(range(rounds), history.base.harness)
  for version in history.all(records.Promote):
    if version.round is not None:
      head |= dict.fromkeys(range(version.round, rounds), version.harness)
  first = rounds
  for number in reversed(range(rounds)):
    of_head = values[head[number]]
    if not all(
        jobs.in_range(of_head.get(path, 0.0), low, high)
        for path, (low, high) in paths.items()
    ):
      break
    first = number
  return Repair(
      first + 1,
      first < rounds,
      sum(bool(t.hypothesize.skill) for t in history.trials),
  )


def _values(
    folder: pathlib.Path, setting: settings_lib.Setting
) -> dict[str, dict[str, Any]]:
  """Return the flat config values under each harness of a run."""
  given = json.loads((folder / 'config.json').read_text())
  config = config_lib.from_mapping(given)
  surface = runner.surface_of(settings_lib.clean(setting))
  return {
      path.parent.name: config_lib.flatten(
          surface.apply(config, json.loads(path.read_text()))
      )
      for path in (folder / 'run' / 'harness').glob('*/overlay.json')
  }


def _interval(values: Sequence[float]) -> str:
  """Return a mean and its t interval; the mean alone of one value."""
  mean = float(np.mean(values))
  if len(values) < 2:
    return f'{mean:.1f}'
  error = np.std(values, ddof=1) / np.sqrt(len(values))
  margin = stats.t.ppf(0.975, len(values) - 1) * error
  return f'{mean:.1f} [{mean - margin:.1f}, {mean + margin:.1f}]'


def table(found: Mapping[str, Sequence[Repair]]) -> list[str]:
  """Return the lines of the table.

  Args:
    found: Library -> the runs, in the order of the seeds.
  """
  lines = [
      f'{"library":10} {"rounds, by seed":24} {"mean":18}'
      f' {"minus empty":18} {"repaired":8}  from skills'
  ]
  empty = [r.rounds for r in found['empty']]
  for name, repairs in found.items():
    rounds = [r.rounds for r in repairs]
    over = [a - b for a, b in zip(rounds, empty, strict=True)]
    fixed = f'{sum(r.repaired for r in repairs)}/{len(repairs)}'
    lines.append(
        f'{name:10} {", ".join(map(str, repairs)):24} {_interval(rounds):18}'
        f' {_interval(over) if name != "empty" else "":18} {fixed:8}'
        f'  {sum(r.from_skills for r in repairs)}'
    )
  if any(not r.repaired for repairs in found.values() for r in repairs):
    lines.append('> not repaired; counted as one round more than the run had')
  return lines


def _changes(given: Sequence[str]) -> dict[str, Any]:
  """Return the values of --config.

  Raises:
    ValueError: If one is not PATH=VALUE.
  """
  found = {}
  for text in given:
    path, is_, value = text.partition('=')
    try:
      found[path] = json.loads(value)
    except ValueError as error:
      raise ValueError(f'--config={text!r}: give PATH=VALUE, JSON') from error
    if not is_:
      raise ValueError(f'--config={text!r}: give PATH=VALUE, JSON')
  return found


def main(_):
  out = pathlib.Path(_OUT.value).resolve()
  path = pathlib.Path(_FAULT.value)
  path = path if path.is_dir() else settings_lib.FOLDER / path
  try:
    setting = settings_lib.read(path)
    if not setting.paths:
      raise ValueError(
          f'--fault={_FAULT.value}: it has no [repaired.paths] that say which'
          ' values are sound; choose a fault that has'
      )
    chosen = libraries(_LIBRARIES.value, setting, out)
    changes = _changes(_CONFIG.value)
  except ValueError as error:
    raise app.UsageError(str(error)) from error
  found = {name: [] for name in chosen}
  for seed in range(_FIRST.value, _FIRST.value + _SEEDS.value):
    for name, directories in chosen.items():
      folder = out / setting.name / f'{name}-{seed}'
      history = finish(
          setting, seed, _ROUNDS.value, directories, changes, folder
      )
      found[name].append(
          repair(history, _values(folder, setting), setting.paths)
      )
  print('\n'.join(table(found)))


if __name__ == '__main__':
  app.run(main)
