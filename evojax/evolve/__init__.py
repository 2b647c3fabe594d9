"""The meta-loop: diagnose, change one thing, test it, decide, remember."""
