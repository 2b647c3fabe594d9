"""The harness that a run on coding starts from.

What programs do is measured here; the rest of its files are the library's.
"""
