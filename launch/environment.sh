# Sourced by the launch scripts and test.sh, from the root of the checkout.

# Prints a Python >= 3.11: $PYTHON, or the first of the usual names that is one.
find_python() {
  local name
  for name in "${PYTHON:-}" python3 python3.11 python3.12 python3.13 \
    python3.14 python "$(uv python find '>=3.11' 2>/dev/null || true)"; do
    if [[ -n "$name" ]] && "$name" -c \
      'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$name"
      return
    fi
  done
  echo 'error: no Python >= 3.11 found. Install one (on Debian and Ubuntu:' \
    'apt install python3.11 python3.11-venv; anywhere: uv python install' \
    '3.12), or name it: PYTHON=/path/to/python3' >&2
  return 1
}

# environment NAME [SET ...]: prints the Python of an environment with pinned
# packages, which is made the first time; see launch/environment.py.
environment() {
  local python
  python="$(find_python)" && "$python" launch/environment.py "$@"
}
