#!/usr/bin/env bash
# Serves a policy with sglang-jax, for config.rollout.kind = 'sglang':
#
#   bash launch/sglang_jax.sh --model-path=DIR --port=30000 [its other flags]
#
# The server has its own environment with Python 3.12 or 3.13; the first run
# installs it. DIR is a Hugging Face directory with head_dim 128. The directory
# config.rollout.weights_dir must be mounted here, under the same path.
#
#   EVOJAX_ACCELERATOR=cpu|cuda12|cuda13|tpu   instead of the detected one
set -euo pipefail
CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
source launch/environment.sh

python="$(sglang_jax_environment accelerator)"
# sglang-jax uses the seeds of requests only with this flag.
exec "$python" launch/sglang_jax.py --enable-deterministic-sampling "$@"
