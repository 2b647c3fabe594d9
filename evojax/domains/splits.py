"""The identity of a problem, and the split that follows from it."""

import hashlib
import unicodedata

# Percentages of all problem ids. A split is a fixed set of ids, so that splits
# are disjoint whatever source, seed or run a problem comes from.
SHARES = {'train': 80, 'dev': 10, 'sealed': 10}


def normalise(text: str) -> str:
  """Return NFKC in lower case, with single spaces as the only white space."""
  return ' '.join(unicodedata.normalize('NFKC', text).lower().split())


def problem_id(text: str) -> str:
  """Return 16 hex digits, the first of the normalised text's SHA-256."""
  # A lone surrogate is legal in JSON and must not stop a run.
  data = normalise(text).encode('utf-8', 'surrogatepass')
  return hashlib.sha256(data).hexdigest()[:16]


def split_of(identity: str) -> str:
  """Return the split of a problem id."""
  bucket = int(identity, 16) % 100
  for split, share in SHARES.items():
    if bucket < share:
      return split
    bucket -= share
  raise AssertionError(f'{SHARES=} do not add up to 100')


def check(split: str) -> str:
  """Return the split if it is a valid one.

  Raises:
    ValueError: If it is not one of SHARES.
  """
  if split not in SHARES:
    raise ValueError(f'{split=} is not one of {tuple(SHARES)}')
  return split
