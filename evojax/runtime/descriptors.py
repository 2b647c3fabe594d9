"""The limit of open files of this process, which bounds its connections."""

import contextlib
import resource

_WANTED = 1 << 16  # Enough, if the hard limit allows more.


def raise_limit() -> int:
  """Raise the limit of open files as far as allowed; return the new limit."""
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  unlimited = resource.RLIM_INFINITY
  wanted = _WANTED if hard == unlimited else min(hard, _WANTED)
  if soft != unlimited and soft < wanted:
    with contextlib.suppress(ValueError, OSError):
      resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
      return wanted
  return _WANTED if soft == unlimited else min(soft, _WANTED)
