"""What a process opens once, all its parts share, and its end closes."""

import atexit
from collections.abc import Callable, Hashable
import functools
import os
import threading
from typing import Any

from evojax.sandbox import box as box_lib
from evojax.sandbox import probe

_LOCK = threading.Lock()


def opened(make: Callable[..., Any], *arguments: Hashable) -> Any:
  """Return `make(*arguments)`, which is called once in each process.

  Args:
    make: A function of a module; what it returns has a method `close`, which is
      called when the process ends.
    *arguments: Others make something else.
  """
  with _LOCK:  # Many threads may ask at once, for one and the same.
    return _opened(os.getpid(), make, *arguments)


@functools.cache
def _opened(
    process: int, make: Callable[..., Any], *arguments: Hashable
) -> Any:
  # The process is part of the key: a fork must not share what its parent has,
  # and must not close it, though it inherits the call.
  found = make(*arguments)
  atexit.register(lambda: os.getpid() == process and found.close())
  return found


def open_box(slots: int) -> box_lib.Box:
  """Return the box for programs, with so many slots, of this process.

  Raises:
    probe.WeakSandboxError: If this machine cannot hold untrusted code.
  """
  return opened(_box, probe.tier(), slots)


def _box(tier: str, slots: int) -> box_lib.Box:
  return box_lib.Box('program', tier=tier, slots=slots)
