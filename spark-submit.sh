#!/usr/bin/env bash
# Run a job of coldlog: ./spark-submit.sh JOB [--env NAME] [--set key=value]... [arguments]
# The first start installs missing packages and jars. MASTER (default local[*]) names the cluster, SPARK_DRIVER_MEMORY the
# driver's memory, PYTHON the interpreter to install with. Without JOB, the script lists the jobs.
set -euo pipefail

script=${BASH_SOURCE[0]}
while [ -L "$script" ]; do
  target=$(readlink -- "$script")
  case $target in /*) script=$target ;; *) script=$(dirname -- "$script")/$target ;; esac
done
repository=$(cd -- "$(dirname -- "$script")" && pwd -P)

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" "$repository/.venv/bin/python" python3.11 python3 python3.12 python3.13; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      printf '%s' "$candidate"
      return
    fi
  done
  echo "coldlog: Python 3.11 or newer is needed, but was not found; set PYTHON or PATH" >&2
  return 1
}

python=$(find_python)
"$python" "$repository/environment.py" runtime
# Set before Python starts: Spark needs the same hash of a text in every process; numba reads its directory on import.
export PYTHONHASHSEED="${PYTHONHASHSEED:-0}" NUMBA_CACHE_DIR="${NUMBA_CACHE_DIR:-$repository/.venv/numba-cache}"
# -P: do not import modules from the user's directory instead of the installed ones.
exec "$repository/.venv/bin/python" -P -m coldlog.launch.submit "$@"
