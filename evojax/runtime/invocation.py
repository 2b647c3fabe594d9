"""The command that started this process, as a user can type it again."""

from collections.abc import Collection
import os
import shlex
import sys

# Set by the launch scripts, which find the environment of their own.
LAUNCHER = 'EVOJAX_LAUNCHER'


def command(*flags: str, without: Collection[str] = ()) -> str:
  """Return the command line of this process, quoted for a shell.

  Args:
    *flags: Added at the end.
    without: Names of flags that are left out, with their values.

  Returns:
    The command; '' if the process is a program of the user's own.
  """
  # While a config file is run, argv[0] is its name.
  ours = sys.argv[0].replace(os.sep, '/').endswith('evojax/main.py')
  if not ours and 'evojax.main' not in sys.orig_argv:
    return ''
  arguments, rest = [], iter(sys.argv[1:])
  for argument in rest:
    name, equals, _ = argument.lstrip('-').partition('=')
    if name not in without:
      arguments.append(argument)
    elif not equals:
      next(rest, None)  # Its value.
  launcher = os.environ.get(LAUNCHER)
  if not launcher:
    launcher = shlex.join([sys.orig_argv[0], '-m', 'evojax.main'])
  return ' '.join([launcher, shlex.join([*arguments, *flags])]).strip()
