"""The record of every rollout: its schema, its store and its views."""
