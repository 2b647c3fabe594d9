"""The process between a box and its zygote, which cleans up after both.

The box starts this file as a script, once per slot. It forks the zygote and
outlives it: once the parent or the zygote is gone, it removes everything that
is left. It runs without `site`, so that neither .pth files nor the packages of
a user are read.
"""

import contextlib
import fcntl
import os
import select
import signal
import socket
import sys

if __name__ == '__main__':  # Without `site`, our packages are not found.
  sys.path.insert(0, sys.argv[1])

from evojax.sandbox import jail  # noqa: E402
from evojax.sandbox import linux  # noqa: E402
from evojax.sandbox import processes  # noqa: E402
from evojax.sandbox import tree  # noqa: E402
from evojax.sandbox import wire  # noqa: E402
from evojax.sandbox import zygote  # noqa: E402


def main() -> None:
  """Start the zygote, wait until it or the parent is gone, clean up, exit."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  # Moved away from descriptors 0 to 3, which a child uses for its own.
  control = socket.socket(fileno=fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 10))
  null = os.open(os.devnull, os.O_RDWR)
  os.dup2(null, 0)
  os.dup2(null, 1)
  os.close(null)
  config = wire.Config(**wire.receive(control)[0])
  if sys.platform == 'linux':
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
  own_namespaces = 'namespaces' in config.layers
  if own_namespaces and jail.enter_namespaces():
    # A separate user namespace has no second user to change to.
    config = config._replace(user=None, counted=True)
  elif config.user is not None:
    config = config._replace(counted=True)
  process = os.fork()
  if not process:
    zygote.Zygote(control, config).main()
  poll = select.poll()
  poll.register(control, 0)  # A hang-up is always reported.
  if hasattr(os, 'pidfd_open'):
    poll.register(os.pidfd_open(process), select.POLLIN)
    poll.poll()
  else:
    while not poll.poll(100) and not processes.has_exited(process):
      pass
  # Ending process 1 of a namespace ends all its processes.
  processes.kill(process)
  os.waitpid(process, 0)
  if not own_namespaces:
    processes.end_children()
  if config.scratch:
    # If this fails, the parent removes it, if it still exists.
    with contextlib.suppress(OSError):
      tree.clear(config.scratch)
      os.rmdir(config.scratch)
  os._exit(0)


if __name__ == '__main__':
  sys.path.remove(sys.argv[1])
  main()
