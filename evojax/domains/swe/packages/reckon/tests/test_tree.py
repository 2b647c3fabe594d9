import pytest
from reckon import tree


def test_parse():
  assert tree.parse('1 + 2') == ('+', 1.0, 2.0)
  assert tree.parse('x') == 'x'
  assert tree.parse('(7)') == 7.0


def test_strength():
  assert tree.parse('1+2*3') == ('+', 1.0, ('*', 2.0, 3.0))
  assert tree.parse('(1+2)*3') == ('*', ('+', 1.0, 2.0), 3.0)
  assert tree.parse('a*b^2') == ('*', 'a', ('^', 'b', 2.0))


def test_from_left_to_right():
  assert tree.parse('8-3-2') == ('-', ('-', 8.0, 3.0), 2.0)
  assert tree.parse('8/4/2') == ('/', ('/', 8.0, 4.0), 2.0)
  assert tree.parse('2^3^2') == ('^', 2.0, ('^', 3.0, 2.0))


def test_minus():
  assert tree.parse('-x') == ('-', 0.0, 'x')
  assert tree.parse('-2 + 5') == ('+', ('-', 0.0, 2.0), 5.0)


def test_broken_formulas():
  with pytest.raises(ValueError):
    tree.parse('(1 + 2')
  with pytest.raises(ValueError):
    tree.parse('1 2')
  with pytest.raises(ValueError):
    tree.parse('* 2')


def test_write():
  assert tree.write(tree.parse('1+2*3')) == '1 + 2 * 3'
  assert tree.write(tree.parse('(1+2)*3')) == '(1 + 2) * 3'
  assert tree.write(tree.parse('8-(3-2)')) == '8 - (3 - 2)'
  assert tree.write(tree.parse('((x))')) == 'x'


def test_depth():
  assert tree.depth(tree.parse('4')) == 0
  assert tree.depth(tree.parse('a*b+c')) == 2
  assert tree.depth(tree.parse('1+(2+(3+4))')) == 3
