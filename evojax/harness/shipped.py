"""Functions that come with the package: recognised by what they say."""

import functools
import hashlib
import pathlib

import evojax
from evojax.harness import library


def source_sha256(source: str) -> str:
  """Hash of a source's text."""
  return hashlib.sha256(source.encode()).hexdigest()


@functools.cache
def hashes() -> frozenset[str]:
  """Hashes of the sources in the library and in the domains' seed harnesses."""
  texts = [library.source(name) for name in library.every()]
  domains = pathlib.Path(evojax.__file__).parent / 'domains'
  for folder in ('seed_harness', 'seed_blind'):
    for path in domains.glob(f'*/{folder}/**/*.py'):
      # As `spec` reads it.
      texts.append(path.read_text().rstrip('\n') + '\n')
  return frozenset(map(source_sha256, texts))
