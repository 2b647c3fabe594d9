"""A check for missing packages that prints the command that installs them."""

import importlib.util
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
