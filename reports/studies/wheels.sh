#!/usr/bin/env bash
# Collects wheels for CPython 3.12 on x86-64, of the versions that this environment has where none is stated:
#
#     reports/studies/wheels.sh OUT NAME[==VERSION] …
#
# A package without wheels is built, if it is pure Python.
set -euo pipefail
out=$1
shift
python=${PYTHON:-python}
platforms=(manylinux_2_28_x86_64 manylinux_2_27_x86_64 manylinux_2_17_x86_64 manylinux2014_x86_64 manylinux1_x86_64)
packages=$("$python" - "$@" <<'PYTHON'
import sys
from importlib.metadata import version

print(*(name if "==" in name else f"{name}=={version(name)}" for name in sys.argv[1:]))
PYTHON
)
for package in $packages; do
  "$python" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp "${platforms[@]/#/--platform=}" \
    -d "$out" "$package" 2> /dev/null || "$python" -m pip wheel -q --no-deps -w "$out" "$package"
done
if find "$out" -type f ! -name '*-none-any.whl' ! -name '*-cp312-*' ! -name '*-abi3-*' | grep .; then
  echo "these are not for CPython 3.12"
  exit 1
fi
