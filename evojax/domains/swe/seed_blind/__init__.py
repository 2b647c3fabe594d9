"""A harness that measures almost nothing: what is found is found from here.

Score, mean reward, length, log-prob and raw action codes; the reward and the
overlay are those of seed_harness. Its files are the library's.
"""
