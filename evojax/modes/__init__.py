"""The modes of the command line, one file per mode that is not a loop."""
