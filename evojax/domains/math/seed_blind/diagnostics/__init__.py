"""The few diagnostics to start from."""
