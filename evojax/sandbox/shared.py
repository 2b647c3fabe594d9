"""Resources that a process opens once and closes at its end."""

import atexit
from collections.abc import Callable, Hashable
import functools
import os
import threading
from typing import Any, Protocol, runtime_checkable

from evojax.sandbox import box as box_lib
from evojax.sandbox import probe

_LOCK = threading.Lock()


@runtime_checkable
class Closeable(Protocol):
  """An open resource."""

  def close(self) -> None:
    """Close it; it may be closed already."""


def opened(make: Callable[..., Any], *arguments: Hashable) -> Any:
  """Return `make(*arguments)`, which is called once in each process.

  Args:
    make: A function at module level; its result has a method `close`, which is
      called when the process ends.
    *arguments: Arguments of `make`; each combination gives its own resource.
  """
  with _LOCK:  # Many threads may ask for the same resource at once.
    return _opened(os.getpid(), make, *arguments)


@functools.cache
def _opened(
    process: int, make: Callable[..., Any], *arguments: Hashable
) -> Any:
  # The process is part of the key: a fork must neither share its parent's
  # resource nor close it, although it inherits the exit handler.
  found = make(*arguments)
  close_at_exit(found)
  return found


def close_at_exit(resource: Closeable) -> None:
  """Close a resource when this process ends, but not when a fork of it does.

  Args:
    resource: The open resource.
  """
  process = os.getpid()  # A fork inherits the call.
  atexit.register(lambda: os.getpid() == process and resource.close())


def open_box(slots: int) -> box_lib.Box:
  """Return this process's box for programs, with `slots` slots.

  Raises:
    probe.WeakSandboxError: If this machine cannot contain untrusted code.
  """
  return opened(_box, probe.tier(), slots)


def _box(tier: str, slots: int) -> box_lib.Box:
  return box_lib.Box('program', tier=tier, slots=slots)
