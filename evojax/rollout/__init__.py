"""Sampling: the in-process engine."""
