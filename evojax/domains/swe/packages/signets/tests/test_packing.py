import pytest
from signets import packing


def test_runs():
  assert packing.runs('aabca') == [('a', 2), ('b', 1), ('c', 1), ('a', 1)]
  assert packing.runs('') == []


def test_pack():
  assert packing.pack('aaabccd') == '3ab2cd'
  assert packing.pack('aaabcc', least=3) == '3abcc'
  assert packing.pack('xyz') == 'xyz'


def test_unpack():
  assert packing.unpack('3ab2cd') == 'aaabccd'
  assert packing.unpack('12x') == 'xxxxxxxxxxxx'
  with pytest.raises(ValueError):
    packing.unpack('a3')


def test_saving():
  assert packing.saving('aaaaaaaaab') == 70
  assert packing.saving('abc') == 0
  assert packing.saving('') == 0


def test_blocks():
  assert packing.blocks('abcdefgh') == 'abcde fgh'
  assert packing.blocks('abcdef', size=2, gap='-') == 'ab-cd-ef'


def test_rails():
  assert packing.rails('abcdefg', 3) == 'aebdfcg'
  assert packing.rails('abcdef', 2) == 'acebdf'
  assert packing.rails('abc', 1) == 'abc'
