"""The harness that a run on math starts from, and domain.py's reward."""
