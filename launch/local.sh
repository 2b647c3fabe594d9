#!/usr/bin/env bash
# Runs evojax on this machine, on the TPU or the GPUs it has or on its CPU:
#
#   bash launch/local.sh [--config=configs/math.py:VARIANT] [flags of evojax]
#
# The first run installs the pinned packages into .venv; later runs start at
# once. Relative paths in flags are relative to the checkout.
#
# The exit code is that of evojax: 75 says that the same command, started again,
# continues the run; the script does not start it again itself.
#
#   PYTHON=/path/to/python3        the Python to use, >= 3.11
#   EVOJAX_ACCELERATOR=cpu|cuda12|cuda13|tpu   instead of what is found
#   EVOJAX_ENVIRONMENTS=DIR        keep environments there, not in the checkout
set -euo pipefail
# What a message tells the user to type.
EVOJAX_LAUNCHER="bash $(printf %q "$0")"
export EVOJAX_LAUNCHER
CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
source launch/environment.sh

python="$(environment '' accelerator)"
config="$(default_config configs/math.py "$@")"
exec "$python" -m evojax.main ${config:+"$config"} "$@"
