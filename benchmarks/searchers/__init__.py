"""Rival searches with equal tokens; `live` and `__main__` show the usage."""
