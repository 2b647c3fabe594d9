"""Sampling: the in-process engine, and the client of servers."""
