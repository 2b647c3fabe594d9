"""The steps of the meta-loop, one file each; `evolve.loop` holds their order.

A step takes the parts of an opened run and the records of earlier steps, and
returns its own record. Its files are on disk before its record is in the
ledger; after a kill in between, a second call finds and reuses them.
"""
