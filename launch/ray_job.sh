#!/usr/bin/env bash
# Runs evojax on a Ray cluster, whose machines run the arms:
#
#   RAY_ADDRESS=http://HEAD:8265 bash launch/ray_job.sh \
#     --workers=6 --arm_resources=TPU=4 --workdir=/mnt/runs/math [flags of evojax]
#
# `ray job submit` starts the run on the head node and shows its output. All
# machines need this checkout at the same path, and --workdir, too, unless it is
# gs://BUCKET/...; the head node and this machine need the package ray[default].
# Ctrl-C or SIGTERM here stops the job with all its arms; they save a
# checkpoint first. If the run ends with status 75, it is restarted, up to
# EVOJAX_RESTARTS times (10). --dry_run prints the commands and starts nothing.
set -euo pipefail
CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
source launch/environment.sh

take_dry_run "$@"
set -- ${rest[@]+"${rest[@]}"}
if [[ "${1:-}" == --driver ]]; then # This part runs on the head node.
  shift
  python="$(environment ray accelerator ray)"
  run "$python" -m evojax.main --default_config=configs/math.py \
    ${parent:+"$parent"} --executor=ray "$@"
  exit
fi

# Otherwise Ray kills a job 3 s after it was asked to stop: the run first waits
# for its arms, which may take a minute to save.
stops=--runtime-env-json='{"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "90"}}'
if [[ -n "$dry_run" ]]; then
  quoted ray job submit "$stops" -- bash "$PWD/launch/ray_job.sh" --driver "$@"
  echo '# which runs'
  exec bash launch/ray_job.sh --driver --dry_run "$@"
fi
command -v ray >/dev/null || {
  echo "error: there is no \`ray\` here; pip install 'ray[default]'" >&2
  exit 2
}
id="evojax-$(date +%Y%m%d-%H%M%S)-$$"
stop() {
  trap - TERM INT
  echo "[evojax] stopping the job $id" >&2
  ray job stop "$id" || :
  kill "$client" 2>/dev/null || :
  exit "$1"
}
ray job submit --submission-id "$id" "$stops" -- \
  bash "$PWD/launch/ray_job.sh" --driver "$@" <&0 &
client=$!
trap 'stop 75' TERM # As in evojax itself: the same command continues the run.
trap 'stop 130' INT
wait "$client"
