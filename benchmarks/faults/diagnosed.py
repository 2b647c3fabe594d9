"""The system 'diagnose': plain training, and what evojax-diagnose says of it.

    python -m benchmarks.faults.diagnosed JOB

It trains the config of the job without evolving it, and reads the diagnosis
after the first 8 updates and after as many as the tokens pay for. It repairs
nothing and returns no policy, so a job costs little: `--tokens=1e5` shows
within minutes which faults the checks name. The named causes are those of the
remedies of the findings, worst findings first.
"""

from collections.abc import Iterable
import json
import pathlib
import subprocess
import sys

from benchmarks.faults import jobs
from benchmarks.faults import runner
from evojax import config as config_lib
from evojax.diagnosis import examine
from evojax.diagnosis import findings as findings_lib
from evojax.diagnosis.readers import workdir
from evojax.evolve import repairs
from evojax.harness import spec
from evojax.harness import surface as surface_lib
from evojax.ledger import records
from evojax.training import arm as arm_lib

_FIRST = 8  # Updates; fewer are too few for most checks.
_CAUSES = {'reward.py': 'reward', 'keep.py': 'filter', 'weight.py': 'credit'}


def causes(
    found: Iterable[findings_lib.Finding], surface: surface_lib.Surface
) -> list[str]:
  """Return the causes that findings name, worst first; see `jobs`.

  Args:
    found: The findings.
    surface: The values that a harness of the run may change.
  """
  named: dict[str, None] = {}
  for finding in found:
    if finding.severity == 'note':
      continue
    for remedy in finding.remedies:
      named[_cause(remedy, surface)] = None
  return list(named)[: jobs.MOST_CAUSES]


def _cause(remedy: records.Remedy, surface: surface_lib.Surface) -> str:
  path = repairs.path_of(remedy)
  if path in _CAUSES:
    return _CAUSES[path]
  try:
    return surface.field(path).intervention_class
  except surface_lib.SurfaceError:
    return 'grader' if remedy.setting == 'grader' else 'outside'


def main(path: str) -> None:
  given = json.loads(pathlib.Path(path).read_text())
  config = json.loads(pathlib.Path(given['config']).read_text())
  run = pathlib.Path(given['workdir'])
  surface = runner.surface_of(config_lib.from_mapping(config))
  values = config_lib.flatten(config_lib.from_mapping(config))
  harness = spec.read(values['harness.path'])
  spec.write(harness, run / 'harness')
  folders: list[str] = []
  start = ''

  def look(updates: int) -> tuple[int, list[str]]:
    """Train an arm; return the tokens of all arms, and the named causes."""
    nonlocal start
    folder = f'arms/{len(folders)}'
    folders.append(folder)
    job = arm_lib.ArmJob(
        workdir=str(run),
        folder=folder,
        config=config,
        changes={'steps': updates, 'seed': given['seed'] + len(folders)},
        harness=harness.sha256,
        start=start,
        label=folder,
    )
    job.path.mkdir(parents=True)
    file = job.path / 'job.json'
    file.write_text(job.to_json())
    command = [sys.executable, '-m', 'evojax.main', '--mode=arm']
    subprocess.run([*command, f'--job={file}'], check=True)
    start = str(arm_lib.checkpoint_of(folder, updates))
    arms = [run / name for name in folders]
    tokens = sum(map(arm_lib.sampled_tokens, arms))
    found = workdir.read_arms(run, arms, values | harness.overlay)
    return tokens, causes(examine.examine(found).findings, surface)

  tokens, named = look(_FIRST)
  since = tokens if named else None
  # Completions may become longer.
  more = int(0.9 * _FIRST * (given['tokens'] / max(tokens, 1) - 1))
  if more > 0:
    tokens, later = look(more)
    named = later or named
    since = since or (tokens if named else None)
  status = 'named' if named else 'nothing'
  answer = dict(status=status, causes=named, tokens=tokens, since=since)
  pathlib.Path(given['answer']).write_text(json.dumps(answer))


if __name__ == '__main__':
  main(sys.argv[1])
