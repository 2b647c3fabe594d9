"""Import of modules that a config names by a short key or a dotted path."""

from collections.abc import Mapping
import importlib
import types


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
