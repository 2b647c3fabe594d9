"""Rivals that spend the same tokens; `live` and `__main__` say how to run."""
