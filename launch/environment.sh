# Sourced by the launch scripts and test.sh, from the root of the checkout.

# suits PYTHON LOW HIGH: true if it runs and is >= LOW and < HIGH.
suits() {
  "$1" -c 'import sys
low, high = [tuple(map(int, text.split("."))) for text in sys.argv[1:]]
sys.exit(not low <= sys.version_info < high)' "$2" "$3" 2>/dev/null
}

# find_python [LOW HIGH [PATH ...]]: prints a Python >= LOW (3.11) and < HIGH:
# $PYTHON, or else the first of the usual names and the paths that is one.
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
# packages, which is made the first time; see launch/environment.py.
environment() {
  local python
  python="$(find_python)" && "$python" launch/environment.py "$@"
}

# require_gpu REMEDY: ends the script where there is no NVIDIA GPU.
require_gpu() {
  nvidia-smi -L >/dev/null 2>&1 && return
  echo 'error: nvidia-smi finds no GPU on this node; install its driver, or' \
    "$1" >&2
  exit 1
}

# sglang_jax_environment [SET ...]: the same for sglang-jax, which has versions
# of its own and needs a Python of its own.
sglang_jax_environment() {
  local python
  python="$(find_python 3.12 3.14 \
    "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/*/bin/python)" &&
    "$python" launch/environment.py sglang_jax sglang_jax "$@"
}

# default_config FLAGS: the config of a run whose flags name none. Flags of its
# fields are refused where it stands there twice.
default_config() {
  local flag
  for flag in "$@"; do
    case "$flag" in
      --config | --config=* | -config | -config=*) return ;;
    esac
  done
  echo --config=configs/math.py
}
