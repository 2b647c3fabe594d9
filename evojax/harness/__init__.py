"""The training harness: a directory of data and pure functions.

`spec` reads and writes it, `surface` says which config values it may hold,
`delta` names the one factor in which two harnesses differ (found by `syntax`),
`run` calls its functions in the box, a sandbox (`calls`, `worker`), and `admit`
checks every change. Sources of seed harnesses and of `library` come with the
package; any other goes through the `gate`, which parses it (`language`) and
tests it on evidence (`cases`, `derive`). Nothing here imports jax.
"""
