#!/usr/bin/env bash
# Installs what the tests need and runs all of them, as CI does:
#
#   bash test.sh [arguments of pytest, e.g. tests/rl -k advantages]
#
# The first run makes .venv-test (with PyTorch and TRL for parity, the libraries
# verifiers and OpenEnv, whose environments it trains on, and Ray), .venv-tpu
# (with libtpu, to compile for a TPU that is not there) and .venv-sglang_jax (a
# server to talk to, under Python 3.12). EVOJAX_SKIP_TPU=1 and
# EVOJAX_SKIP_SGLANG_JAX=1 leave the latter two out; their tests are skipped.
# EVOJAX_STORES=1 takes .venv-stores instead of the first: it has clients and
# local servers of gs:// and s3://, for tests/runtime/http_stores_test.py.
# EVOJAX_TEST_WORKERS says how many processes run tests (2); 0: this one alone.
set -euo pipefail
CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
source launch/environment.sh

if [[ "${EVOJAX_STORES:-0}" == 1 ]]; then
  python="$(environment stores test gcs s3 stores)"
else
  python="$(environment test test torch verifiers openenv ray)"
fi
if [[ "${EVOJAX_SKIP_TPU:-0}" != 1 ]]; then
  EVOJAX_TPU_PYTHON="$(environment tpu tpu)" ||
    echo 'warning: no libtpu here; the TPU tests are skipped' >&2
  export EVOJAX_TPU_PYTHON
fi
if [[ "${EVOJAX_SKIP_SGLANG_JAX:-0}" != 1 ]]; then
  # PYTHON is for the tests; the server may need another one.
  EVOJAX_SGLANG_JAX_PYTHON="$(
    suits "${PYTHON:-python3}" 3.12 3.14 || unset PYTHON
    sglang_jax_environment
  )" ||
    echo 'warning: no sglang-jax here; its tests are skipped' >&2
  export EVOJAX_SGLANG_JAX_PYTHON
fi
# The suite is about this machine's CPU, and reaches no network.
export JAX_PLATFORMS=cpu HF_HUB_OFFLINE=1 PYTHONPATH=

"$python" -m ruff check --output-format=concise .
# By file, in the order of tests/conftest.py: a file's tests share what is slow
# to set up.
exec "$python" -m pytest --durations=15 \
  --numprocesses="${EVOJAX_TEST_WORKERS:-2}" --dist=loadfile \
  --no-loadscope-reorder "$@"
