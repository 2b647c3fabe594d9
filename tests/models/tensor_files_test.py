import json
import math

from absl.testing import absltest
from absl.testing import parameterized

from evojax.models import tensor_files

MB = 2**20


class PlanTest(parameterized.TestCase):

  @parameterized.parameters(1, 2, 3, 8)
  def test_hosts_write_about_as_much(self, processes):
    """A table, 36 layers of three matrices, and another table."""
    shapes = {'embed': (150, MB), 'head': (150, MB)}
    for i in range(36):
      shapes |= {f'{i}.{name}': (16, MB) for name in ('attn', 'up', 'down')}
    total = sum(math.prod(s) for s in shapes.values()) * 2
    files = tensor_files.plan(shapes, 'bfloat16', 400 * MB, processes)
    self.assertEqual(
        [name for file in files for name in file.shapes], list(shapes)
    )
    shares = [tensor_files.share(files, i, processes) for i in range(processes)]
    written = sorted(file.name for share in shares for file in share)
    self.assertEqual(written, sorted(file.name for file in files))
    most = max(sum(sum(f.sizes.values()) for f in share) for share in shares)
    # No file is divided: 400 MB of 3.9 GB.
    self.assertLessEqual(most, total / processes + 400 * MB)

  def test_small_models_are_one_file(self):
    shapes = {'a': (10, 10), 'b': (1000,)}
    (file,) = tensor_files.plan(shapes, 'float32', 10**9, processes=4)
    self.assertEqual(file.name, 'model.safetensors')
    self.assertEqual(file.sizes, {'a': 400, 'b': 4000})

  @parameterized.parameters(*range(1, 80, 7))
  def test_the_first_tensor_begins_at_a_cache_line(self, length):
    file = tensor_files.File('f', {'a' * length: (16,)}, 'float32')
    head, begins = file.header()
    self.assertEqual(begins, {'a' * length: len(head)})
    self.assertEqual(len(head) % 64, 0)
    # As the format asks: its length, then JSON that may end with blanks.
    self.assertEqual(int.from_bytes(head[:8], 'little'), len(head) - 8)
    self.assertIn('a' * length, json.loads(head[8:]))


if __name__ == '__main__':
  absltest.main()
