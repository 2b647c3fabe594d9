"""What takes minutes, or an environment of 3 GB, runs when it is asked for."""

import re

import pytest

_ASKED_FOR = ('real_sglang', 'long')


def pytest_collection_modifyitems(config, items):
  """Skips what carries such a mark, unless by -m."""
  for mark in _ASKED_FOR:
    if re.search(rf'\b{mark}\b', config.option.markexpr or ''):
      continue
    skip = pytest.mark.skip(reason=f'asked for by -m {mark}')
    for item in items:
      if item.get_closest_marker(mark):
        item.add_marker(skip)
