"""The GRPO training loop, for all domains."""
