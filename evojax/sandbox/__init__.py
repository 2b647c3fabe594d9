"""The box that untrusted code runs in: programs, repositories, pure functions.

On the trusted side: `box` (runs tasks and returns results), `repository` (an
agent's tree), `probe` (which tier this machine can hold), `limits` (what a run
may use, what is known of it), `image` (the packages that it finds). A box
starts, per slot, a `supervisor`, which forks a `zygote`, which forks a `child`
per run and keeps `watch` over it, its `processes` and its `disk`; they talk
through `wire`. The child runs `programs` or handles a `tree` of files behind
`jail` (the tree and the user it sees), `landlock` and `seccomp` (what it may
touch and call), all made of `linux` (system calls).

Standard library only, apart from the image and the entry of a 'pure' box.
"""
