#!/usr/bin/env bash
# Packs a piece of the study for a host without packages or network, in parts of at most 50 MB:
#
#     reports/studies/decision/pack.sh smollm2 TEACHER.gguf DATA TRITON.tar.xz OUT
#
# OUT/parts/0 holds wheels, requests and host.sh, OUT/parts/N the N-th slice of teacher, text and Triton. The host has
# CPython 3.12 on x86-64 with torch and transformers. Requests are built for the teacher as a folder, which the host writes
# again from the GGUF file with the config and tokenizer that are carried (protocol.yaml, second amendment). CACHE can
# name the cache of tuned kernels that an earlier host brought home (cache.tar.xz).
set -euo pipefail
name=$1 gguf=$2 data=$3 triton=$4 out=$5
python=${PYTHON:-python}
here=$(dirname "$0")
mkdir -p "$out/carried" "$out/parts/0"
teacher=$out/teacher-$name
"$python" "$here/teacher_folder.py" "$gguf" "$teacher"
find "$teacher" -type f ! -name '*.safetensors' -exec cp {} "$out/carried" \;
"$python" -m evalsuite run reports/studies/suites/decision.yaml --teacher "$teacher" --data "$data" --build-only --out "$out/$name"
tar -cJf "$out/parts/0/requests.tar.xz" -C "$out" "$name"
cp "$here/host.sh" "$here/teacher_folder.py" "$out/parts/0"
[ -z "${CACHE:-}" ] || cp "$CACHE" "$out/parts/0/cache.tar.xz"

versions=$("$python" - <<'PYTHON'
from importlib.metadata import version
names = "pydantic pydantic-core annotated-types typing-inspection typing-extensions gguf einops zstandard datasets xxhash dill multiprocess"
print(*(f"{name}=={version(name)}" for name in names.split()), "fla-core==0.6.0 flash-linear-attention==0.6.0")
PYTHON
)
platforms=(manylinux_2_28_x86_64 manylinux_2_27_x86_64 manylinux_2_17_x86_64 manylinux2014_x86_64 manylinux1_x86_64)
# shellcheck disable=SC2086
"$python" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
  "${platforms[@]/#/--platform=}" -d "$out/parts/0/wheels" $versions

blob=$(mktemp -d)
mkdir "$blob/data"
ln -s "$(realpath "$data")/corpora" "$(realpath "$data")/instruct" "$blob/data"
ln -s "$(realpath "$out/carried")" "$blob/carried"
ln -s "$(realpath "$gguf")" "$blob/teacher.gguf"
ln -s "$(realpath "$triton")" "$blob/triton.tar.xz"
tar -chf - -C "$blob" . | split -b 50M -d -a 1 - "$out/slice."
rm -r "$blob"
for slice in "$out"/slice.*; do
  number=$((${slice##*.} + 1))
  mkdir -p "$out/parts/$number"
  mv "$slice" "$out/parts/$number/slice.$number"
done
du -sh "$out"/parts/*
