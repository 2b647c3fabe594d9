"""The files of a checkpoint that hold the shards of this process.

A run whose processes have no shared directory saves each array as chunks in
Zarr files, one file per chunk (see `checkpoint`):

    state/<array>/zarr.json   shape of the array and of a chunk
    state/<array>/c/0/3       the chunk in row 0, column 3 of the grid of chunks

A process that restores needs the chunks that overlap its shards, and all files
that are not chunks.
"""

from collections.abc import Callable, Collection, Mapping
import itertools
import json
import pathlib
import re
from typing import Any

import jax

_CHUNK = re.compile(r'state/(.+)/c((?:/\d+)*)')

# First and last + 1 index of each axis.
_Box = tuple[tuple[int, int], ...]


def is_chunk(name: str) -> bool:
  """Return True if a file, named relative to its step, is a chunk."""
  return _CHUNK.fullmatch(name) is not None


def needed(
    step: pathlib.Path, wanted: Mapping[str, Any]
) -> Callable[[str], bool]:
  """Return a function that tells which files of a step this process needs.

  Args:
    step: Directory of the step, with all its files that are not chunks.
    wanted: Arrays that are restored, by name: jax arrays, ShapeDtypeStructs or
      NumPy arrays.

  Returns:
    A function that takes the name of a file relative to `step`. All files of a
    checkpoint in another format are needed, and all of an array that is not
    wanted or has another shape, so that an error names it.
  """
  grids = {}
  for name, leaf in wanted.items():
    file = step / 'state' / name / 'zarr.json'
    sharding = getattr(leaf, 'sharding', None)
    if sharding is None or not file.is_file():
      continue
    about = json.loads(file.read_text())
    # The data of a typed key has one more axis than the key.
    if tuple(about['shape']) == leaf.shape:
      chunk = about['chunk_grid']['configuration']['chunk_shape']
      grids[name] = chunk, _boxes(sharding, leaf.shape)

  def is_needed(name: str) -> bool:
    match = _CHUNK.fullmatch(name)
    if match is None or match[1] not in grids:
      return True
    chunk, boxes = grids[match[1]]
    place = [int(number) for number in match[2].split('/')[1:]]
    return any(
        all(
            begin < (at + 1) * size and at * size < end
            for (begin, end), at, size in zip(box, place, chunk, strict=True)
        )
        for box in boxes
    )

  return is_needed


def missing(step: pathlib.Path, names: Collection[str]) -> list[str]:
  """Return the chunks that a step lacks.

  Args:
    step: Directory of the step, with all its files that are not chunks.
    names: Files of the step, relative to it, of all processes.
  """
  wanted = []
  for file in sorted(step.glob('state/**/zarr.json')):
    about = json.loads(file.read_text())
    chunk = about['chunk_grid']['configuration']['chunk_shape']
    counts = [-(-n // c) for n, c in zip(about['shape'], chunk, strict=True)]
    array = file.parent.relative_to(step).as_posix()
    for place in itertools.product(*map(range, counts)):
      wanted.append('/'.join([array, 'c', *map(str, place)]))
  return [name for name in wanted if name not in names]


def _boxes(
    sharding: jax.sharding.Sharding, shape: tuple[int, ...]
) -> set[_Box]:
  """Return the parts of an array that the devices of this process hold."""
  bounds = lambda index: tuple(
      part.indices(size)[:2] for part, size in zip(index, shape, strict=True)
  )
  return set(
      map(bounds, sharding.addressable_devices_indices_map(shape).values())
  )
