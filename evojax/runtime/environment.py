"""Checks of what a process needs: packages, keys in environment variables."""

import importlib.util
import os
import shlex
import sys


def require(*names: str) -> None:
  """End the program with a message if one of these modules is missing."""
  for name in names:
    if importlib.util.find_spec(name.partition('.')[0]) is None:
      command = shlex.join(['bash', 'launch/local.sh', *sys.argv[1:]])
      print(
          f'error: {sys.executable} has no package {name}.\n'
          'The pinned packages lie in an environment that this makes and'
          f' uses:\n  {command}\n'
          'A package of your own goes there with'
          ' .venv/bin/python -m pip install',
          file=sys.stderr,
      )
      sys.exit(2)


def read_key(variable: str, field: str) -> str:
  """Return the key in an environment variable; '' if `variable` is empty.

  Raises:
    ValueError: If the variable is not set.
  """
  if not variable:
    return ''
  key = os.environ.get(variable, '')
  if not key:
    raise ValueError(
        f'{field}={variable!r}: the environment variable {variable} is not set;'
        ' export the key of the servers in it, or leave the field empty'
    )
  return key
