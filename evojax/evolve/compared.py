"""Finished runs that are scored on this run's problems: the flag --compare."""

from collections.abc import Sequence
import dataclasses
import hashlib
import itertools
import json
import pathlib

from evojax.ledger import history as history_lib
from evojax.ledger import records
from evojax.models import policy as policy_lib
from evojax.report import sealed
from evojax.report import state
from evojax.runtime import durable
from evojax.runtime import mirror
from evojax.runtime import run_files
from evojax.training import arm as arm_lib
from evojax.training import settings
from evojax.training import setup as setup_lib


@dataclasses.dataclass(frozen=True)
class Compared:
  """A finished run and its policy."""

  name: str
  path: pathlib.Path
  policy: policy_lib.Policy


def open_all(workdirs: Sequence[str], setup: setup_lib.Setup) -> list[Compared]:
  """Check and open the runs of --compare, before any costly work.

  Raises:
    ValueError: If one is not finished, or its policy has another architecture.
  """
  found = []
  # A run that is named twice is scored once.
  paths = [pathlib.Path(text).expanduser().resolve() for text in workdirs]
  for text in dict(zip(paths, workdirs, strict=True)).values():
    path = pathlib.Path(text).expanduser()
    if not (path / run_files.POLICY).is_dir():
      raise ValueError(
          f'--compare={text}: there is no {path / "policy"}; name the workdir'
          ' of a finished run'
      )
    if state.goes_on(path):
      raise ValueError(
          f'--compare={text}: the run went on after its end, and its policy is'
          ' older; let it end first'
      )
    mirror.fetch(path / run_files.POLICY)
    policy = settings.open_policy(setup.config, str(path / run_files.POLICY))
    if policy.cfg != setup.policy.cfg:
      raise ValueError(
          f'--compare={text}: the architecture of its policy differs from that'
          f' of {setup.policy.path}; only runs from one base policy can be'
          ' compared'
      )
    config = json.loads((path / run_files.CONFIG).read_text())['config']
    name = config['name'].rpartition('-')[2]
    found.append(Compared(name, path, policy))
  return found


def place(
    compared: Sequence[Compared], folder: pathlib.Path
) -> dict[str, Compared]:
  """Return the compared runs by the names of their score folders.

  The name is that of the recipe or, if another run has it, that of the run's
  directory, numbered if needed. A run is identified by its workdir and a hash
  of its weights, so that a run that was scored before keeps its name. Call this
  in process 0 only.
  """
  placed: dict[str, Compared] = {}
  for other in compared:
    hashed = hashlib.sha256()
    for file in sorted(other.policy.path.glob('*.safetensors')):
      hashed.update(file.read_bytes())
    where = mirror.shown(str(other.path))
    mine = {'workdir': where, 'weights': hashed.hexdigest()}
    own = other.path.absolute().name
    numbered = (f'{own}-{n}' for n in itertools.count(2))
    for name in itertools.chain((other.name, own), numbered):
      file = folder / name / 'compared.json'
      if name in placed or name in sealed.OWN:
        continue
      if not file.parent.exists():
        file.parent.mkdir(parents=True)
        durable.write_json(file, mine)
      if file.exists() and json.loads(file.read_text()) == mine:
        placed[name] = other
        break
  return placed


def tokens_of(path: pathlib.Path) -> records.Tokens:
  """Return the number of sampled tokens of a finished run.

  The total includes dev scores and the search.
  """
  if not (path / run_files.LEDGER).exists():
    training = arm_lib.sampled_tokens(path)
    return records.Tokens(training=training, total=total_tokens(path))
  history = history_lib.read(path)
  return records.Tokens(
      training=history.policy_tokens,
      total=total_tokens(path, history) + history.replayed_tokens,
  )


def total_tokens(
    root: pathlib.Path, history: history_lib.History | None = None
) -> int:
  """Return the tokens of all train steps and dev scores below a directory.

  Args:
    root: The directory.
    history: The run whose workdir it is, if it evolves: the arm that a fork
      copied from its source does not count.
  """
  copied = None
  if history and history.find(records.Open).forked:
    # Older versions of evojax counted a source's tokens as those of its fork.
    copied = None if history.base.sampled_tokens else root / history.base.folder
  return sum(
      arm_lib.sampled_tokens(folder.parent, split)
      for folder in sorted(root.rglob('evidence'))
      if folder.parent != copied
      for split in ('train', 'dev')
  )
