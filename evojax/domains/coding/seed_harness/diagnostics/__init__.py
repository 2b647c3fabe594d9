"""Diagnostics of programs; each file runs in the box."""
