"""Domains by name: a domain is data, a grader and evidence columns.

A user's own domain is a module with `make(**kwargs) -> base.Domain`, given by
its dotted path.
"""

import contextlib
import inspect
import pathlib
import types
from typing import Any

from evojax.domains import base
from evojax.runtime import plugins
from evojax.runtime import storage

# Imported on demand, so that a run only loads the libraries of its own domain.
DOMAINS = {
    'coding': 'evojax.domains.coding',
    'math': 'evojax.domains.math',
    'openenv': 'evojax.domains.openenv',
    'swe': 'evojax.domains.swe',
    'verifiers': 'evojax.domains.verifiers',
}


def load(name: str) -> types.ModuleType:
  """Import a domain's module.

  Args:
    name: Key of DOMAINS, or the dotted path of a module with `make`.

  Raises:
    ValueError: If there is no such module or it has no `make`.
  """
  return plugins.load(
      'domain.name',
      name,
      DOMAINS,
      needs='make(**kwargs) that returns a domain',
      example='my_package.my_domain',
  )


def make(name: str, **kwargs: Any) -> base.Domain:
  """Build a domain.

  Args:
    name: As for `load`.
    **kwargs: config.domain.kwargs, the arguments of the module's `make`.

  Raises:
    ValueError: If `make` does not take one of the arguments, refuses a value,
      returns something other than a domain, or is a class that lacks a method.
  """
  build = load(name).make
  signature = inspect.signature(build)
  try:
    signature.bind(**kwargs)
  except TypeError as error:
    raise ValueError(
        f'domain.kwargs of {name!r}: {error}; it takes:'
        f' {", ".join(signature.parameters)}'
    ) from error
  if lacking := sorted(getattr(build, '__abstractmethods__', ())):
    raise ValueError(
        f'domain.name={name!r}: class {build.__name__} lacks'
        f' {", ".join(lacking)}; evojax.domains.base.Domain says what they'
        ' return'
    )
  domain = build(**kwargs)
  if not isinstance(domain, base.Domain):
    raise ValueError(
        f'domain.name={name!r}: make returned {type(domain).__name__!r}, not a'
        ' domain; derive its class from evojax.domains.base.Domain'
    )
  return domain


def folder(name: str) -> pathlib.Path:
  """Return the directory of a domain's module.

  Args:
    name: As for `load`.
  """
  return pathlib.Path(load(name).__file__).parent


def policy_path(
    path: str, only: tuple[str, ...] | None = None
) -> pathlib.Path:
  """Return the directory that config.model.path refers to.

  Args:
    path: A path, 'package:NAME' for the base policy that the domain NAME
      ships, or a URL such as gs://bucket/x, whose files are downloaded.
    only: Names of the files to download; None: all, see `storage.cached`.

  Raises:
    ValueError: If that domain ships no base policy.
    storage.StorageError: If the files of a URL cannot be downloaded.
  """
  if storage.is_remote(path):
    return storage.cached(path, only)
  prefix, _, name = path.partition(':')
  if prefix != 'package':
    return pathlib.Path(path).expanduser()
  with contextlib.suppress(ValueError):
    if (directory := folder(name) / 'base_policy').is_dir():
      return directory
  here = pathlib.Path(__file__).parent
  shipped = [
      f'package:{n}' for n in DOMAINS if (here / n / 'base_policy').is_dir()
  ]
  raise ValueError(
      f'config.model.path={path!r}: shipped policies are {shipped}; the policy'
      ' of a domain of your own is its folder base_policy'
  )
