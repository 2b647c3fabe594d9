"""A real sglang is started only when it is asked for."""

import re

import pytest


def pytest_collection_modifyitems(config, items):
  """Skips what is marked real_sglang, unless by -m real_sglang."""
  if re.search(r'\breal_sglang\b', config.option.markexpr or ''):
    return
  skip = pytest.mark.skip(reason='asked for by -m real_sglang')
  for item in items:
    if item.get_closest_marker('real_sglang'):
      item.add_marker(skip)
