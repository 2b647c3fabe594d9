"""Flax decoders behind pure functions over plain parameter dicts."""
