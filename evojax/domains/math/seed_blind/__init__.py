"""A harness with few diagnostics, to show what a run discovers by itself.

Score, mean reward, length, log-prob and raw action codes; the reward and the
overlay are those of seed_harness. Its files are the library's.
"""
