"""Filters: which groups enter the update."""
