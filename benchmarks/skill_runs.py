"""Runs of a planted fault under libraries of skills, and their table.

See benchmarks.skills, which is the command.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import pathlib
import shutil
from typing import Any

from benchmarks.faults import jobs
from benchmarks.faults import runner
from benchmarks.faults import settings as settings_lib
from evojax import config as config_lib
from evojax.evolve import skills as skills_lib
from evojax.harness import surface as surface_lib
from evojax.ledger import history as history_lib
from evojax.ledger import records
from evojax.runtime import run_files
from evojax.stats import intervals


@dataclasses.dataclass(frozen=True)
class Repair:
  """How fast one run repaired its fault."""

  rounds: int  # Until repaired; else one more than the run had.
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
    wrong = out / setting.name / 'skills-wrong'
    shutil.rmtree(wrong, ignore_errors=True)  # Left by an earlier call.
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
    ValueError: If it was begun with other skills, rounds or changes.
  """
  run, job = folder / 'run', folder / 'job'
  if not run.exists():
    jobs.make(setting, job, seed=seed, tokens=0, seconds=0)
  values = json.loads((job / 'config.json').read_text())
  config = config_lib.with_fields(
      config_lib.from_mapping(values),
      {'evolve.rounds': rounds, 'evolve.skills': tuple(skills), **changes},
  )
  begun = folder / 'config.json'
  given = json.loads(begun.read_text()) if begun.exists() else None
  if given and (other := _differs(given, config)):
    raise ValueError(
        f'{folder} was begun with another {other}; give the same --library,'
        ' --rounds and --config, or another --out'
    )
  if not (run / run_files.SUMMARY).exists():
    runner.start('evolve', config, begun, run, jobs.environment(job))
  return history_lib.read(run)


def _differs(given: Mapping[str, Any], config: Any) -> str:
  """Return a field whose value differs in a stored config; '' if none does."""
  stored = config_lib.flatten(config_lib.from_mapping(given))
  fields = config_lib.flatten(config)
  return next((name for name in fields if stored[name] != fields[name]), '')


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


def values_of(
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
  if len(values) < 2:
    return f'{values[0]:.1f}'
  found = intervals.student(values)
  return f'{found.value:.1f} [{found.low:.1f}, {found.high:.1f}]'


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


def changes_of(given: Sequence[str]) -> dict[str, Any]:
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
