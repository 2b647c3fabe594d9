"""The harness that a run on software engineering starts from.

What agents do is measured here; the rest of its files are the library's.
"""
