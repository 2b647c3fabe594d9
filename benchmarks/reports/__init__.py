"""Faults of RL runs that users of other trainers reported, and their logs."""
