"""The meta-loop: diagnose, change one thing, try it, decide, remember."""
