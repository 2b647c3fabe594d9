"""Evaluation: scores, their uncertainty, and the sources of a gain."""
