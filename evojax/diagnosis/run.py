"""Diagnoses a run: reads it, examines it, prints and writes what it found."""

from collections.abc import Mapping
import pathlib
from typing import Any

from evojax.diagnosis import examine
from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis import page
from evojax.diagnosis import readers
from evojax.diagnosis import show
from evojax.runtime import output

_WEIGHT = 'weights.'


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
  """Return settings as numbers; 'weights.format' is the weight of a part.

  Raises:
    ValueError: If a name is unknown or a value is no number.
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
    format_: A name of `readers.FORMATS`; '' finds it.
    columns: Common name -> column of the logs, where they differ.
    settings: Settings that are not logged, by name; texts or numbers.
    out: Folder to write to; by default that of the run.

  Returns:
    What was found.

  Raises:
    ValueError: If the logs cannot be read, or an argument is wrong.
    OSError: If nothing can be written there.
  """
  run = readers.read(path, format_, columns, _settings(settings or {}))
  found = examine.examine(run)
  output.say('\n'.join(show.lines(run, found)))
  folder = out or (path if path.is_dir() else path.parent)
  folder.mkdir(parents=True, exist_ok=True)
  show.write_json(folder / 'diagnosis.json', show.to_json(run, found))
  page.write(folder / 'diagnosis.html', run, found)
  output.say(f'page: {folder / "diagnosis.html"}')
  return found
