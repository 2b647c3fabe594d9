"""Diagnosis of a run: read it, examine it, print and write the findings."""

from collections.abc import Mapping
import math
import pathlib
from typing import Any

from evojax.diagnosis import examine
from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis import page
from evojax.diagnosis import readers
from evojax.diagnosis import show
from evojax.runtime import output

FILES = 'diagnosis.json', 'diagnosis.html'
_WEIGHT = 'weights.'


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
  """Return settings as numbers; 'weights.NAME' is the weight of a reward part.

  Raises:
    ValueError: If a name is unknown, a value is not a number, or one other than
      a weight is below 0 or not finite.
  """
  found: dict[str, Any] = {}
  for name, value in given.items():
    try:
      number = float(value)
    except ValueError as error:
      raise ValueError(f'--set {name}={value}: not a number') from error
    if name.startswith(_WEIGHT):
      found.setdefault('weights', {})[name.removeprefix(_WEIGHT)] = number
    elif name in form.SETTINGS:
      # 0 turns a limit or a warm-up off; NaN fails the comparison.
      if not 0 <= number < math.inf:
        raise ValueError(
            f'--set {name}={value}: give a finite number of at least 0'
        )
      found[name] = number
    else:
      raise ValueError(
          f'--set {name}: the settings are {", ".join(form.SETTINGS)},'
          f' {_WEIGHT}PART'
      )
  return found


def diagnose(
    path: pathlib.Path,
    format_: str = '',
    columns: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
    out: pathlib.Path | None = None,
) -> findings.Diagnosis:
  """Print the diagnosis of a run; write diagnosis.html and diagnosis.json.

  Args:
    path: Directory or file of the run's logs.
    format_: A name of `readers.FORMATS`; '' detects it.
    columns: Common name -> column of the logs, if they differ.
    settings: Settings that are not logged, by name; strings or numbers.
    out: Folder to write to; the run's by default.

  Returns:
    The diagnosis.

  Raises:
    ValueError: If the logs cannot be read, or an argument is wrong.
    OSError: If the output folder cannot be written.
  """
  run = readers.read(path, format_, columns, _settings(settings or {}))
  found = examine.examine(run)
  output.say('\n'.join(show.lines(run, found)))
  folder = out or (path if path.is_dir() else path.parent)
  folder.mkdir(parents=True, exist_ok=True)
  data, shown = (folder / name for name in FILES)
  show.write_json(data, show.to_json(run, found))
  page.write(shown, run, found)
  output.say(f'page: {shown}')
  return found


def exit_code(found: findings.Diagnosis) -> int:
  """Return 1 if a finding is critical, otherwise 0."""
  return int(any(f.severity == 'critical' for f in found.findings))
