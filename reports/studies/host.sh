#!/usr/bin/env bash
# Runs a packed study (pack.sh) on a bare host, where a call is short and a process of its own session goes on:
#
#     host.sh unpack PART …       in a checkout: first part 0, then each other part, as they arrive
#     host.sh start COMMAND …     run a command in the folder of what was packed, in the background; the checkout is code/; with MPS=1
#                                 its processes share a GPU through CUDA's Multi-Process Service instead of taking turns
#     host.sh poll SECONDS        wait for the end or so long; copy out/ without large files, and logs, to $OUT
#     host.sh fetch PATH …        copy files and folders to $OUT: a teacher, or cache, Triton's tuned kernels
#
# A host that is left alone for half a minute is gone, with its students: queue the next poll before one has ended.
# Pieces are joined with cat; what comes home as cache.tar.xz can be a part of the next study (pack.sh, CACHE).
set -euo pipefail
root=${ROOT:-/tmp/study}
export PYTHONPATH=$root/triton:$root/site:$root/code HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=4
export TRITON_CACHE_AUTOTUNING=1 TRITON_CACHE_DIR=$root/cache PYTHONUNBUFFERED=1
# Every process would compile what it imports, torch and transformers included, where an image sets it.
unset PYTHONDONTWRITEBYTECODE
mkdir -p "$root/slices" "$root/cache" "$root/out"

case $1 in
  unpack)
    shift
    for part in "$@"; do
      if [ -d "$part/wheels" ]; then
        nvidia-smi -L
        python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$root/site" "$part"/wheels/*.whl
        cp "$part/host.sh" "$root"
        mkdir -p "$root/code"
        cp -r . "$root/code"
      fi
      [ ! -f "$part/cache.tar.xz" ] || tar -xJf "$part/cache.tar.xz" -C "$root"
      cp "$part"/slice.* "$root/slices" 2>/dev/null || true
    done
    ls "$root/slices"
    ;;
  start)
    shift
    cd "$root"
    if [ -f study.log ] && [ ! -f finished ]; then
      echo "a study is running"
      exit 1
    fi
    rm -f finished
    if [ ! -d triton ]; then
      cat slices/slice.* | tar -xf -
      mkdir triton
      tar -xJf triton.tar.xz -C triton
    fi
    python3 -c "import torch, triton, transformers; print(torch.__version__, triton.__version__, transformers.__version__, torch.cuda.device_count())"
    if [ "${MPS:-0}" = 1 ]; then
      export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/mps
      mkdir -p /tmp/mps
      nvidia-cuda-mps-control -d
    fi
    # shellcheck disable=SC2016
    setsid nohup bash -c '"$@"; echo exit code $? > finished' start "$@" >> study.log 2>&1 < /dev/null &
    sleep 20
    tail -n 2 study.log out/*.log 2>/dev/null || true
    ;;
  poll)
    # On another machine than the study's there is nothing to wait for.
    [ -f "$root/study.log" ] || { echo "no study was started on this machine"; exit 1; }
    start=$(date +%s)
    while [ ! -f "$root/finished" ] && [ $(($(date +%s) - start)) -lt "$2" ]; do sleep 2; done
    cd "$root"
    # A run folder is a shard, too: it holds what there is before the end. Checkpoints stay here.
    # What is larger is mostly weights or a training state; a shard would have to be fetched.
    find out -type f -size +11M -printf 'not copied: %p, %s bytes\n'
    find study.log out -type f -size -12M ! -name .lock \
      ! -path '*/students/*' ! -path '*/responses/*' ! -path '*/requests/*' ! -path '*/documents/*' ! -path '*/locks/*' ! -path '*/state/*' \
      -print0 | tar -cf - --null -T - | xz -T0 -2 | split -b 15M - "$OUT/out.tar.xz."
    for log in study.log out/*.log; do
      [ ! -f "$log" ] || { echo "== $log"; tail -c 400 "$log" | tr '\r' '\n' | tail -2; }
    done
    cat finished 2>/dev/null || true
    nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader
    free -g | sed -n 2p
    ls -la "$OUT"
    ;;
  fetch)
    shift
    cd "$root"
    for path in "$@"; do
      tar -cf - "$path" | xz -T0 -3 | split -b 15M - "$OUT/$(basename "$path").tar.xz."
    done
    ls -la "$OUT"
    ;;
esac
