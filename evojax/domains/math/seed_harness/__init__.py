"""The harness that a run on math starts from; its files are the library's."""
