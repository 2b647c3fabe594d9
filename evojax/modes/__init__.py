"""What --mode runs, one file per mode that is not a loop."""
