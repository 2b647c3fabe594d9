"""Parts that every process uses: workdir, checkpoints, metrics, devices."""
