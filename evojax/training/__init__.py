"""The GRPO loop, top to bottom, for every domain."""
