"""The modes of the command line, one file per --mode, and their helpers."""
