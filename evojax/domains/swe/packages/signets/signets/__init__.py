"""Codes for letters and numbers."""
