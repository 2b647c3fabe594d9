"""Runs command lines one after the other, in one process.

Reads a JSON list of argument lists from stdin and prints a JSON list of
{code, out, err, device}: `device` says whether a device was touched so far.
Importing takes longer than being refused.
"""

import contextlib
import io
import json
import sys
import traceback
from unittest import mock

from absl import logging
from absl.testing import flagsaver
from jax._src import xla_bridge

from evojax import main
from evojax.runtime import output


def run(arguments):
  """Do as `python -m evojax.main ARGUMENTS` does."""
  out, err = io.StringIO(), io.StringIO()
  sys.argv = [main.__file__, *arguments]
  with (
      flagsaver.flagsaver(),
      contextlib.redirect_stdout(out),
      contextlib.redirect_stderr(err),
      mock.patch.object(output, 'width', lambda: 10_000),
  ):
    try:
      code = main.main(main.parse_flags(sys.argv))
    except SystemExit as end:
      code = end.code
    except Exception:  # What the interpreter would do; the next one is run.
      traceback.print_exc()
      code = 1
  return dict(
      code=code or 0,
      out=out.getvalue(),
      err=err.getvalue(),
      device=xla_bridge.backends_are_initialized(),
  )


if __name__ == '__main__':
  logging.set_verbosity(logging.WARNING)
  json.dump([run(each) for each in json.load(sys.stdin)], sys.stdout)
