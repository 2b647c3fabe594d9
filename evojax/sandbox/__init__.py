"""The box that untrusted code runs in: programs, repositories, pure functions.

From the bottom up: `linux` (system calls), `landlock` and `seccomp` (what they
may touch and call), `jail` (the tree they see), `tree` (files written and read
in there), `zygote` (the process that forks them), `wire` (how it is talked to),
`limits` (what a run may use, what is known of it), `box` (the trusted parent),
`repository` (an agent's tree), `probe` (what this machine can hold). Standard
library only; a `pure` entry may import NumPy.
"""
