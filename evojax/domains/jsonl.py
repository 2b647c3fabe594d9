"""Rows of a JSONL file, each with its place."""

from collections.abc import Iterator, Mapping
import json
import pathlib
from typing import Any


def rows(path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
  """Yield ('path:line', object); blank lines are skipped.

  Numbers come as text, as they are written: 7.140 is not 7.14.

  Args:
    path: A file in UTF-8, of domain.kwargs.jsonl.

  Raises:
    ValueError: If the file is missing, or a line is no JSON object.
  """
  file = pathlib.Path(path).expanduser()
  if not file.is_file():
    raise ValueError(
        f'domain.kwargs.jsonl: {path!r} does not exist or is no file, seen from'
        f' {pathlib.Path.cwd()}'
    )
  for number, line in enumerate(file.read_bytes().splitlines(), 1):
    if not line.strip():
      continue
    where = f'{path}:{number}'
    try:
      row = json.loads(line, parse_int=str, parse_float=str, parse_constant=str)
    # ValueError includes what is not UTF-8; a line of 100,000 brackets nests
    # deeper than the parser can.
    except (ValueError, RecursionError) as error:
      raise ValueError(f'{where}: not JSON: {error}') from error
    if not isinstance(row, dict):
      raise ValueError(f'{where}: a {type(row).__name__}, not an object')
    yield where, row
