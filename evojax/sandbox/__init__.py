"""The box that untrusted code runs in: programs, repositories, pure functions.

On the trusted side: `box` (runs tasks and returns results), `repository` (an
agent's tree), `probe` (the tier that this machine supports), `limits` (limits
and results of runs), `image` (the packages that a run finds). For each slot, a
box starts a `supervisor`, which forks a `zygote`, which forks a `child` per run
and keeps `watch` over it, its `processes` and its `disk`; they communicate
through `wire`. The child runs `programs` or handles a `tree` of files behind
`jail` (the tree and the user it sees), `landlock` and `seccomp` (what it may
access and call), all of which use `linux` (system calls).

Standard library only, apart from the image and the entry of a 'pure' box.
"""
