"""Operations on processes for the trusted side: end, count and time them."""

from collections.abc import Iterator
import contextlib
import functools
import os
import resource
import select
import signal
import sys
import threading
import time


def cores() -> int:
  """Return the cores that this process may use; macOS has no affinity."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def kill(process: int) -> None:
  """Send SIGKILL to a process, if it still exists."""
  with contextlib.suppress(ProcessLookupError):
    os.kill(process, signal.SIGKILL)


def end_children(everyone: bool = False) -> None:
  """End all descendants.

  The caller is a subreaper: the children of a descendant that ends become its
  own children, so that it reaches each of them eventually.

  Args:
    everyone: Kill all processes of the namespace at once; only for process 1 of
      one.
  """
  while True:
    try:
      if os.waitpid(-1, os.WNOHANG)[0]:
        continue
    except ChildProcessError:
      return
    found = [-1] if everyone else _children()
    for child in found:
      kill(child)
    if not found:
      return  # The system does not list children; its tier is T2 at best.
    time.sleep(0.001)


def _children() -> list[int]:
  try:
    with open(f'/proc/self/task/{threading.get_native_id()}/children') as file:
      return [int(child) for child in file.read().split()]
  except OSError:
    return []


def has_exited(process: int) -> bool:
  """Return whether a child has ended, without reaping it."""
  if hasattr(os, 'waitid'):
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, process, options) is not None
  # macOS before Python 3.13 has no waitid.
  event = select.kevent(
      process,
      select.KQ_FILTER_PROC,
      select.KQ_EV_ADD | select.KQ_EV_ONESHOT,
      select.KQ_NOTE_EXIT,
  )
  queue = select.kqueue()
  try:
    return bool(queue.control([event], 1, 0))
  except ProcessLookupError:  # It had already ended.
    return True
  finally:
    queue.close()


def cpu_seconds(process: int) -> float:
  """Return the CPU time of all threads of a process that is not reaped."""
  if sys.platform != 'linux':
    return 0.0
  # Linux's number for the CPU clock of a process: ~pid << 3 | CPUCLOCK_SCHED.
  return time.clock_gettime(~process << 3 | 2)


def children_seconds() -> float:
  """Return the CPU time of all descendants that were reaped."""
  usage = resource.getrusage(resource.RUSAGE_CHILDREN)
  return usage.ru_utime + usage.ru_stime


def tasks_below(proc: int) -> Iterator[tuple[str, str]]:
  """Yield (process, thread) of all descendants, as named in /proc.

  Args:
    proc: A descriptor of /proc of the host.
  """
  parents = [os.readlink('self', dir_fd=proc)]
  while parents:
    parent = parents.pop()
    for task in _tasks(proc, parent):
      try:
        children = read(proc, f'{parent}/task/{task}/children').split()
      except (FileNotFoundError, ProcessLookupError):  # It has ended.
        continue
      parents += children
      for child in children:
        yield from ((child, thread) for thread in _tasks(proc, child))


def _tasks(proc: int, process: str) -> list[str]:
  """Return the threads of a process; none if it has ended."""
  try:
    folder = os.open(f'{process}/task', os.O_DIRECTORY, dir_fd=proc)
  except (FileNotFoundError, ProcessLookupError):
    return []
  try:
    return os.listdir(folder)
  except (FileNotFoundError, ProcessLookupError):
    return []
  finally:
    os.close(folder)


def read(proc: int, path: str) -> str:
  """Return the text of a file of /proc."""
  opener = functools.partial(os.open, dir_fd=proc)
  with open(path, opener=opener, errors='replace') as file:
    return file.read()


def address_space() -> int:
  """Return the size of this process's address space in bytes."""
  try:
    with open('/proc/self/statm') as file:
      return int(file.read().split()[0]) * resource.getpagesize()
  except OSError:
    return 0


def tasks_of_user() -> int:
  """Return the number of threads of this user, here and elsewhere."""
  if sys.platform != 'linux' or not os.path.isdir('/proc'):
    return 0
  count, user = 0, os.geteuid()
  for name in os.listdir('/proc'):
    try:
      if name.isdigit() and os.stat(f'/proc/{name}').st_uid == user:
        count += len(os.listdir(f'/proc/{name}/task'))
    except OSError:  # The process has ended in the meantime.
      continue
  return count
