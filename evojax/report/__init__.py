"""One self-contained HTML page from a workdir: `page.build`."""
