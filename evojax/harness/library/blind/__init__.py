"""The few diagnostics to start from where discovery is to be shown."""
