"""Checks of pickles that are read without running what they name.

`pickle.Unpickler.find_class` decides what a name in a pickle stands for: a
reader that allows only harmless names runs no foreign code. What is left is the
memory that a few bytes can ask for.
"""

import io
import pickletools

_STORING = frozenset(('PUT', 'BINPUT', 'LONG_BINPUT', 'MEMOIZE'))


def check_memo(file: io.BytesIO) -> None:
  """Check that the entries of the next pickle's memo are counted from 0.

  All writers count them. A reader allocates a memo as large as the number of an
  entry, so that a few bytes could ask for all memory. The file's position stays
  as it was.

  Raises:
    ValueError: If they are not counted, or it is no pickle.
  """
  begin, entries = file.tell(), 0
  for opcode, entry, _ in pickletools.genops(file):
    if opcode.name in _STORING:
      if opcode.name != 'MEMOIZE' and entry > entries:
        raise ValueError(f'the pickle stores entry {entry} of its memo first')
      entries += 1
  file.seek(begin)
