#!/usr/bin/env bash
# Serves a policy with sglang-jax, for config.rollout.kind = 'sglang':
#
#   bash launch/sglang_jax.sh --model-path=DIR --port=30000 [its other flags]
#
# It has its own environment, under Python 3.12 or 3.13; the first run installs
# it. DIR is a Hugging Face directory with head_dim 128. The directory that
# config.rollout.weights_dir names must be mounted here, under the same path.
#
#   EVOJAX_ACCELERATOR=cpu|cuda12|tpu   instead of what is found
set -euo pipefail
CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
source launch/environment.sh

python="$(sglang_jax_environment accelerator)"
# Seeds of samples are heeded only so.
exec "$python" launch/sglang_jax.py --enable-deterministic-sampling "$@"
