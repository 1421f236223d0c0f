#!/usr/bin/env bash
# Packs a study for a host without packages or network, in parts of at most 50 MB:
#
#     reports/studies/pack.sh OUT TRITON.tar.xz PATH …
#
# OUT/parts/0 holds wheels and host.sh, OUT/parts/N the N-th slice of Triton and of the files and folders PATH. The host has
# CPython 3.12 on x86-64 with torch. CACHE can name the cache of tuned kernels that an earlier host brought
# home (cache.tar.xz).
set -euo pipefail
out=$1 triton=$2
shift 2
here=$(dirname "$0")
mkdir -p "$out/parts/0"
cp "$here/host.sh" "$out/parts/0"
[ -z "${CACHE:-}" ] || cp "$CACHE" "$out/parts/0/cache.tar.xz"

"$here/wheels.sh" "$out/parts/0/wheels" pydantic pydantic-core annotated-types typing-inspection typing-extensions gguf einops \
  zstandard datasets xxhash dill multiprocess plotly narwhals transformers fla-core==0.6.0 flash-linear-attention==0.6.0

blob=$(mktemp -d)
ln -s "$(realpath "$triton")" "$blob/triton.tar.xz"
for path in "$@"; do
  ln -s "$(realpath "$path")" "$blob/$(basename "$path")"
done
tar -chf - -C "$blob" . | split -b 50M -d -a 2 - "$out/slice."
rm -r "$blob"
# The host joins them in the order of their names.
for slice in "$out"/slice.*; do
  part=$out/parts/$((10#${slice##*.} + 1))
  mkdir -p "$part"
  mv "$slice" "$part"
done
du -sh "$out"/parts/*
