#!/usr/bin/env bash
# Runs evojax on a Cloud TPU slice. Every worker of the slice runs this script
# in its copy of the checkout:
#
#   gcloud compute tpus tpu-vm ssh NAME --zone=ZONE --worker=all \
#     --command='bash evojax/launch/tpu_pod.sh --config=configs/math.py:qwen3_0p6b
#       --config.model.path=/mnt/models/Qwen3-0.6B --workdir=/mnt/runs/math'
#
# --workdir and --config.model.path must be on a mount that all workers share
# (Filestore or other NFS; a mounted bucket is enough for the model, but not for
# the workdir, since it cannot rename directories). With --mode=evolve and train
# both may be gs://BUCKET/..., without a mount.
# Only worker 0 writes metrics and evidence. If the process of one worker dies,
# all others end, and each worker restarts its own from the last checkpoint, up
# to EVOJAX_RESTARTS times (10).
# --dry_run prints the command and starts nothing.
#
# The exit code is that of evojax. 75 on all workers means that SIGTERM arrived
# or that a worker was still gone after the last restart: the same command,
# started again everywhere, continues the run. After SIGTERM the script does not
# restart it.
set -euo pipefail
CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
source launch/environment.sh

take_dry_run "$@"
set -- ${rest[@]+"${rest[@]}"}
export EVOJAX_ACCELERATOR=tpu

python="$(environment '' accelerator)"
# Workers find each other through the metadata server of the slice.
# With an explicit tpu, jax raises an error if it cannot use the TPU, instead of
# computing on the CPU.
run env JAX_PLATFORMS=tpu,cpu \
  "$python" -m evojax.main --default_config=configs/math.py \
  ${parent:+"$parent"} --distributed "$@"
