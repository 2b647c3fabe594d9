#!/usr/bin/env bash
# Serves a policy with SGLang on NVIDIA GPUs, for
# config.rollout.kind = 'sglang':
#
#   CUDA_VISIBLE_DEVICES=0 bash launch/sglang.sh --model-path=DIR --port=30000 \
#     [other flags of sglang.launch_server, e.g. --tp-size=2 --api-key=...]
#
# For a policy that fits one GPU, start one server per GPU and list all of them
# in config.rollout.urls. The server has its own environment, which the first
# run installs. The directory config.rollout.weights_dir must be mounted here,
# under the same path, unless config.rollout.weights_transport is 'tensors'.
set -euo pipefail
CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
source launch/environment.sh

require_gpu 'serve with launch/sglang_jax.sh'

python="$(environment sglang sglang)"
# SGLang uses the seeds of requests only with this flag.
exec "$python" -m sglang.launch_server --enable-deterministic-inference "$@"
