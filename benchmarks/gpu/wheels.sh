#!/usr/bin/env bash
# Gathers the packages that a GPU machine without a network lacks for `python -m benchmarks.gpu`, at most 60 MiB:
#   benchmarks/gpu/wheels.sh [PYTHON] [FOLDER]
# PYTHON (default python3) must have the version and the system of that machine. FOLDER (default wheels) gets the
# subfolders evorl and rejax. On that machine:
#   pip install --no-index --no-deps --target site wheels/evorl/*.whl
#   pip install --no-index --no-deps --target rejax-site wheels/rejax/*.whl
#   PYTHONPATH=site:. python -m benchmarks.gpu --rejax-packages rejax-site
set -euo pipefail

python=${1:-python3}
folder=${2:-wheels}
here=$(dirname "$0")

for part in evorl rejax; do
  list=$here/wheels.txt
  [ "$part" = rejax ] && list=$here/wheels_rejax.txt
  "$python" -m pip wheel --quiet --no-deps --wheel-dir "$folder/$part" --requirement "$list"
done

bytes=$(find "$folder" -name '*.whl' -printf '%s\n' | awk '{ total += $1 } END { print total }')
count=$(find "$folder" -name '*.whl' | wc -l)
echo "$count wheels, $((bytes / 1048576)) MiB in $folder"
if [ "$bytes" -gt $((60 * 1048576)) ]; then
  echo "That is more than 60 MiB: remove packages from $here/wheels*.txt." >&2
  exit 1
fi
