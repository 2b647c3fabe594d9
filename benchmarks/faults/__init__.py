"""Runs with planted faults or leaks; `__main__` describes the usage."""
