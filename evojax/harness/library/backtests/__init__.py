"""Statistics that say before a trial what a change would do."""
