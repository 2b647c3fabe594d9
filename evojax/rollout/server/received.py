"""Weights that arrive as tensors, in the bodies of several requests."""

import base64
import pathlib
import shutil
import tempfile

import ml_dtypes
import numpy as np
from safetensors import numpy as safetensors

from evojax.rollout import torch_pickle

_DTYPES = {'F32': np.float32, 'BF16': ml_dtypes.bfloat16, 'F16': np.float16}


class ReceivedWeights:
  """The tensors of one update.

  They are held in memory until all of them have arrived, and then written to a
  Hugging Face directory, which is what a service loads.
  """

  def __init__(self, most_bytes: int):
    """Start without tensors; accept at most `most_bytes` of them."""
    self.version: str | None = None  # As the trainer names it.
    self._most_bytes = most_bytes
    self._tensors: dict[str, torch_pickle.Tensor] = {}

  def __len__(self) -> int:
    """The number of tensors that arrived."""
    return len(self._tensors)

  def add(self, payload: str) -> None:
    """Hold the tensors of a request, in place of earlier ones of the same name.

    Args:
      payload: A pickle in Base64; see `torch_pickle`.

    Raises:
      ValueError: If it is not valid, or the tensors exceed `most_bytes`.
    """
    found = torch_pickle.loads(base64.b64decode(payload, validate=True))
    held = self._tensors | {tensor.name: tensor for tensor in found}
    size = sum(len(tensor.data) for tensor in held.values())
    if size > self._most_bytes:
      raise ValueError(
          f'the tensors have {size} bytes, more than the {self._most_bytes} of'
          ' any policy of this shape'
      )
    self._tensors = held

  def write(self, model: pathlib.Path) -> tempfile.TemporaryDirectory:
    """Return a complete Hugging Face directory with the tensors.

    Raises:
      OSError: If it cannot be written.
    """
    folder = tempfile.TemporaryDirectory(prefix='evojax-weights-')
    shutil.copytree(
        model,
        folder.name,
        ignore=shutil.ignore_patterns('*.safetensors*', '*.bin', '*.pt*'),
        dirs_exist_ok=True,
    )
    arrays = {
        name: np.frombuffer(t.data, _DTYPES[t.dtype]).reshape(t.shape)
        for name, t in self._tensors.items()
    }
    file = pathlib.Path(folder.name, 'model.safetensors')
    safetensors.save_file(arrays, file, {'format': 'pt'})
    return folder
