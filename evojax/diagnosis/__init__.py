"""A second opinion on any run, from its logs alone: no jax, no torch."""
