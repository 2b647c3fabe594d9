"""The append-only record of a run that evolves."""
