"""Reads and writes PyTorch's pickles of tensors, without PyTorch.

SGLang's /update_weights_from_tensor takes a pickled list of names and tensors,
with the tensors stored by value. PyTorch's own pickle of a list of CPU tensors
has this format. The pickles of torch.multiprocessing do not: they hold only
handles of memory on the same machine, and are refused here. A storage within a
pickle is in the older format of `torch.save`: five pickles (magic number,
version, sizes of types, the storage, its key), then the number of its elements
and their bytes.

Reading runs no code that a pickle names: a name that is not listed here is an
error.
"""

from collections.abc import Iterable, Sequence
import dataclasses
import io
import pickle
from typing import Any, NoReturn

from evojax.runtime import pickles

_MAGIC = 0x1950A86A20F9469CFC6C
_VERSION = 1001
_SIZES = {'short': 2, 'int': 4, 'long': 4}
_SYSTEM = dict(protocol_version=_VERSION, little_endian=True, type_sizes=_SIZES)
# Names of dtypes in safetensors -> PyTorch's class of a storage, bytes.
_STORAGES = {
    'F32': ('FloatStorage', 4),
    'BF16': ('BFloat16Storage', 2),
    'F16': ('HalfStorage', 2),
}
_REBUILD = ('torch._utils', '_rebuild_tensor_v2')
_LOAD = ('torch.storage', '_load_from_bytes')
_ORDERED = ('collections', 'OrderedDict')


@dataclasses.dataclass(frozen=True)
class Tensor:
  """A tensor with its elements in row-major, little-endian bytes."""

  name: str
  dtype: str  # As in safetensors: 'F32', 'BF16' or 'F16'.
  shape: tuple[int, ...]
  data: bytes | memoryview


class TensorError(ValueError):
  """A pickle holds something other than tensors by value."""


# -------------------------------------------------------------------- writing


def dumps(tensors: Iterable[Tensor]) -> bytes:
  """Return the pickle of a list of (name, tensor) pairs."""
  parts = [pickle.PROTO, b'\4', pickle.EMPTY_LIST, pickle.MARK]
  for tensor in tensors:
    parts += [_plain(tensor.name), *_tensor(tensor), pickle.TUPLE2]
  parts += [pickle.APPENDS, pickle.STOP]
  return b''.join(parts)


def _tensor(tensor: Tensor) -> list[bytes | memoryview]:
  """Return the parts of _rebuild_tensor_v2(storage, 0, shape, strides, ...)."""
  storage = _storage(tensor)
  size = sum(map(len, storage))
  strides = _strides(tensor.shape)
  return [
      *(_global(*_REBUILD), pickle.MARK),
      # _load_from_bytes(storage)
      *(_global(*_LOAD), pickle.BINBYTES8, size.to_bytes(8, 'little')),
      *(*storage, pickle.TUPLE1, pickle.REDUCE),
      *map(_plain, (0, tuple(tensor.shape), strides, False)),
      *(_global(*_ORDERED), pickle.EMPTY_TUPLE, pickle.REDUCE),
      *(pickle.TUPLE, pickle.REDUCE),
  ]


def _storage(tensor: Tensor) -> list[bytes | memoryview]:
  """Return the parts of a storage with the elements of a tensor."""
  kind, width = _STORAGES[tensor.dtype]
  data = memoryview(tensor.data).cast('B')
  count = len(data) // width
  # Found by the pickle's reader through this "persistent id".
  place = [
      *(pickle.PROTO, b'\2', pickle.MARK, _plain('storage')),
      *(_global('torch', kind), *map(_plain, ('0', 'cpu', count, None))),
      *(pickle.TUPLE, pickle.BINPERSID, pickle.STOP),
  ]
  return [
      *(pickle.dumps(x, 2) for x in (_MAGIC, _VERSION, _SYSTEM)),
      *(b''.join(place), pickle.dumps(['0'], 2)),
      *(count.to_bytes(8, 'little'), data),
  ]


def _global(module: str, name: str) -> bytes:
  return pickle.GLOBAL + f'{module}\n{name}\n'.encode()


def _plain(value: Any) -> bytes:
  """Return the opcodes of a plain value, to be put into another pickle."""
  return pickle.dumps(value, 2)[2:-1]  # Without PROTO and STOP.


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
  """Return the strides, in elements, of a tensor in row-major order."""
  strides, stride = [], 1
  for size in reversed(shape):
    strides.append(stride)
    stride *= max(size, 1)  # As PyTorch counts empty tensors.
  return tuple(reversed(strides))


# -------------------------------------------------------------------- reading


@dataclasses.dataclass(frozen=True)
class _Unnamed:
  """A storage, or a tensor without its name."""

  dtype: str
  shape: tuple[int, ...]
  data: memoryview


def loads(data: bytes) -> list[Tensor]:
  """Return the tensors of a pickle that `dumps` or PyTorch wrote.

  Raises:
    TensorError: If it holds anything but names and whole tensors by value.
  """
  found = _read(_Tensors, io.BytesIO(data))
  if not isinstance(found, list):
    raise TensorError('the pickle must hold a list of (name, tensor) pairs')
  tensors = []
  for pair in found:
    match pair:
      case (str(name), _Unnamed(dtype, shape, values)):
        tensors.append(Tensor(name, dtype, shape, values))
      case _:
        raise TensorError('the pickle must hold pairs of a name and a tensor')
  return tensors


def _read(unpickler: type[pickle.Unpickler], file: io.BytesIO) -> Any:
  """Return the value of the next pickle in a file."""
  try:
    pickles.check_memo(file)
    return unpickler(file).load()
  except TensorError:
    raise
  except Exception as error:  # A broken pickle can raise almost any error.
    raise TensorError(f'no pickle of tensors: {error!s:.200}') from error


def _refuse(module: str, name: str) -> NoReturn:
  raise TensorError(
      f'{module}.{name} in the pickle: only float32, bfloat16 and float16'
      ' tensors by value are read. Pickle CPU tensors with pickle.dumps, since'
      ' those of torch.multiprocessing hold handles of memory on one machine'
  )


class _Tensors(pickle.Unpickler):
  """Reads (name, tensor) pairs."""

  def find_class(self, module: str, name: str) -> Any:
    known = {_REBUILD: _rebuild, _LOAD: _load, _ORDERED: dict}
    return known.get((module, name)) or _refuse(module, name)

  def persistent_load(self, pid: Any) -> NoReturn:
    raise TensorError('the pickle refers to something outside of it')


class _Storage(pickle.Unpickler):
  """Reads the pickles in front of the bytes of a storage."""

  def find_class(self, module: str, name: str) -> tuple[str, int]:
    for dtype, (kind, width) in _STORAGES.items():
      if (module, name) == ('torch', kind):
        return dtype, width
    _refuse(module, name)

  def persistent_load(self, pid: Any) -> Any:
    return pid


def _load(data: Any) -> _Unnamed:
  """Return the storage that `torch.save` wrote; see the module's docstring."""
  if not isinstance(data, bytes):
    raise TensorError('a storage must be bytes')
  file = io.BytesIO(data)
  magic, version, system, place, keys = (_read(_Storage, file) for _ in '12345')
  match place:
    case ('storage', (str(dtype), int(width)), str(key), _, int(count), None):
      pass
    case _:
      raise TensorError('a storage is not described as torch.save does')
  known = (magic, version, keys) == (_MAGIC, _VERSION, [key])
  if not known or system != _SYSTEM or count < 0:
    raise TensorError('a storage is of another version of torch.save')
  begin = file.tell() + 8
  values = memoryview(data)[begin:]
  if data[begin - 8 : begin] != count.to_bytes(8, 'little'):
    raise TensorError('a storage is of another version of torch.save')
  if len(values) != count * width:
    raise TensorError(f'a storage of {count} elements has {len(values)} bytes')
  return _Unnamed(dtype, (count,), values)


def _rebuild(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any):
  """Return the tensor that covers a whole storage."""
  whole = isinstance(storage, _Unnamed) and isinstance(shape, tuple)
  whole = whole and all(type(x) is int and x >= 0 for x in shape)
  if not whole or offset != 0 or strides != _strides(shape):
    raise TensorError('a tensor must be contiguous; call .contiguous() first')
  count = 1
  for size in shape:
    count *= size
  if storage.shape != (count,):
    raise TensorError('a tensor must own its storage; call .clone() first')
  return dataclasses.replace(storage, shape=shape)
