"""Converts arrays on the host to the dtype and order of files, in one pass.

A cast followed by a transposition would move every element four times, through
newly allocated memory. Here each tile is cast and transposed while it is in the
processor's cache, in buffers that are reused. Two neighbouring bfloat16 numbers
of the file are moved as one 32-bit word, which halves the number of elements to
transpose.

The number of columns of a matrix is often a power of two. All elements of a
column of such a tile would map to the same few places of the cache, so that
every read of the transposition would be a cache miss. Therefore each row of a
tile is padded by one cache line. Buffers are aligned to cache lines, because
AMD processors copy 16 times slower if the target lies a few bytes behind the
source within a page (glibc bug 30994), as buffers of malloc do.
"""

import math

import ml_dtypes
import numpy as np

_TILE = 128 * 1024  # Words.
_LINE = 64  # Bytes of a cache line.
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def joined(view: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
  """Return a view reshaped to `shape`, or unchanged if that needs a copy."""
  try:
    return np.reshape(view, shape, copy=False)
  except ValueError:
    return view


class Converter:
  """Converts arrays, one at a time, in buffers that it reuses."""

  def __init__(self):
    self._memory: dict[str, np.ndarray] = {}

  def convert(self, view: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the elements of a view in row-major order.

    Args:
      view: float32 or bfloat16, of any strides and at least one dimension.
      dtype: float32 or bfloat16; rounds to the nearest, ties to even. A NaN
        stays one if arithmetic made it: its highest mantissa bit is set.

    Returns:
      An array of the shape of `view` and the dtype, contiguous. It may be
      `view`, or memory that the next call overwrites.
    """
    if view.dtype == dtype and view.flags.c_contiguous:
      return view
    out = self._array('out', math.prod(view.shape), dtype).reshape(view.shape)
    turned = not view.flags.c_contiguous
    with np.errstate(invalid='ignore'):  # NaN is cast like any number.
      if turned and view.dtype == dtype == np.float32:
        self._transpose(view.view(np.uint32), out.view(np.uint32))
      elif turned and dtype == _BFLOAT16 and view.shape[-1] % 2 == 0:
        self._transpose_pairs(view, out.view(np.uint32))
      else:
        np.copyto(out, view, casting='unsafe')
    return out

  def _array(self, name: str, size: int, dtype: np.dtype) -> np.ndarray:
    """Return the buffer of this name, grown to `size` elements if needed."""
    held = self._memory.get(name)
    if held is None or len(held) < size or held.dtype != dtype:
      nbytes = size * dtype.itemsize
      memory = np.empty(nbytes + _LINE, np.uint8)
      begin = -memory.ctypes.data % _LINE
      held = memory[begin : begin + nbytes].view(dtype)
      self._memory[name] = held
    return held[:size]

  def _tile(self, rows: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return uint32 [rows, *shape] with `_LINE` bytes between its rows."""
    size, dtype = math.prod(shape), np.dtype(np.uint32)
    memory = self._array('tile', rows * (size + _LINE // dtype.itemsize), dtype)
    return memory.reshape(rows, -1)[:, :size].reshape(rows, *shape)

  def _transpose(self, bits: np.ndarray, out: np.ndarray) -> None:
    """Copy uint32 [..., n] of any strides to a contiguous array."""
    lead, n = bits.shape[:-1], bits.shape[-1]
    rows = max(_TILE // math.prod(lead), 1)
    for begin in range(0, n, rows):
      part = np.moveaxis(bits[..., begin : begin + rows], -1, 0)
      tile = self._tile(len(part), lead)
      tile[:] = part
      out[..., begin : begin + rows] = np.moveaxis(tile, 0, -1)

  def _transpose_pairs(self, view: np.ndarray, out: np.ndarray) -> None:
    """Copy [..., 2n] of any strides to bfloat16, two in a word.

    Args:
      view: float32 or bfloat16.
      out: uint32 [..., n], contiguous.
    """
    lead, n = out.shape[:-1], out.shape[-1]
    rows = max(_TILE // math.prod(lead), 1)
    for begin in range(0, n, rows):
      pairs = out[..., begin : begin + rows]
      part = np.moveaxis(view[..., 2 * begin : 2 * (begin + rows)], -1, 0)
      if part.dtype != _BFLOAT16:
        cast = self._array('cast', part.size, _BFLOAT16).reshape(part.shape)
        np.copyto(cast, part, casting='unsafe')
        part = cast
      tile = self._tile(pairs.shape[-1], lead)
      halves = tile[..., None].view(np.uint16)
      part = part.view(np.uint16)
      halves[..., 0], halves[..., 1] = part[0::2], part[1::2]
      pairs[...] = np.moveaxis(tile, 0, -1)
