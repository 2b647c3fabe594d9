from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.report import page
from evojax.report import svg
from evojax.runtime import numerals


def _macros():
  return page.environment().get_template('svg.html').module


class SvgTest(parameterized.TestCase):

  def test_text_of_a_chart_is_escaped(self):
    scale = svg.Scale(0.0, 1.0)
    chart = svg.Chart(scale, scale, height=9, label='a"b', class_='x"y')
    place = (0.5, 0.25)
    chart.add('text', 'c"d', place, text='<&"', title='<b>\x00', href='"')
    found = str(_macros().chart(chart))
    self.assertIn('<svg class="chart x&#34;y" height="9" role="img"', found)
    self.assertIn('aria-label="a&#34;b"', found)
    self.assertIn('<a href="#&#34;">', found)
    self.assertIn('<text x="50%" y="75%" dx="0" dy="0" class="c&#34;d"', found)
    text = '&lt;&amp;&#34;<title>&lt;b&gt;\\x00</title></text>'
    self.assertIn(text, found)
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

  @parameterized.parameters(
      (0.246, 0.577, [0.3, 0.4, 0.5]),
      # The first step that is large enough has one multiple.
      (0.21, 0.39, [0.25, 0.3, 0.35]),
      (-0.39, -0.21, [-0.35, -0.3, -0.25]),
  )
  def test_a_scale_has_two_ticks_at_least(self, low, high, wanted):
    ticks = svg.Scale(low, high).ticks(3)
    np.testing.assert_allclose(ticks, wanted, atol=1e-12)

  @parameterized.parameters(24.37, 0.226, 101.0, 1234.5, -0.803)
  def test_numbers_beside_ticks_differ(self, value):
    ticks = svg.Scale.over([value, value], least=0.02).ticks(3)
    texts = list(map(numerals.short, ticks))
    self.assertLen(set(texts), len(ticks))
    self.assertNotEmpty(texts)

  def test_strip_marks_what_lies_outside(self):
    scale = svg.Scale(-1.0, 1.0)
    draw = lambda label, x: str(
        _macros().strip(svg.strip(scale, label, ('dot', 'dot', x)))
    )
    found = draw('far', -3.0)
    self.assertIn('◂', found)
    self.assertNotIn('circle', found)
    found = draw('near', 0.0)
    self.assertIn('cx="50%"', found)
    self.assertIn('<title>near</title>', found)


if __name__ == '__main__':
  absltest.main()
