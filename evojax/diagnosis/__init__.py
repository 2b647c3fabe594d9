"""Diagnosis of any training run from its logs alone, without jax or torch."""
