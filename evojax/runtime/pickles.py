"""Checks of untrusted pickles.

`pickle.Unpickler.find_class` decides what a name in a pickle stands for, so a
reader that allows only harmless names runs no foreign code. The remaining
danger is that a few bytes can request a huge amount of memory.
"""

import io
import pickletools

_STORING = frozenset(('PUT', 'BINPUT', 'LONG_BINPUT', 'MEMOIZE'))


def check_memo(file: io.BytesIO) -> None:
  """Check that the entries of the next pickle's memo are numbered from 0.

  All writers number them so. A reader allocates a memo as large as the number
  of an entry, so that a few bytes could request all memory. The position in the
  file does not change.

  Raises:
    ValueError: If they are not numbered so, or the file holds no pickle.
  """
  begin, entries = file.tell(), 0
  for opcode, entry, _ in pickletools.genops(file):
    if opcode.name in _STORING:
      if opcode.name != 'MEMOIZE' and entry > entries:
        raise ValueError(f'the pickle stores entry {entry} of its memo first')
      entries += 1
  file.seek(begin)
