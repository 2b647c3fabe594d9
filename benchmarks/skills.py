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
rounds count from 1. A run that has not repaired it counts as one round more
than it had; this underestimates, and is marked by `>`.

The table shows all seeds, means with t intervals, and the difference to `empty`
within seeds. The checks of a run repair what they name before any skill is
tried; the table also says how many proposals came from a skill.

The command works as a queue: finished runs in --out are not repeated.
"""

import pathlib

from absl import app
from absl import flags

from benchmarks import skill_runs
from benchmarks.faults import settings as settings_lib

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
    chosen = skill_runs.libraries(_LIBRARIES.value, setting, out)
    changes = skill_runs.changes_of(_CONFIG.value)
  except ValueError as error:
    raise app.UsageError(str(error)) from error
  found = {name: [] for name in chosen}
  for seed in range(_FIRST.value, _FIRST.value + _SEEDS.value):
    for name, directories in chosen.items():
      folder = out / setting.name / f'{name}-{seed}'
      try:
        history = skill_runs.finish(
            setting, seed, _ROUNDS.value, directories, changes, folder
        )
      except ValueError as error:
        raise app.UsageError(str(error)) from error
      values = skill_runs.values_of(folder, setting)
      repaired = skill_runs.repair(history, values, setting.paths)
      found[name].append(repaired)
  print('\n'.join(skill_runs.table(found)))


if __name__ == '__main__':
  app.run(main)
