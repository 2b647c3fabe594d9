# Functions for the launch scripts and test.sh, which source this file from the
# root of the checkout.

# jax allocates this share of a GPU's memory at the start, because allocating it
# in steps fragments it; --mode=plan assumes this share. jax raises an error if
# the variable's older name is set, too.
: "${XLA_CLIENT_MEM_FRACTION:=${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.92}}"
export XLA_CLIENT_MEM_FRACTION
unset XLA_PYTHON_CLIENT_MEM_FRACTION

# evojax ends with an error if it finds an accelerator that jax cannot use,
# unless the CPU is requested.
[[ "${EVOJAX_ACCELERATOR:-}" != cpu ]] ||
  export JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}"

# suits PYTHON LOW HIGH: true if PYTHON runs and its version is >= LOW, < HIGH.
suits() {
  "$1" -c 'import sys
low, high = [tuple(map(int, text.split("."))) for text in sys.argv[1:]]
sys.exit(not low <= sys.version_info < high)' "$2" "$3" 2>/dev/null
}

# find_python [LOW HIGH [PATH ...]]: prints a Python >= LOW (3.11) and < HIGH.
# It is $PYTHON if that is set, else the first suitable one of the usual names,
# uv's Python and the PATHs.
find_python() {
  local low="${1:-3.11}" high="${2:-4}" name
  local wanted="Python >= $low"
  [[ "$high" == 4 ]] || wanted+=" and < $high"
  if [[ -n "${PYTHON:-}" ]]; then
    if suits "$PYTHON" "$low" "$high"; then
      echo "$PYTHON"
      return
    fi
    echo "error: PYTHON=$PYTHON is no $wanted:" \
      "$("$PYTHON" --version 2>&1 | tail -n 1);" \
      'name another one, or unset PYTHON to have one found' >&2
    return 1
  fi
  for name in python3 python3.11 python3.12 python3.13 python3.14 python \
    "$(uv python find ">=$low,<$high" 2>/dev/null || true)" "${@:3}"; do
    if [[ -n "$name" ]] && suits "$name" "$low" "$high"; then
      echo "$name"
      return
    fi
  done
  echo "error: no $wanted found. Install one (on Debian and Ubuntu: apt" \
    "install python$low python$low-venv; anywhere: uv python install $low), or" \
    'name it: PYTHON=/path/to/python3' >&2
  return 1
}

# environment NAME [SET ...]: prints the Python of an environment with pinned
# packages; the first call creates it, see launch/environment.py. A dry run
# creates nothing.
environment() {
  local python
  python="$(find_python)" &&
    "$python" launch/environment.py ${dry_run:+--dry_run} "$@"
}

# require_gpu REMEDY: ends the script if there is no NVIDIA GPU.
require_gpu() {
  nvidia-smi -L >/dev/null 2>&1 && return
  echo 'error: nvidia-smi finds no GPU on this node; install its driver, or' \
    "$1" >&2
  exit 1
}

# sglang_jax_environment [SET ...]: like `environment` for sglang-jax, which
# needs other versions of packages and of Python.
sglang_jax_environment() {
  local python
  python="$(find_python 3.12 3.14 \
    "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/*/bin/python)" &&
    "$python" launch/environment.py sglang_jax sglang_jax "$@"
}

dry_run='' # 1: `run` only prints commands.
rest=()
# With this flag, a command ends when this script ends. A printed command does
# not have it, since it is run without the script.
parent="--parent=$$"
# take_dry_run FLAGS: sets dry_run, parent, and rest, the flags without
# --dry_run.
take_dry_run() {
  local flag
  for flag in "$@"; do
    if [[ "$flag" == --dry_run ]]; then
      dry_run=1 parent=''
    else
      rest+=("$flag")
    fi
  done
}

# workdir_of DEFAULT FLAG ...: prints the --workdir that flags of evojax name.
workdir_of() {
  local workdir="$1" before='' flag
  for flag in "${@:2}"; do
    case "$flag" in
      --workdir=* | -workdir=*) workdir="${flag#*=}" ;;
    esac
    [[ "$before" != --workdir && "$before" != -workdir ]] || workdir="$flag"
    before="$flag"
  done
  echo "$workdir"
}

# quoted WORD ...: prints the words in one line, quoted for a shell.
quoted() {
  local line
  line="$(printf '%q ' "$@")"
  echo "${line% }"
}

# run COMMAND: runs COMMAND, and restarts it up to EVOJAX_RESTARTS times (10) if
# its exit status is 75 (another process of the run is gone) or that of a signal
# such as 139. After SIGTERM (passed on to COMMAND), SIGINT, or a status of 130
# or 143, it is not restarted. A dry run prints the command.
run() {
  if [[ -n "$dry_run" ]]; then
    quoted "$@"
    return
  fi
  local left="${EVOJAX_RESTARTS:-10}" status ended
  run_child='' run_asked='' run_signalled=''
  trap 'run_asked=1 run_signalled=1
    [[ -z "$run_child" ]] || kill "$run_child" || :' TERM
  # The terminal sends SIGINT to the command, too.
  trap 'run_asked=1 run_signalled=1' INT
  while [[ -z "$run_asked" ]]; do
    "$@" <&0 &
    run_child=$!
    # SIGTERM may have arrived before run_child was set.
    [[ -z "$run_asked" ]] || kill "$run_child" || :
    while :; do
      run_signalled='' status=0
      wait "$run_child" || status=$?
      [[ -n "$run_signalled" ]] || break
      # A signal interrupted `wait`, so that $status is not the command's.
      kill -0 "$run_child" 2>/dev/null && continue
      ended=0
      wait "$run_child" || ended=$?
      # bash loses track of commands that end just then: -1 or 127.
      [[ $ended -eq -1 || $ended -eq 127 ]] || status=$ended
      break
    done
    run_child=''
    [[ -z "$run_asked" ]] || break
    # 130 and 143: the user has stopped the command itself.
    if [[ $status -ne 75 && ($status -le 128 || $status -eq 130 ||
      $status -eq 143) ]]; then
      break
    fi
    if [[ $left -le 0 ]]; then
      echo "error: exit status $status after all of" \
        "EVOJAX_RESTARTS=${EVOJAX_RESTARTS:-10} restarts; the same command" \
        'continues the run' >&2
      break
    fi
    left=$((left - 1))
    echo "[evojax] exit status $status: starting again, $left times left" >&2
    # Sleep in short pieces, because a trap runs only after `sleep` has ended.
    local pieces=$((10 * ${EVOJAX_RESTART_SECONDS:-5}))
    while [[ $pieces -gt 0 && -z "$run_asked" ]]; do
      sleep 0.1
      pieces=$((pieces - 1))
    done
  done
  trap - TERM INT
  return "${status:-75}"
}
