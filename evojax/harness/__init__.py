"""The training harness: a directory of data and pure functions.

`spec` reads and writes it, `surface` says which config values it may hold,
`delta` names the one factor in which two differ, `run` calls its functions in
a worker process, `admit` is the gate that every change passes. Nothing here
imports jax.
"""
