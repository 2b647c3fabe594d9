"""Domains by name: a domain is data, a grader and evidence columns.

A domain of the user's own is a module with `make(**kwargs) -> types.Domain`,
named by its dotted path.
"""

import importlib
import inspect
import types as python_types
from typing import Any

from evojax import records

# Imported on use: a run pays for the libraries of its own domain only.
DOMAINS = {
    'coding': 'evojax.domains.coding',
    'math': 'evojax.domains.math',
}


def load(name: str) -> python_types.ModuleType:
  """Imports a domain's module.

  Args:
    name: Key of DOMAINS, or the dotted path of a module with `make`.

  Raises:
    ValueError: If there is no such module or it has no `make`.
  """
  path = DOMAINS.get(name, name)
  if not all(part.isidentifier() for part in path.split('.')):
    raise ValueError(
        f'domain.name={name!r} is neither one of {sorted(DOMAINS)} nor a dotted'
        ' path such as my_package.my_domain'
    )
  try:
    module = importlib.import_module(path)
  except ModuleNotFoundError as error:
    # An import that fails inside the user's module is theirs to see as it is.
    if error.name is None or not f'{path}.'.startswith(f'{error.name}.'):
      raise
    raise ValueError(
        f'domain.name={name!r} is neither one of {sorted(DOMAINS)} nor a module'
        f' that can be imported ({error}); a dotted path is looked up in'
        ' PYTHONPATH and the working directory'
    ) from error
  if not callable(getattr(module, 'make', None)):
    raise ValueError(
        f'domain.name={name!r}: module {path} has no make(**kwargs) that'
        ' returns a domain'
    )
  return module


def make(name: str, **kwargs: Any) -> records.Domain:
  """Builds a domain.

  Args:
    name: As for `load`.
    **kwargs: config.domain.kwargs, handed to the module's `make`.

  Raises:
    ValueError: If `make` does not take one of the arguments, or refuses a
      value.
  """
  build = load(name).make
  try:
    inspect.signature(build).bind(**kwargs)
  except TypeError as error:
    accepted = ', '.join(inspect.signature(build).parameters)
    raise ValueError(
        f'domain.kwargs of {name!r}: {error}; it takes: {accepted}'
    ) from error
  return build(**kwargs)
