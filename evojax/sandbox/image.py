"""The image of the box: the packages that untrusted code finds installed.

They come from the trainer's own environment, so that requirements/ pins their
versions; no other package of it can be found or read in the box. Programs
import them through a `Finder`, commands through PYTHONPATH.
"""

from collections.abc import Sequence
import functools
import importlib.machinery
import importlib.util
import os

# NumPy for programs, pytest for repositories, and their dependencies.
PACKAGES = ('iniconfig', 'numpy', 'packaging', 'pluggy', 'pygments', 'pytest')
# Importing NumPy takes 50 times as long as a small program. A program whose
# text mentions it therefore starts as a copy of a process that has imported
# these.
NUMPY = (
    'numpy', 'numpy.fft', 'numpy.linalg', 'numpy.ma', 'numpy.polynomial',
    'numpy.random',
)  # fmt: skip


@functools.cache
def paths() -> tuple[str, ...]:
  """Return the files and directories of this machine that form the image.

  Raises:
    RuntimeError: If a package is not installed.
  """
  found = set()
  for name in PACKAGES:
    distribution = _distribution(name)
    # Scripts, in '..', are not part of it.
    tops = {file.parts[0] for file in distribution.files or ()}
    tops -= {'..', '__pycache__'}
    if not tops:
      raise RuntimeError(f'{name} has no list of its files; reinstall it')
    found |= {os.path.abspath(distribution.locate_file(top)) for top in tops}
  return tuple(sorted(found))


def _distribution(name: str):
  # Imported here so that a zygote, which does not need it, starts faster.
  import importlib.metadata

  try:
    return importlib.metadata.distribution(name)
  except importlib.metadata.PackageNotFoundError:
    raise RuntimeError(
        f'{name} is part of the image that untrusted code sees, but is not'
        ' installed; install the packages of requirements/base.txt'
    ) from None


class Finder:
  """Finds the packages of the image, and no others."""

  def __init__(self, places: Sequence[str]):
    """Store the places, see `paths`."""
    self._places = {
        os.path.basename(place).removesuffix('.py'): place for place in places
    }

  def find_spec(
      self, name: str, path: Sequence[str] | None = None, target=None
  ) -> importlib.machinery.ModuleSpec | None:
    """Return the location of a module; see `importlib.abc.MetaPathFinder`."""
    place = self._places.get(name)
    if path is not None or place is None:
      return None
    # The common directory is not searched, since it may not be listable.
    is_file = place.endswith('.py')
    file = place if is_file else f'{place}/__init__.py'
    if not os.path.exists(file):  # The slot's user may not see it.
      return None
    return importlib.util.spec_from_file_location(
        name, file, submodule_search_locations=None if is_file else [place]
    )
