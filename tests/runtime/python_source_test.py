"""Threads that parse at one time do not disturb each other."""

import ast
import concurrent.futures
import gc
import time

from absl.testing import absltest

from evojax.runtime import python_source

SOURCE = 'def f(x):\n  return [x + 1, (x, {x: -x})]\n' * 60


class PythonSourceTest(absltest.TestCase):

  def test_a_collection_lets_another_thread_parse(self):
    let_others = lambda *_: time.sleep(1e-4)
    self.addCleanup(gc.set_threshold, *gc.get_threshold())
    self.addCleanup(gc.callbacks.remove, let_others)
    gc.callbacks.append(let_others)
    gc.set_threshold(100)
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
      trees = list(threads.map(python_source.parse, [SOURCE] * 6))
    self.assertLen({ast.dump(tree) for tree in trees}, 1)

  def test_errors_name_the_path(self):
    with self.assertRaisesRegex(SyntaxError, 'here.py, line 2'):
      python_source.parse('x = 1\nx = = 2', 'here.py')


if __name__ == '__main__':
  absltest.main()
