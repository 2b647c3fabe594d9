"""Diagnostics of every version, in any domain."""
