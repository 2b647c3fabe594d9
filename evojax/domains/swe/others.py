"""Third-party tasks that a run's config names: archives and JSON lines.

Their verdicts come from a pytest in the same process as the agent's code, which
can forge them. By default they are therefore used as sealed problems, on which
nothing is trained or decided, while train and dev come from the shipped
packages. Bugs of archives are added to the sealed problems of the shipped
packages, with a row of their own in tables; JSON lines replace the shipped
sealed problems. With `trust_in_process`, third-party tasks replace all shipped
problems.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import hashlib
import json
from typing import Any

from evojax.domains import splits
from evojax.domains.swe import container as container_lib
from evojax.domains.swe import foreign
from evojax.domains.swe import tasks as tasks_lib
from evojax.sandbox import probe
from evojax.sandbox import repository

_SDIST = 'path', 'sha256', 'candidates', 'seed'
_JSONL = 'path', 'checkouts', 'container'
_CANDIDATES = 50


@dataclasses.dataclass(frozen=True)
class Others:
  """Third-party tasks, and where they may be used."""

  tasks: Mapping[str, tasks_lib.Task]  # By problem_id.
  trained: bool  # Whether train and dev have some of them, too.
  # Whether they replace the shipped problems of the splits that have them.
  alone: bool = False
  container: container_lib.Container | None = None  # Runs their tests.

  def of(self, split: str) -> list[str]:
    """Return the problem_ids of a split, which may be none.

    Raises:
      ValueError: If the tasks are trained on, and none falls into the split.
    """
    if not self.tasks or not (self.trained or split == 'sealed'):
      return []
    if not self.trained:
      return sorted(self.tasks)
    found = [i for i in sorted(self.tasks) if splits.split_of(i) == split]
    if not found:
      raise ValueError(
          f'domain.kwargs: none of the {len(self.tasks)} third-party tasks is'
          f' in {split!r}: name more, or leave trust_in_process out'
      )
    return found


NONE = Others({}, False)


def read(
    jsonl: Mapping[str, Any] | None,
    sdists: Sequence[Mapping[str, Any]],
    trust_in_process: bool,
) -> Others:
  """Return the tasks that the arguments of `make` describe.

  Args:
    jsonl: See `domain.make`.
    sdists: See `domain.make`.
    trust_in_process: See `domain.make`.

  Raises:
    ValueError: If an argument is invalid, a file is broken, or none of the
      tests of an archive runs here.
  """
  if not jsonl and not sdists:
    if trust_in_process:
      raise ValueError(
          'domain.kwargs.trust_in_process=True needs third-party tasks: name'
          ' some with jsonl or sdists'
      )
    return NONE
  found: list[tasks_lib.Task] = []
  for number, given in enumerate(sdists):
    _check(f'sdists[{number}]', given, _SDIST, 2)
    options = dict(candidates=_CANDIDATES, seed=0) | dict(given)
    found += _from_sdist(**options)
  container = None
  if jsonl:
    _check('jsonl', jsonl, _JSONL, 2)
    if options := jsonl.get('container'):
      container = _container(options)
    checkouts = json.dumps(dict(jsonl['checkouts']), sort_keys=True)
    found += _from_rows(str(jsonl['path']), checkouts)
  tasks = {_identity(task): task for task in found}
  if len(tasks) != len(found):
    raise ValueError('domain.kwargs: one instance_id occurs in two tasks')
  alone = bool(jsonl) or trust_in_process
  return Others(tasks, trust_in_process, alone, container)


def _check(field: str, given: Any, allowed: Sequence[str], needed: int) -> None:
  known = isinstance(given, Mapping)
  missing = [n for n in allowed[:needed] if not known or n not in given]
  unknown = sorted(set(given) - set(allowed)) if known else []
  if missing or unknown:
    raise ValueError(
        f'domain.kwargs.{field}={given!r:.200}: it takes {", ".join(allowed)};'
        f' {missing=} {unknown=}'
    )


def _container(options: Any) -> container_lib.Container:
  try:
    return container_lib.Container(**options)
  except TypeError as error:
    fields = ', '.join(container_lib.Container.__dataclass_fields__)
    raise ValueError(
        f'domain.kwargs.jsonl.container: {error}; it takes {fields}'
    ) from error


@functools.cache  # An archive's tests run for some seconds.
def _from_sdist(
    path: str, sha256: str, candidates: int, seed: int
) -> list[tasks_lib.Task]:
  return foreign.from_sdist(
      path, sha256, probe.tier(), candidates=candidates, seed=seed
  )


@functools.cache
def _from_rows(path: str, checkouts: str) -> list[tasks_lib.Task]:
  folders = json.loads(checkouts)
  found = []
  with repository.Workspace(tier=probe.tier(), entry=foreign.ENTRY) as box:
    for row in foreign.read_rows(path):
      if row['repo'] not in folders:
        raise ValueError(
            f'domain.kwargs.jsonl.checkouts names no folder for'
            f' {row["repo"]!r}, of {row["instance_id"]}; clone it and add it'
        )
      found.append(foreign.from_row(row, folders[row['repo']], box))
  return found


def _identity(task: tasks_lib.Task) -> str:
  return hashlib.sha256(task.instance_id.encode()).hexdigest()[:16]
