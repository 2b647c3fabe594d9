"""Evaluation: scores, their uncertainty, and where a gain comes from."""
