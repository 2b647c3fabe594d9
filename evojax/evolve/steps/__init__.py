"""The steps of the meta-loop, one file each; `evolve.loop` holds their order.

A step takes the parts of an opened run and the records of the steps before it,
and returns the record of its own. What it leaves on disk is there before its
record is in the ledger, and a second call after a kill finds it there.
"""
