#!/usr/bin/env bash
# Trains a Qwen3 checkpoint on GSM8K for a fixed budget, scores it before and
# after, and adds a row to the table of the README:
#
#   bash launch/reference_run.sh DIR DATA [flags of evojax]
#
# DIR   a Qwen3 directory in Hugging Face's layout, or gs://BUCKET/x.
# DATA  a JSONL file with lines {"question": ..., "answer": "... #### 42"}, or a
#       directory with train.jsonl and, for the scores, test.jsonl.
#
# It uses all TPUs or GPUs of this machine; on a CPU, add
# --config=configs/gsm8k.py:smoke. On several machines, start the training with
# tpu_pod.sh or gpu_node.sh and the flags that --dry_run prints here, and record
# it with `python -m benchmarks.reference --record=WORKDIR`. The same command
# continues a run. --config.evolve.dollars_per_device_hour=PRICE adds the cost;
# --config.log.peak_flops=FLOPS gives the peak of a device that evojax does not
# know, and adds MFU; --workdir=DIR sets the directory of the run
# (runs/reference-NAME); --rows=FILE adds the row to another file of rows, and
# leaves the README unchanged.
set -euo pipefail
usage='bash launch/reference_run.sh DIR DATA [flags of evojax]'
if [[ $# -lt 2 || "$1" == -* || "$2" == -* ]]; then
  echo "error: wanted: $usage" >&2
  exit 2
fi
# Relative paths DIR and DATA are relative to the caller's directory.
model="${1%/}" data="$(realpath -m -- "$2")"
[[ "$model" == *://* ]] || model="$(realpath -m -- "$1")"
shift 2
CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
source launch/environment.sh

if [[ "$model" != *://* && ! -f "$model/config.json" ]]; then
  echo "error: DIR=$model holds no config.json; name a Qwen3 directory in" \
    "Hugging Face's layout, as \`hf download\` makes it" >&2
  exit 2
fi
files=("--config.domain.kwargs.jsonl.train=$data")
if [[ -d "$data" ]]; then
  files=("--config.domain.kwargs.jsonl.train=$data/train.jsonl")
  if [[ -f "$data/test.jsonl" ]]; then
    files+=("--config.domain.kwargs.jsonl.sealed=$data/test.jsonl")
  fi
fi
take_dry_run "$@"
set -- ${rest[@]+"${rest[@]}"}
rows='' flags=()
for flag in "$@"; do
  case "$flag" in
    --rows=*) rows="${flag#*=}" ;;
    *) flags+=("$flag") ;;
  esac
done
workdir="runs/reference-$(basename -- "$model")"
workdir="$(workdir_of "$workdir" ${flags[@]+"${flags[@]}"})"

python="$(environment '' accelerator)"
run "$python" -m evojax.main --default_config=configs/gsm8k.py \
  ${parent:+"$parent"} --mode=train \
  "--config.model.path=$model" "${files[@]}" \
  "--config.model.chat_template_kwargs={'enable_thinking': False}" \
  "--workdir=$workdir" ${flags[@]+"${flags[@]}"}
run "$python" -m benchmarks.reference "--record=$workdir" ${rows:+"--rows=$rows"}
