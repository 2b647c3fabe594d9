"""Runs that are broken or gamed on purpose; `__main__` says how to use it."""
