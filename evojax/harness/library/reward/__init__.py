"""Single reward parts."""
