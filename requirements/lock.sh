#!/usr/bin/env bash
# Pins what setup.py asks for and all that it needs, for every platform and
# Python: base.txt, what a training needs, and per extra what that adds. Pins
# that still fit are kept; `requirements/lock.sh --upgrade` takes the newest.
# Needs uv.
set -euo pipefail
CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
root="$PWD"

lock() {  # lock FILE ARGUMENT...
  uv pip compile --quiet --universal --python-version 3.11 --no-header \
    --no-annotate --fork-strategy fewest "$root/setup.py" --output-file "$@" \
    >/dev/null
}

lock requirements/base.txt --extra train "$@"
for extra in test tpu cuda12 cuda13 gcs; do
  file="requirements/$extra.txt"
  # torch has its own file, and drags in gigabytes of CUDA.
  lock "$file" --extra train --extra "$extra" --constraint requirements/base.txt \
    --excludes <(echo torch) "$@"
  added="$(grep -vxFf requirements/base.txt "$file")"
  echo "$added" >"$file"
done

# Environments of others, in versions that fit test.txt and each other. What
# OpenEnv's servers show in a browser needs gradio, which refuses our pandas.
cd requirements
lock verifiers.txt --extra train --extra verifiers --excludes <(echo torch) \
  --constraint base.txt --constraint test.txt "$@"
lock openenv.txt --extra train --excludes <(printf '%s\n' torch gradio) \
  --constraint base.txt --constraint test.txt --constraint verifiers.txt \
  "$@" - <<<'openenv==0.10.0'
lock ray.txt --extra train --extra ray --constraint base.txt \
  --constraint test.txt --constraint verifiers.txt --constraint openenv.txt "$@"
# What it needs refuses the dateutil of our pandas, and works with it.
lock s3.txt --extra train --excludes <(printf '%s\n' torch python-dateutil) \
  --constraint base.txt "$@" - <<<'s3fs==2026.9.0'
for file in verifiers.txt openenv.txt ray.txt s3.txt; do
  added="$(grep -vxFf base.txt "$file")"
  echo "$added" >"$file"
done
# Local servers of object stores, beside the clients in gcs.txt and s3.txt.
lock stores.txt --extra train --extra gcs \
  --excludes <(printf '%s\n' torch python-dateutil) --constraint base.txt \
  --constraint test.txt --constraint gcs.txt --constraint s3.txt "$@" - \
  <<<$'moto[server]==5.2.1\ngcp-storage-emulator==2026.7.19'
added="$(grep -vxF -f base.txt -f test.txt -f gcs.txt -f s3.txt stores.txt)"
echo "$added" >stores.txt
cd ..

# A program of its own, with versions of its own: see launch/sglang_jax.sh.
uv pip compile --quiet --universal --python-version 3.12 --no-header \
  --no-annotate --output-file requirements/sglang_jax.txt "$@" - \
  <<<'sglang-jax[cpu]==0.1.0rc0' >/dev/null

# The same on a CPU, where torch is the one of torch.txt: without all that needs
# a GPU. See launch/sglang_cpu.sh.
uv pip compile --quiet --universal --python-version 3.11 --no-header \
  --no-annotate --excludes <(printf '%s\n' torch torchaudio torchcodec \
    cuda-python deepseek-recipe flash-attn-4 flashinfer-python humming-kernels \
    kernels nvidia-cutlass-dsl nvidia-mathdx nvidia-ml-py nvshmem4py-cu13 \
    quack-kernels sgl-deep-ep sgl-deep-gemm sgl-flash-mla sglang-kernel \
    smg-grpc-servicer tilelang tml-renderers torch-memory-saver) \
  --output-file requirements/sglang_cpu.txt "$@" - \
  <<<$'sglang==0.5.23\ntorchvision==0.28.0' >/dev/null
