"""Numbers about numbers."""
