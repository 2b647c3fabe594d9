#!/usr/bin/env bash
# Runs evojax on every NVIDIA GPU of this node, or as one of several nodes:
#
#   bash launch/gpu_node.sh [flags of evojax]
#   srun --ntasks-per-node=1 --kill-on-bad-exit=1 \
#     bash launch/gpu_node.sh [flags of evojax]
#   COORDINATOR=host0:1234 NODES=2 NODE=0 bash launch/gpu_node.sh [flags]
#
# The exit code is that of evojax: 75 on all nodes says that SIGTERM came or that
# a node is gone, and that the same command, started again everywhere, continues
# the run. The script does not start it again itself; what Slurm can do is in the
# README, "Machines that go away".
#
# The last form runs once on every node, NODE counting from 0. All nodes see the
# same checkout and --workdir, or copies of the one and a mount of the other.
# Where the process of one node is gone, those of all others end, and each node
# starts its own again from the last checkpoint, up to EVOJAX_RESTARTS times
# (10). --dry_run prints the command and starts nothing.
set -euo pipefail
CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
source launch/environment.sh

take_dry_run "$@"
set -- ${rest[@]+"${rest[@]}"}
# A dry run may be made where jobs are submitted from.
[[ -n "$dry_run" ]] || require_gpu 'use launch/local.sh'
# Without a CPU fallback a GPU that cannot be used is an error.
JAX_PLATFORMS=cuda,cpu
# Most of the memory at once: growing in steps fragments it.
XLA_PYTHON_CLIENT_MEM_FRACTION="${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.92}"

several=()
if [[ -n "${COORDINATOR:-}" ]]; then
  several=(--distributed "--coordinator=$COORDINATOR"
    "--processes=${NODES:?how many nodes there are}"
    "--process=${NODE:?which of them this is, from 0}")
elif [[ "${SLURM_NTASKS:-1}" -gt 1 ]]; then
  # One process drives all GPUs of its node; jax's own Slurm detection would
  # take one GPU per task.
  # Not through head: it would end scontrol early, and this script with it.
  read -r first < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  several=(--distributed
    "--coordinator=$first:$((20000 + SLURM_JOB_ID % 20000))"
    "--processes=$SLURM_NTASKS" "--process=$SLURM_PROCID")
fi

python="$(environment '' accelerator)"
config="$(default_config configs/math.py "$@")"
run env JAX_PLATFORMS="$JAX_PLATFORMS" \
  XLA_PYTHON_CLIENT_MEM_FRACTION="$XLA_PYTHON_CLIENT_MEM_FRACTION" \
  "$python" -m evojax.main ${config:+"$config"} "--parent=$$" \
  ${several[@]+"${several[@]}"} "$@"
