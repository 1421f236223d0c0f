#!/usr/bin/env bash
# A last stage in sequences of 1,024, 8,192 or 32,768 tokens (recipe gemma-3-270m), in the folder of a packed study (pack.sh) with
# teacher-gemma, data, and REQUESTS of suites/needles-32k.yaml. Its shard, out/long-stage.tar.xz, is scored at home.
#
#     GPUS="0 1" WORKERS=2 host.sh start bash code/reports/studies/long_stage.sh REQUESTS
#
# Other students or seeds: STUDENTS="kda-local kda" SET="seed=1 …"
set -euo pipefail
requests=$1 gpus=(${GPUS:-0}) lengths=(${LENGTHS:-1k 8k 32k}) students=(${STUDENTS:-kda-local kda})

distil() {
  local variant=$1 gpu=$2
  shift 2
  # shellcheck disable=SC2086
  CUDA_VISIBLE_DEVICES=$gpu python3 -m evalsuite distill "gemma-3-270m:$variant" --mixer "${students[@]}" --data "$PWD/data" --set "teacher=$PWD/teacher-gemma" ${SET:-} \
    --out "long-$variant" "$@" > "out/long-$variant.log" 2>&1
}
distil prefix "${gpus[0]}"
for number in "${!gpus[@]}"; do
  (for ((each = number; each < ${#lengths[@]}; each += ${#gpus[@]})); do distil "late-${lengths[each]}" "${gpus[number]}" --branch-from long-prefix; done) &
  branches[number]=$!
done
for each in "${branches[@]}"; do wait "$each"; done

# A run needs a name for each student.
mkdir -p long-students
for folder in long-prefix long-late-*; do
  cp "$folder/metrics.jsonl" "out/$folder.jsonl"
  for student in "${students[@]}"; do mv "$folder/$student" "long-students/${folder#long-}-$student"; done
done
python3 -m evalsuite run --out "$requests" --infer-only --no-cache --checkpoint teacher-gemma long-students \
  ${WORKERS:+--executor-args num_workers=$WORKERS workers_per_gpu=$((WORKERS / ${#gpus[@]}))} --export-shard out/long-stage.tar.xz > out/long-stage-respond.log 2>&1
