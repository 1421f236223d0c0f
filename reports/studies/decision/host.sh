#!/usr/bin/env bash
# Runs a packed piece (pack.sh) on a bare host, where a call is short and a process of its own session goes on:
#
#     host.sh unpack PART …             in a checkout: first part 0, then each other part, as they arrive
#     host.sh start smollm2 0 1 2       make the teacher's folder, train the seeds and respond, in the background;
#                                       more options of piece.py may follow, and another piece once it has finished
#     host.sh poll SECONDS              wait for the end or so long; copy what there is to $OUT
#
# A host that is left alone for half a minute is gone, with its students: queue the next poll before one has ended.
# Triton's cache of tuned kernels comes home, too, and is unpacked if it is a part of the next piece (cache.tar.xz).
set -euo pipefail
root=${ROOT:-/tmp/piece}
export PYTHONPATH=$root/triton:$root/site:$root/code HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=4
export TRITON_CACHE_AUTOTUNING=1 TRITON_CACHE_DIR=$root/cache PYTHONUNBUFFERED=1
mkdir -p "$root/slices" "$root/cache"

case $1 in
  unpack)
    shift
    for part in "$@"; do
      if [ -d "$part/wheels" ]; then
        nvidia-smi -L
        python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$root/site" "$part"/wheels/*.whl
        tar -xJf "$part/requests.tar.xz" -C "$root"
        cp "$part/host.sh" "$part/teacher_folder.py" "$root"
        mkdir -p "$root/code"
        cp -r . "$root/code"
      fi
      [ ! -f "$part/cache.tar.xz" ] || tar -xJf "$part/cache.tar.xz" -C "$root"
      cp "$part"/slice.* "$root/slices" 2>/dev/null || true
    done
    ls "$root/slices"
    ;;
  start)
    name=$2
    shift 2
    if [ -f "$root/piece.log" ] && [ ! -f "$root/finished" ]; then
      echo "a piece is running"
      exit 1
    fi
    rm -f "$root/finished"
    cd "$root/code"
    if [ ! -d "$root/teacher-$name" ]; then
      cat "$root"/slices/slice.* | tar -xf - -C "$root"
      mkdir -p "$root/triton"
      tar -xJf "$root/triton.tar.xz" -C "$root/triton"
      python3 "$root/teacher_folder.py" "$root/teacher.gguf" "$root/teacher-$name" "$root/carried" 2>&1 | tail -1
    fi
    python3 -c "import torch, triton, transformers; print(torch.__version__, triton.__version__, transformers.__version__, torch.cuda.device_count())"
    setsid nohup bash -c "python3 -m evalsuite.reports.studies.decision.piece $name --seed $* --teacher $root/teacher-$name \
      --data $root/data --requests $root/$name --out $root/out; echo exit code \$? > $root/finished" \
      >> "$root/piece.log" 2>&1 < /dev/null &
    sleep 20
    tail -n 2 "$root/piece.log" "$root"/out/*.log 2>/dev/null || true
    ;;
  poll)
    start=$(date +%s)
    while [ ! -f "$root/finished" ] && [ $(($(date +%s) - start)) -lt "$2" ]; do sleep 2; done
    cd "$root/out" 2>/dev/null || exit 0
    shopt -s nullglob
    # A run folder is a shard, too: it holds what there is before the end.
    runs=()
    for folder in ./*-seed*/; do [[ $folder == ./training-* ]] || runs+=("$folder"); done
    kept=(./*.log "${runs[@]}")
    if [ ${#kept[@]} -gt 0 ]; then
      tar -cf - --exclude=requests --exclude=documents --exclude=.lock "${kept[@]}" | xz -T0 | split -b 15M - "$OUT/run.tar.xz."
    fi
    tar -cf - -C "$root" cache | xz -T0 -3 | split -b 15M - "$OUT/cache.tar.xz."
    for log in "$root/piece.log" ./*.log; do echo "== $log"; tail -c 400 "$log" | tr '\r' '\n' | tail -2; done
    cat "$root/finished" 2>/dev/null || true
    nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader
    ls -la "$OUT"
    ;;
esac
