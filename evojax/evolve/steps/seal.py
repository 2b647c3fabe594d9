"""Seal: the random seed of the sealed problems, which give the final scores.

It is derived from the head of the ledger, which no longer changes, and from a
salt that is drawn only now (unless evolve.salt sets it), so no training step
and no proposal can have seen these problems.
"""

import hashlib
import secrets

from evojax.evolve import opening
from evojax.ledger import records
from evojax.runtime import decisions


def seal(run: opening.Run) -> records.Seal:
  """Return the salt and the seed of the sealed problems."""
  salt = decisions.decide(
      lambda: run.config.evolve.salt or secrets.token_hex(16)
  )
  digest = hashlib.sha256(f'{run.recorder.head} {salt}'.encode()).digest()
  return records.Seal(salt=salt, seed=int.from_bytes(digest[:4], 'big'))
