"""Tensors in pickles, exchanged with PyTorch in both directions."""

import io
from multiprocessing import reduction
import pickle
import struct

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import pytest

from evojax.rollout import torch_pickle

torch = pytest.importorskip('torch')
_DTYPES = {
    'F32': torch.float32,
    'BF16': torch.bfloat16,
    'F16': torch.float16,
}
_SHAPES = ((3, 4), (5,), (), (2, 0, 3), (1, 7, 1), (0,))


def _random(shape, dtype):
  return torch.randn(shape, generator=torch.manual_seed(0)).to(_DTYPES[dtype])


def _bytes(tensor):
  """The elements in row-major order; NumPy has no bfloat16."""
  return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


class TorchPickleTest(parameterized.TestCase):

  @parameterized.product(shape=_SHAPES, dtype=tuple(_DTYPES))
  def test_both_directions(self, shape, dtype):
    given = [('first', _random(shape, dtype)), ('second.weight', torch.ones(2))]
    found = torch_pickle.loads(pickle.dumps(given))
    for tensor, (name, original) in zip(found, given, strict=True):
      self.assertEqual(tensor.name, name)
      self.assertEqual(tensor.shape, tuple(original.shape))
      self.assertEqual(_DTYPES[tensor.dtype], original.dtype)
      self.assertEqual(bytes(tensor.data), _bytes(original))
    back = pickle.loads(torch_pickle.dumps(found))
    for (name, tensor), (wanted, original) in zip(back, given, strict=True):
      self.assertEqual(name, wanted)
      self.assertEqual(tensor.dtype, original.dtype)
      self.assertEqual(tensor.stride(), original.stride())
      self.assertTrue(torch.equal(tensor, original))
      tensor += 1  # It owns its memory.

  @parameterized.parameters(3, 4, 5)  # Older ones have no bytes.
  def test_any_protocol(self, protocol):
    given = [('a', torch.arange(3.0))]
    (tensor,) = torch_pickle.loads(pickle.dumps(given, protocol))
    self.assertEqual(np.frombuffer(tensor.data, np.float32).tolist(), [0, 1, 2])

  @parameterized.parameters(
      (lambda: [('x', torch.ones(3, 4).T)], 'contiguous'),
      (lambda: [('x', torch.ones(3, 4)[1])], 'contiguous'),
      (lambda: [('x', torch.ones(4)[:2])], 'own its storage'),
      (lambda: [('x', torch.ones(2, dtype=torch.int64))], 'torch.LongStorage'),
      (lambda: [('x', np.ones(2))], 'by value'),
      (lambda: [torch.ones(2)], 'pairs'),
      (lambda: [('x', 'y')], 'pairs'),
      (lambda: {'x': torch.ones(2)}, 'list'),
      (lambda: [('x', eval)], 'builtins.eval'),
      (lambda: [('x', {}), ('y', [()])], 'pairs'),
  )
  def test_what_is_refused(self, make, message):
    with self.assertRaisesRegex(torch_pickle.TensorError, message):
      torch_pickle.loads(pickle.dumps(make()))

  def test_handles_of_memory(self):
    file = io.BytesIO()
    reduction.ForkingPickler(file).dump([('x', torch.ones(2))])
    with self.assertRaisesRegex(torch_pickle.TensorError, 'one machine'):
      torch_pickle.loads(file.getvalue())

  @parameterized.parameters(b'p1\n', b'q\1', b'r\xff\xff\xff\x7f')
  def test_memo_that_is_not_counted_from_0(self, store):
    # The last one would ask the reader for 32 GiB.
    with self.assertRaisesRegex(torch_pickle.TensorError, 'of its memo first'):
      torch_pickle.loads(b'\x80\2]' + store + b'.')

  def test_every_cut_and_many_changes_are_refused_or_read(self):
    data = torch_pickle.dumps(
        [torch_pickle.Tensor('a', 'F32', (2,), struct.pack('<2f', 1, 2))]
    )
    for length in range(len(data)):
      with self.assertRaises(torch_pickle.TensorError):
        torch_pickle.loads(data[:length])
    rng = np.random.default_rng(0)
    for _ in range(3000):
      changed = bytearray(data)
      for place in rng.integers(len(data), size=rng.integers(1, 4)):
        changed[place] = rng.integers(256)
      try:
        for tensor in torch_pickle.loads(bytes(changed)):
          self.assertIsInstance(tensor.name, str)
      except torch_pickle.TensorError:
        pass


if __name__ == '__main__':
  absltest.main()
