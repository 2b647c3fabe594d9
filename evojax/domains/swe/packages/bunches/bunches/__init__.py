"""Small containers."""
