"""The reward that domains start from."""
