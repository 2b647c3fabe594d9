"""The shipped packages for agents to repair: small, tested, with a history.

Each is a folder in packages/: the repository in its final state, and
`history.toml`, which gives the order in which files and definitions were added.
"""

from collections.abc import Collection
import dataclasses
import datetime
import functools
import pathlib
import tomllib

from evojax.domains.swe import history
from evojax.domains.swe import trees

_FOLDER = pathlib.Path(__file__).parent / 'packages'
_HISTORY = 'history.toml'
# Nothing is trained on these; a quarter of the sealed problems comes from them.
UNSEEN = ('bunches', 'rota', 'tallies')


@dataclasses.dataclass(frozen=True)
class Step:
  """One commit of a package's history."""

  message: str
  date: datetime.date
  adds: tuple[str, ...]  # A path, or 'path:definition,definition'.


@dataclasses.dataclass(frozen=True)
class Package:
  """A repository without a bug."""

  name: str
  tree: trees.Tree
  steps: tuple[Step, ...]

  @property
  def sources(self) -> list[str]:
    """Return the paths of its modules."""
    return [p for p in self.tree if p.endswith('.py') and trees.is_source(p)]

  @property
  def tests(self) -> list[str]:
    """Return the paths of its tests."""
    return [p for p in self.tree if trees.is_test(p)]

  def commits(self, tree: trees.Tree) -> list[history.Commit]:
    """Return the commits of a history that leads to a tree.

    Args:
      tree: The package's tree, or one with a bug or with fewer tests; a bug has
        then been there from the first commit.
    """
    found, made, here = [], {}, {}
    for step in self.steps:
      for entry in step.adds:
        path, _, names = entry.partition(':')
        if path in tree:
          here.setdefault(path, set()).update(
              names.split(',') if names else _definitions(path, tree[path])
          )
          made[path] = _so_far(path, tree[path], here[path])
      found.append(history.Commit(step.message, step.date, dict(made)))
    # A step whose files are not in this tree changes nothing.
    return [
        commit
        for before, commit in zip([None, *found], found, strict=False)
        if before is None or before.tree != commit.tree
    ]


def _definitions(path: str, data: bytes) -> list[str]:
  return trees.definitions(data.decode()) if path.endswith('.py') else []


def _so_far(path: str, data: bytes, names: Collection[str]) -> bytes:
  """Return a file at the time when it had only some of its definitions."""
  if not path.endswith('.py'):
    return data
  text = data.decode()
  if names >= set(trees.definitions(text)):
    return data
  return trees.only(text, names).encode()


@functools.cache
def names() -> tuple[str, ...]:
  """Return the names of all packages."""
  return tuple(
      sorted(path.parent.name for path in _FOLDER.glob(f'*/{_HISTORY}'))
  )


@functools.cache
def load(name: str) -> Package:
  """Return a package.

  Raises:
    ValueError: If there is no package of that name.
  """
  if name not in names():
    raise ValueError(f'package {name!r} is not one of {names()}')
  folder = _FOLDER / name
  tree = {
      path.relative_to(folder).as_posix(): path.read_bytes()
      for path in sorted(folder.rglob('*'))
      if path.is_file() and path.suffix in ('.py', '.md')
  }
  steps = tomllib.loads((folder / _HISTORY).read_text())['commits']
  return Package(
      name,
      tree,
      tuple(
          Step(step['message'], step['date'], tuple(step['adds']))
          for step in steps
      ),
  )
