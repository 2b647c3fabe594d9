from absl.testing import absltest
from absl.testing import parameterized
import ml_dtypes
import numpy as np

from evojax.models import conversion

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT32 = np.dtype(np.float32)


def numbers(*shape):
  """Return float32 of all sizes, among them every kind of a tie."""
  bits = np.random.default_rng(0).integers(0, 2**32, shape, np.uint32)
  flat = bits.reshape(-1)
  flat[::3] = flat[::3] & 0xFFFF0000 | 0x8000  # Half way between two.
  values = bits.view(np.float32)
  values[~np.isfinite(values)] = np.nan
  few = [0.0, -0.0, np.inf, -np.inf, np.finfo(np.float32).max, 1e-45]
  values.reshape(-1)[: len(few)] = few
  return values


# Name -> (a view of a new array, shape of the tensor).
VIEWS = {
    'as it is': lambda: (numbers(6, 1000), (6, 1000)),
    'one dimension': lambda: (numbers(300_001), (300_001,)),
    'transposed': lambda: (numbers(1000, 600).T, (600, 1000)),
    'a part': lambda: (numbers(64, 2, 48)[:, 1:].transpose(2, 1, 0), (48, 64)),
    'heads': lambda: (
        numbers(64, 2, 4, 8)[:, :, 1:3].transpose(1, 2, 3, 0), (32, 64)
    ),
    'joined': lambda: (numbers(2, 3, 8, 50).transpose(3, 0, 1, 2), (50, 48)),
    'an odd number': lambda: (numbers(33, 20).T, (20, 33)),
}  # fmt: skip


class ConvertTest(parameterized.TestCase):

  @parameterized.product(
      view=list(VIEWS), of=(FLOAT32, BFLOAT16), to=(FLOAT32, BFLOAT16)
  )
  def test_bits_are_those_of_a_cast_and_a_copy(self, view, of, to):
    view, shape = VIEWS[view]()
    view = view.astype(of)  # Keeps the order of the axes in memory.
    before = view.copy()
    converter = conversion.Converter()
    converter.convert(np.ones((700, 700), np.float32).T, to)  # Used memory.
    got = converter.convert(conversion.joined(view, shape), to)
    self.assertTrue(got.flags.c_contiguous)
    self.assertEqual(got.dtype, to)
    bits = np.uint32 if to == FLOAT32 else np.uint16
    expected = view.astype(to, 'C').reshape(shape)
    np.testing.assert_array_equal(
        got.reshape(shape).view(bits), expected.view(bits)
    )
    self.assertEqual(view.tobytes(), before.tobytes())

  def test_what_needs_no_change_is_not_copied(self):
    array = numbers(6, 100)
    got = conversion.Converter().convert(array, FLOAT32)
    self.assertTrue(np.shares_memory(got, array))


if __name__ == '__main__':
  absltest.main()
