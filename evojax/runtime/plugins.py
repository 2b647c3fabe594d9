"""The user's own code: modules that a config names, and errors in them."""

from collections.abc import Mapping
import importlib
import os
import pathlib
import sysconfig
import traceback
import types

_PACKAGE = str(pathlib.Path(__file__).parents[1]) + os.sep
# Folders of code that the user did not write.
_FOREIGN = tuple(map(sysconfig.get_path, ('stdlib', 'purelib', 'platlib')))


def load(
    field: str, name: str, known: Mapping[str, str], *, needs: str, example: str
) -> types.ModuleType:
  """Import the module that a field of the config names.

  Args:
    field: The field, for error messages: 'domain.name'.
    name: A key of `known`, or the dotted path of the user's own module.
    known: Short name -> dotted path.
    needs: The function that the module must have, e.g. 'make(**kwargs) that
      returns a domain'.
    example: A dotted path for error messages, e.g. 'my_package.my_domain'.

  Raises:
    ValueError: If there is no such module, or it lacks the function.
  """
  path = known.get(name, name)
  if not all(part.isidentifier() for part in path.split('.')):
    raise ValueError(
        f'{field}={name!r} is neither one of {sorted(known)} nor a dotted path'
        f' such as {example}'
    )
  try:
    module = importlib.import_module(path)
  except ModuleNotFoundError as error:
    # A failed import inside the user's module is raised unchanged.
    if error.name is None or not f'{path}.'.startswith(f'{error.name}.'):
      raise
    raise ValueError(
        f'{field}={name!r} is neither one of {sorted(known)} nor a module that'
        f' can be imported ({error}); a dotted path is looked up in PYTHONPATH'
        ' and the working directory'
    ) from error
  if not callable(getattr(module, needs.partition('(')[0], None)):
    raise ValueError(f'{field}={name!r}: module {path} has no {needs}')
  return module


def located(error: BaseException) -> str:
  """Return the text of an error, with file and line if it is in user code.

  The text of an error that evojax raises is enough. That of an error in the
  user's function, such as the ValueError of int('x'), does not even name the
  function.
  """
  if place := _place(error):
    return f'{place}: {type(error).__name__}: {error}'
  return str(error)


def is_of_user(error: BaseException) -> bool:
  """Return whether the user's own code raised an error, not evojax's."""
  return bool(_place(error))


def _place(error: BaseException) -> str:
  """Return the file and line of user code that raised an error; '' if none."""
  for frame in reversed(traceback.extract_tb(error.__traceback__)):
    if frame.filename.startswith((_PACKAGE, '<')):
      break
    if not frame.filename.startswith(_FOREIGN):
      return f'{frame.filename}:{frame.lineno}'
  return ''
