#!/usr/bin/env bash
# Runs evojax on every NVIDIA GPU of this node, or as one of several nodes:
#
#   bash launch/gpu_node.sh [flags of evojax]
#   srun --ntasks-per-node=1 --kill-on-bad-exit=1 \
#     bash launch/gpu_node.sh [flags of evojax]
#   COORDINATOR=host0:1234 NODES=2 NODE=0 bash launch/gpu_node.sh [flags]
#
# Run the last form once on every node; NODE counts from 0. All nodes need the
# checkout (one or copies of it), and --workdir must be on a mount that they
# share. If the process of one node dies, those of all others end, and each node
# restarts its own from the last checkpoint, up to EVOJAX_RESTARTS times (10).
# --dry_run prints the command and starts nothing.
#
# The exit code is that of evojax. 75 on all nodes means that SIGTERM arrived or
# that a node was still gone after the last restart: the same command, started
# again everywhere, continues the run. After SIGTERM the script does not restart
# it; for restarts by Slurm see docs/restarts.md.
set -euo pipefail
CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
source launch/environment.sh

take_dry_run "$@"
set -- ${rest[@]+"${rest[@]}"}
# A dry run must also work on a login node without a GPU.
[[ -n "$dry_run" ]] || require_gpu 'use launch/local.sh'
# With an explicit cuda, jax raises an error if it cannot use the GPU, instead
# of computing on the CPU.
JAX_PLATFORMS=cuda,cpu

several=()
if [[ -n "${COORDINATOR:-}" ]]; then
  several=(--distributed "--coordinator=$COORDINATOR"
    "--processes=${NODES:?how many nodes there are}"
    "--process=${NODE:?which of them this is, from 0}")
elif [[ "${SLURM_NTASKS:-1}" -gt 1 ]]; then
  # One process uses all GPUs of its node; jax's own Slurm detection would use
  # one GPU per task.
  # No `head`: it would end scontrol by SIGPIPE, and pipefail this script.
  read -r first < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  several=(--distributed
    "--coordinator=$first:$((20000 + SLURM_JOB_ID % 20000))"
    "--processes=$SLURM_NTASKS" "--process=$SLURM_PROCID")
fi

python="$(environment '' accelerator)"
run env JAX_PLATFORMS="$JAX_PLATFORMS" \
  XLA_CLIENT_MEM_FRACTION="$XLA_CLIENT_MEM_FRACTION" \
  "$python" -m evojax.main --default_config=configs/math.py \
  ${parent:+"$parent"} ${several[@]+"${several[@]}"} "$@"
