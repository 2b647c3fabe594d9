"""Diagnostics of agents; each file runs in the box."""
