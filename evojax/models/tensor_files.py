"""Safetensors files, written in place by all processes of a run.

The header fixes the place of every tensor before any is written. Threads can
therefore convert and write pieces of tensors in any order, without a copy of
the whole model.
"""

import collections
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
import dataclasses
import json
import math
import os
import pathlib
import threading

import ml_dtypes
import numpy as np

from evojax.models import conversion

DTYPES = {'float32': np.float32, 'bfloat16': ml_dtypes.bfloat16}
_NAMES = {'float32': 'F32', 'bfloat16': 'BF16'}
_PIECE_BYTES = 4 * 2**20  # Size of the pieces that a thread writes.
_THREADS = 8
_HELD = 2  # Maximum number of calls of `put` with tensors still to be written.
# A process gets a file of its own only for a share of at least this size.
_LEAST_BYTES = 64 * 2**20


@dataclasses.dataclass(frozen=True)
class File:
  """One file of a model."""

  name: str
  shapes: Mapping[str, tuple[int, ...]]  # Shape of each tensor, in order.
  dtype: str  # A key of DTYPES.

  @property
  def sizes(self) -> dict[str, int]:
    """Bytes of each tensor."""
    width = np.dtype(DTYPES[self.dtype]).itemsize
    return {name: math.prod(s) * width for name, s in self.shapes.items()}

  def header(self) -> tuple[bytes, dict[str, int]]:
    """Return the bytes before the tensors, and where each tensor begins."""
    # transformers refuses files that do not say which framework wrote them.
    fields, begin = {'__metadata__': {'format': 'pt'}}, 0
    for name, size in self.sizes.items():
      fields[name] = {
          'dtype': _NAMES[self.dtype],
          'shape': self.shapes[name],
          'data_offsets': [begin, begin + size],
      }
      begin += size
    text = json.dumps(fields, separators=(',', ':')).encode()
    # Readers map tensors at multiples of 8; cache lines are copied faster.
    text += b' ' * (-(len(text) + 8) % 64)
    head = len(text).to_bytes(8, 'little') + text
    del fields['__metadata__']
    return head, {
        name: len(head) + field['data_offsets'][0]
        for name, field in fields.items()
    }


def plan(
    shapes: Mapping[str, tuple[int, ...]],
    dtype: str,
    max_bytes: int,
    processes: int = 1,
) -> list[File]:
  """Divide tensors, in their order, into files.

  Args:
    shapes: Shape of each tensor, by name.
    dtype: 'float32' or 'bfloat16'.
    max_bytes: Maximum size of a file, which a single tensor may exceed.
    processes: Number of processes that write; a large model is divided into at
      least one file for each.
  """
  sizes = File('', shapes, dtype).sizes
  share = -(-sum(sizes.values()) // processes)
  limit = min(max_bytes, max(share, _LEAST_BYTES))
  groups, room = [[]], limit
  for name, size in sizes.items():
    if groups[-1] and size > room:
      groups.append([])
      room = limit
    groups[-1].append(name)
    room -= size
  files = 'model-{:05d}-of-{:05d}.safetensors'
  if len(groups) == 1:
    files = 'model.safetensors'
  return [
      File(files.format(i, len(groups)), {n: shapes[n] for n in names}, dtype)
      for i, names in enumerate(groups, 1)
  ]


def share(files: Sequence[File], process: int, processes: int) -> list[File]:
  """Return the files that a process writes; all write about equally much."""
  written, mine = [0] * processes, []
  for file in sorted(files, key=lambda f: -sum(f.sizes.values())):
    writer = written.index(min(written))
    written[writer] += sum(file.sizes.values())
    if writer == process:
      mine.append(file)
  return mine


class Writer:
  """Writes the tensors of some files, in any order; `with` closes them.

  Write errors are not raised, since the other processes, which gather the
  parameters together with this one, would then wait for it. After an error,
  `put` still accepts tensors, but writes none, and `error` holds the error.

  Attributes:
    names: The tensors of the files.
  """

  def __init__(self, folder: pathlib.Path, files: Sequence[File]):
    """Store the arguments; entering the context opens the files.

    Args:
      folder: Directory of the files.
      files: The files that this process writes.
    """
    self._folder, self._files = folder, files
    # Tensor -> its file, file descriptor and offset.
    self._places: dict[str, tuple[File, int, int]] = {}
    self.names = {name for file in files for name in file.shapes}
    # A file accepts one write at a time; without a lock, threads would spin.
    self._opened: dict[int, threading.Lock] = {}
    self._held: collections.deque[list[futures.Future[None]]]
    self._held = collections.deque()
    self._error: OSError | None = None
    self._of_thread = threading.local()
    threads = min(_THREADS, os.cpu_count() or 1)
    self._pool = futures.ThreadPoolExecutor(threads, 'weights')

  def __enter__(self) -> 'Writer':
    try:
      for file in self._files:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        fd = os.open(self._folder / file.name, flags, 0o666)
        self._opened[fd] = threading.Lock()
        head, begins = file.header()
        self._write(fd, np.frombuffer(head, np.uint8), 0)
        self._places |= {n: (file, fd, at) for n, at in begins.items()}
    except OSError as error:
      self._error = error
    return self

  def __exit__(self, kind: type | None, *_: object) -> None:
    self._pool.shutdown(cancel_futures=kind is not None)
    while self._held:
      self._wait()
    for fd in self._opened:
      try:
        os.close(fd)  # Network file systems report a full disk here.
      except OSError as error:
        self._error = self._error or error

  @property
  def error(self) -> OSError | None:
    """The first error; all of them are known once the writer is closed."""
    return self._error

  def put(self, tensors: Mapping[str, np.ndarray]) -> None:
    """Write tensors of the files.

    Args:
      tensors: Name -> float32 or bfloat16 view of any strides, whose elements
        in row-major order are those of the tensor.
    """
    while len(self._held) >= _HELD:
      self._wait()
    if self._error is not None:
      return
    self._held.append(
        [
            self._pool.submit(self._convert, *piece)
            for name, view in tensors.items()
            for piece in self._pieces(name, view)
        ]
    )

  def _pieces(
      self, name: str, view: np.ndarray
  ) -> Iterator[tuple[int, np.ndarray, np.dtype, int]]:
    """Yield file, view, dtype and offset of each piece of a tensor."""
    file, fd, at = self._places[name]
    dtype = np.dtype(DTYPES[file.dtype])
    view = conversion.joined(view, file.shapes[name])
    row = view.size // len(view) * dtype.itemsize
    rows = max(_PIECE_BYTES // row, 1)
    for begin in range(0, len(view), rows):
      yield fd, view[begin : begin + rows], dtype, at + begin * row

  def _convert(
      self, fd: int, view: np.ndarray, dtype: np.dtype, at: int
  ) -> None:
    """Convert a view to the dtype, and write it at an offset of a file."""
    if not hasattr(self._of_thread, 'converter'):
      self._of_thread.converter = conversion.Converter()
    self._write(fd, self._of_thread.converter.convert(view, dtype), at)

  def _write(self, fd: int, array: np.ndarray, at: int) -> None:
    """Write a contiguous array at an offset of a file."""
    data = memoryview(array.reshape(-1).view(np.uint8))
    with self._opened[fd]:
      while data:
        written = os.pwrite(fd, data, at)
        data, at = data[written:], at + written

  def _wait(self) -> None:
    """Wait until the oldest tensors are written."""
    for future in self._held.popleft():
      try:
        future.result()
      except futures.CancelledError:
        pass
      except OSError as error:
        self._error = self._error or error
