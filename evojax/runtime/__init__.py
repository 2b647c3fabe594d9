"""Parts that every process needs: workdir, checkpoints, metrics, devices."""
