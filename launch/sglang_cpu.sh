#!/usr/bin/env bash
# Serves a policy with mainline SGLang on a CPU, for experiments only; for real
# runs use launch/sglang.sh on GPUs:
#
#   bash launch/sglang_cpu.sh --model-path=DIR --port=30000 [its other flags]
#
# The server has its own environment with Python 3.11 to 3.13; the first run
# installs it (3 GB). See launch/sglang_cpu.py for the differences on a CPU.
#
# The tests of servers can be run with it:
#
#   EVOJAX_SGLANG_PYTHON="$(bash launch/sglang_cpu.sh --python)" \
#     bash test.sh -m real_sglang tests/contract
set -euo pipefail
CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
source launch/environment.sh

python="$(find_python 3.11 3.14)"
python="$("$python" launch/environment.py sglang_cpu sglang_cpu torch)"
if [[ "$*" == --python ]]; then
  echo "$python"
  exit
fi
exec "$python" launch/sglang_cpu.py "$@"
