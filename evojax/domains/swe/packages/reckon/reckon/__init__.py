"""A pocket calculator for text."""
