"""A job for a system, and the system's answer.

A system is a command. It is called with the path of a job, in the root of the
checkout:

    {"config": FILE,    the resolved config, JSON; harness.path is set in it
     "workdir": DIR,    an empty directory for the system's files
     "tokens": 1000000, limit of sampled tokens, search and scores included
     "seed": 0,
     "seconds": 3600,   time limit, after which the command is killed
     "causes": [...],   the causes that may be named
     "answer": FILE}    path for the answer

The domain of the config may be a module `task` in PYTHONPATH. The system
trains, and writes

    {"status": "repaired" | "named" | "nothing",
     "causes": ["reward"],   at most two, the likeliest first
     "tokens": 812345,       sampled in all
     "since": 120000,        tokens sampled when the cause was first known
     "policy": DIR,          a Hugging Face directory; '' if there is none
     "values": {"optim.learning_rate": 1e-4}}    under which it was trained

Everything else that a system writes is ignored.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time
from typing import Any

from benchmarks.faults import settings as settings_lib
from evojax import config as config_lib
from evojax.harness import spec

STATUSES = ('repaired', 'named', 'nothing')
POLICY = 'policy'  # Folder of a job's base policy, if it is not a shipped one.
MOST_CAUSES = 2  # A system could otherwise name every cause.
_MOST_BYTES = 1 << 20  # Largest answer.
_POLL_SECONDS = 0.2
_ROOT = pathlib.Path(__file__).parents[2]


class AnswerError(ValueError):
  """The answer of a system is missing or not valid."""


@dataclasses.dataclass(frozen=True)
class Answer:
  """The answer of a system."""

  status: str
  causes: tuple[str, ...]
  tokens: int
  since: int | None
  policy: pathlib.Path | None
  values: Mapping[str, Any]


def make(
    setting: settings_lib.Setting,
    folder: pathlib.Path,
    *,
    seed: int,
    tokens: int,
    seconds: float,
) -> pathlib.Path:
  """Write a job; return its path. Its files do not reveal the fault."""
  shutil.rmtree(folder, ignore_errors=True)
  workdir = folder / 'workdir'
  workdir.mkdir(parents=True)
  planted = settings_lib.harness(setting)
  config = config_lib.with_fields(
      settings_lib.planted(setting),
      {
          'seed': seed,
          'harness.path': str(spec.write(planted, folder / 'harness')),
          'model.path': settings_lib.write_policy(setting, folder / POLICY),
      },
  )
  if (task := setting.path / f'{settings_lib.TASK}.py').exists():
    (folder / 'code').mkdir()
    shutil.copy(task, folder / 'code')
  (folder / 'config.json').write_text(config_lib.to_json(config))
  job = dict(
      config=str(folder / 'config.json'),
      workdir=str(workdir),
      tokens=tokens,
      seed=seed,
      seconds=seconds,
      causes=settings_lib.CAUSES,
      answer=str(folder / 'answer.json'),
  )
  path = folder / 'job.json'
  path.write_text(json.dumps(job, indent=2))
  return path


def environment(folder: pathlib.Path) -> dict[str, str]:
  """Return the environment of a process that reads the config in a folder."""
  paths = [folder / 'code', _ROOT]
  if before := os.environ.get('PYTHONPATH'):
    paths.append(pathlib.Path(before))
  return {**os.environ, 'PYTHONPATH': os.pathsep.join(map(str, paths))}


def run(
    command: Sequence[str], job: pathlib.Path, stop: threading.Event
) -> Answer:
  """Run a system on a job.

  Args:
    command: Command of the system.
    job: Path of the job.
    stop: Kills the command when it is set.

  Raises:
    AnswerError: If it crashes, times out, is stopped, or gives an invalid
      answer.
  """
  given = json.loads(job.read_text())
  with (job.parent / 'log.txt').open('wb') as log:
    process = subprocess.Popen(
        [*command, str(job)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=_ROOT,
        env=environment(job.parent),
        start_new_session=True,
    )
    ends = time.monotonic() + given['seconds']
    try:
      while (code := process.poll()) is None:
        if stop.wait(_POLL_SECONDS):
          raise AnswerError('stopped')
        if time.monotonic() > ends:
          raise AnswerError(f'no answer in {given["seconds"]:g} s')
    finally:
      # Processes that the command started end with it.
      try:
        os.killpg(process.pid, signal.SIGKILL)
      except ProcessLookupError:
        pass
      process.wait()
  if code:
    raise AnswerError(f'exit code {code}; see {job.parent / "log.txt"}')
  return read(pathlib.Path(given['answer']), given)


def read(path: pathlib.Path, job: Mapping[str, Any]) -> Answer:
  """Read an answer.

  Raises:
    AnswerError: If it is not valid; names the first problem.
  """
  try:
    with path.open('rb') as file:
      text = file.read(_MOST_BYTES + 1)
    given = json.loads(text[:_MOST_BYTES])
  except (OSError, ValueError, RecursionError) as error:
    raise AnswerError(f'no JSON in {path}: {error!s:.200}') from error
  if len(text) > _MOST_BYTES or not isinstance(given, dict):
    raise AnswerError(
        f'{path} must be an object of at most {_MOST_BYTES} bytes'
    )
  status, causes = given.get('status'), given.get('causes', [])
  if status not in STATUSES:
    raise AnswerError(f'{status=}: choose one of {STATUSES}')
  if not isinstance(causes, list) or len(causes) > MOST_CAUSES:
    raise AnswerError(f'{causes=} must be a list of at most {MOST_CAUSES}')
  if wrong := [c for c in causes if c not in settings_lib.CAUSES]:
    raise AnswerError(f'causes: {wrong} are not among {settings_lib.CAUSES}')
  if status == 'named' and not causes:
    raise AnswerError('named, but causes is empty')
  tokens, since = given.get('tokens'), given.get('since')
  for name, value in (('tokens', tokens), ('since', since)):
    optional = name == 'since' and value is None
    if not optional and (type(value) is not int or value < 0):
      raise AnswerError(f'{name}={value!r} must be a number of tokens')
  if since is not None and since > tokens:
    raise AnswerError(f'{since=} is after the last of {tokens=}')
  if tokens > 1.1 * job['tokens']:
    raise AnswerError(f'{tokens=} of the {job["tokens"]} that were allowed')
  values = given.get('values', {})
  if not isinstance(values, dict):
    raise AnswerError(f'{values=} must be an object of config paths')
  policy = given.get('policy') or None
  if policy is not None and not isinstance(policy, str):
    raise AnswerError(f'{policy=} must be a directory')
  if policy is not None:
    policy = pathlib.Path(job['workdir'], policy)
    try:
      there = (policy / 'config.json').is_file()
    except OSError:  # Such as a name that is too long.
      there = False
    if not there:
      raise AnswerError(f'no policy in {str(policy)!r:.200}')
  if status == 'repaired' and policy is None:
    raise AnswerError('repaired, but there is no policy to score')
  return Answer(status, tuple(causes), tokens, since, policy, values)


def in_range(value: Any, low: float, high: float) -> bool:
  """Return whether a claimed value is a number within a range."""
  if isinstance(value, bool) or not isinstance(value, int | float):
    return False
  return math.isfinite(value) and low <= value <= high
