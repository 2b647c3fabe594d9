"""The jobs that --mode names, one file per mode that is not a loop."""
