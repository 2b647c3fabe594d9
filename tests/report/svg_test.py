from absl.testing import absltest

from evojax.report import svg


class SvgTest(absltest.TestCase):

  def test_element_escapes(self):
    found = svg.element('text', '<&"', svg.element('b', 'x'), class_='a"b')
    self.assertEqual(
        found, '<text class="a&quot;b">&lt;&amp;&quot;<b>x</b></text>'
    )
    self.assertEqual(svg.visible('a\x00\u202eb\n'), 'a\\x00\\u202eb\n')

  def test_scale(self):
    scale = svg.Scale(-0.5, 2.5)
    self.assertEqual(scale(1.0), 0.5)
    self.assertEqual(scale.ticks(3), [0.0, 1.0, 2.0])
    flat = svg.Scale.over([0.3, 0.3], least=0.1)
    self.assertLess(flat.low, 0.251)
    self.assertGreater(flat.high, 0.349)
    for values in ([], [0.0], [1e9, -1e9], [1e-12, 2e-12]):
      self.assertLess(svg.Scale.over(values).low, svg.Scale.over(values).high)
      self.assertNotEmpty(svg.Scale.over(values).ticks(4))

  def test_strip_marks_what_lies_outside(self):
    scale = svg.Scale(-1.0, 1.0)
    found = svg.strip(scale, [('dot', -3.0, 'dot')], label='far')
    self.assertIn('◂', found)
    self.assertNotIn('circle', found)
    found = svg.strip(scale, [('dot', 0.0, 'dot')], label='near')
    self.assertIn('cx="50%"', found)


if __name__ == '__main__':
  absltest.main()
