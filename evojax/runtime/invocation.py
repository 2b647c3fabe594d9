"""The command line that started this process, for messages to the user."""

from collections.abc import Collection
import os
import shlex
import sys

# Set by launch scripts that users call directly; replaces the Python command.
LAUNCHER = 'EVOJAX_LAUNCHER'


def command(*flags: str, without: Collection[str] = ()) -> str:
  """Return the command line of this process, quoted for a shell.

  Args:
    *flags: Flags added at the end.
    without: Names of flags to leave out with their values.

  Returns:
    The command; '' if the process is the user's own program.
  """
  # `orig_argv` too, because argv[0] is the config file while that is executed.
  ours = sys.argv[0].replace(os.sep, '/').endswith('evojax/main.py')
  if not ours and 'evojax.main' not in sys.orig_argv:
    return ''
  arguments, rest = [], iter(sys.argv[1:])
  for argument in rest:
    name, equals, _ = argument.lstrip('-').partition('=')
    if name not in without:
      arguments.append(argument)
    elif not equals:
      next(rest, None)  # Skip the flag's value.
  launcher = os.environ.get(LAUNCHER)
  if not launcher:
    launcher = shlex.join([sys.orig_argv[0], '-m', 'evojax.main'])
  return ' '.join([launcher, shlex.join([*arguments, *flags])]).strip()
