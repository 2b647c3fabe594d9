"""Command line: evojax-diagnose DIR, or python -m evojax.diagnosis DIR."""

import argparse
from collections.abc import Sequence
import os
import pathlib
import sys
from typing import Any

from evojax.diagnosis import arguments
from evojax.diagnosis import form
from evojax.diagnosis import readers
from evojax.diagnosis import run as run_lib
from evojax.runtime import output

_PIPE_CLOSED = 141  # What shells show for a process that SIGPIPE ended.


def _pairs(text: str) -> dict[str, str]:
  """Parse 'reward=score,...' into {'reward': 'score'}."""
  pairs = [item.partition('=') for item in text.split(',') if item]
  wrong = [name for name, equals, value in pairs if not (equals and value)]
  if wrong:
    raise argparse.ArgumentTypeError(f'{wrong[0]!r} is not NAME=...')
  return {name.strip(): value.strip() for name, _, value in pairs}


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
      prog='evojax-diagnose',
      description='Find what is wrong with a training run, from its logs.',
      epilog='exit code: 1 if a finding is critical, 2 after an error, else 0',
  )
  parser.add_argument('path', type=pathlib.Path, help='directory or file')
  parser.add_argument(
      '--format',
      default='',
      choices=list(readers.FORMATS),
      help='format of the logs; default: detected',
  )
  parser.add_argument(
      '--columns',
      type=_pairs,
      default={},
      metavar='NAME=COLUMN,...',
      help='names of columns in the logs where they differ from these: step,'
      ' group (rollouts of one prompt in a step), prompt, completion, reference'
      ' (the right answer), reward, outcome (1: solved), advantage, n_tokens,'
      ' truncated, mean_logprob, format_ok (1: an answer could be read),'
      ' part_NAME (a part of the reward); a column scores.correct is the value'
      ' of correct in the column scores',
  )
  parser.add_argument(
      '--set',
      type=_pairs,
      action='append',
      default=[],
      metavar='NAME=VALUE',
      help='a setting that is not logged; may be repeated:'
      f' {", ".join(form.SETTINGS)}, weights.PART',
  )
  parser.add_argument(
      '--settings',
      type=pathlib.Path,
      metavar='FILE',
      help="the trainer's own settings, where they are not beside the logs:"
      f" TRL's {arguments.FILE}, verl's {arguments.HYDRA}, or the folder"
      ' configs/ of prime-rl; --set overrides single settings',
  )
  parser.add_argument(
      '--out',
      type=pathlib.Path,
      help='folder for diagnosis.html and diagnosis.json; default: the run',
  )
  return parser


def main(argv: Sequence[str] | None = None) -> int:
  """Diagnose one run; return 1 for a critical finding, 2 for an error."""
  given = _parser().parse_args(argv)
  settings: dict[str, Any] = {}
  if given.settings:
    try:
      settings = arguments.of_file(given.settings)
    except (ValueError, OSError) as error:
      output.say(f'error: --settings={given.settings}: {error}', error=True)
      return 2
  for pair in given.set:
    settings |= pair
  try:
    found = run_lib.diagnose(
        given.path, given.format, given.columns, settings, given.out
    )
  except BrokenPipeError:  # The reader of the output, such as head, has ended.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _PIPE_CLOSED
  except (ValueError, OSError) as error:
    output.say(f'error: {error}', error=True)
    return 2
  return run_lib.exit_code(found)


if __name__ == '__main__':
  sys.exit(main())
