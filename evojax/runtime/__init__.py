"""What every process needs: workdir, checkpoints, metrics, devices."""
