#!/usr/bin/env bash
# A last stage in sequences of 1,024, 8,192 or 32,768 tokens (recipe gemma-3-270m), in the folder of a packed study (pack.sh) with
# teacher-gemma, data, and REQUESTS of a suite of long contexts. Its shard, out/long-stage.tar.xz, is scored at home.
#
#     GPUS="0 1" WORKERS=2 host.sh start bash code/reports/studies/long_stage.sh REQUESTS
#
# Other runs and students: SEEDS="0 1" STUDENTS="kda-local". A further seed can follow, in the same folder.
set -euo pipefail
requests=$1 gpus=(${GPUS:-0}) seeds=(${SEEDS:-0}) lengths=(${LENGTHS:-32k 8k 1k}) students=(${STUDENTS:-kda-local kda})

distil() {
  local name=$1-$2 variant=$1 seed=$2
  shift 2
  python3 -m evalsuite distill "gemma-3-270m:$variant" --mixer "${students[@]}" --data "$PWD/data" --set "teacher=$PWD/teacher-gemma" "seed=$seed" \
    --out "long-$name" "$@" > "out/long-$name.log" 2>&1
}
# Runs VARIANT-SEED … in turn on all GPUs, one at a time on each.
spread() {
  local number each waiting=() jobs=("$@")
  for number in "${!gpus[@]}"; do
    (
      export CUDA_VISIBLE_DEVICES=${gpus[number]}
      for ((each = number; each < ${#jobs[@]}; each += ${#gpus[@]})); do
        seed=${jobs[each]##*-} variant=${jobs[each]%-*} branch=()
        [ "$variant" = prefix ] || branch=(--branch-from "long-prefix-$seed")
        distil "$variant" "$seed" "${branch[@]}"
      done
    ) &
    waiting+=($!)
  done
  for each in "${waiting[@]}"; do wait "$each"; done
}
spread "${seeds[@]/#/prefix-}"
branches=()
for length in "${lengths[@]}"; do branches+=("${seeds[@]/#/late-$length-}"); done
spread "${branches[@]}"

# A run needs a name for each student.
mkdir -p long-students
for seed in "${seeds[@]}"; do
  for folder in "long-prefix-$seed" long-late-*-"$seed"; do
    cp "$folder/metrics.jsonl" "out/$folder.jsonl"
    for student in "${students[@]}"; do mv "$folder/$student" "long-students/${folder#long-}-$student"; done
  done
done
python3 -m evalsuite run --out "$requests" --infer-only --no-cache --checkpoint teacher-gemma long-students \
  ${WORKERS:+--executor-args num_workers=$WORKERS workers_per_gpu=$((WORKERS / ${#gpus[@]}))} --export-shard out/long-stage.tar.xz > out/long-stage-respond.log 2>&1
