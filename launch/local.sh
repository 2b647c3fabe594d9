#!/usr/bin/env bash
# Runs evojax on this machine: on its TPU, its GPUs, or else its CPU:
#
#   bash launch/local.sh [--config=configs/math.py:VARIANT] [flags of evojax]
#
# The first run installs the pinned packages into .venv; later runs start at
# once. Relative paths in flags are relative to the checkout.
#
# The exit code is that of evojax. 75 means that the same command, started
# again, continues the run; this script does not start it again.
#
#   PYTHON=/path/to/python3        the Python to use, >= 3.11
#   EVOJAX_ACCELERATOR=cpu|cuda12|cuda13|tpu   instead of the detected one; cpu
#                                  also leaves a GPU or TPU unused
#   EVOJAX_ENVIRONMENTS=DIR        keep environments in DIR, not in the checkout
set -euo pipefail
# Messages to the user show this command.
EVOJAX_LAUNCHER="bash $(printf %q "$0")"
export EVOJAX_LAUNCHER
CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
source launch/environment.sh

python="$(environment '' accelerator)"
exec "$python" -m evojax.main --default_config=configs/math.py "$@"
