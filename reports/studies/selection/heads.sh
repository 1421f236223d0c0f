#!/usr/bin/env bash
# Softmax heads against whole layers at equal caches: selects both, distils a student of each set, and responds to needles, in the
# folder of a packed study. Its shard, out/heads.tar.xz, is scored at home.
#
#     reports/studies/decision/pack.sh smollm2 TEACHER.gguf DATA TRITON.tar.xz OUT reports/studies/suites/needles-4k.yaml
#     GPUS="0 1" WORKERS=6 host.sh start bash code/reports/studies/selection/heads.sh
#
# KDA in the other layers, recipe smollm2-135m-instruct-2:tokens-8m (docs/how-to/select-layers.md, Heads). Two groups of students
# of each of the SEEDS are trained at once, each on its own GPU where two are named. Selections that lie in the folder are not
# repeated. Smaller, on a CPU:
# HEADS=4 LAYERS=1 OTHERS= HEAD_OPTIONS="held_out=2" SET="stages.align.tokens=4k …" heads.sh
set -euo pipefail
root=$PWD
evalsuite=(python3 -m evalsuite)
heads=(${HEADS:-4 10 20 36}) layers=(${LAYERS:-1 3 6 12}) gpus=(${GPUS:-0}) seeds=(${SEEDS:-0})
teacher=$root/teacher-smollm2
recipe=(smollm2-135m-instruct-2 --mixer kda --data "$root/data")
mkdir -p out
[ -d "$teacher" ] || python3 "$(dirname "$0")/../decision/teacher_folder.py" teacher.gguf "$teacher" carried

select_units() {
  local selector=$1 name=$2 options=$3
  shift 3
  [ ! -f "$name-$1.json" ] || return 0
  # shellcheck disable=SC2086
  "${evalsuite[@]}" select "${recipe[@]}" --set "teacher=$teacher" --selector "$selector" --budget "$@" --option $options \
    --work "work-$name" --out "$name.json" > "out/select-$name.log" 2>&1
  # One budget has no number in the name of its file.
  [ $# -gt 1 ] || mv "$name.json" "$name-$1.json"
}
select_units head_ablation heads "${HEAD_OPTIONS:-held_out=64 seq_len=1024 ngram=4}" "${heads[@]}" &
first=$!
select_units span_recall layers "${LAYER_OPTIONS:-held_out=64}" "${layers[@]}" &
wait "$first"
wait $!
cp heads-*.json layers-*.json out

distil() {
  local name=$1 gpu=$2 seed=$3 each
  shift 3
  # shellcheck disable=SC2086
  CUDA_VISIBLE_DEVICES=$gpu "${evalsuite[@]}" distill smollm2-135m-instruct-2:tokens-8m --mixer "$@" --data "$root/data" --set "teacher=$teacher" "seed=$seed" \
    ${SET:-} --out "training-$name-$seed" > "out/distill-$name-$seed.log" 2>&1
  mkdir -p students
  for each in "$@"; do mv "training-$name-$seed/$each" "students/$each-seed$seed"; done
}
training=()
for seed in "${seeds[@]}"; do
  distil heads "${gpus[0]}" "$seed" "${heads[@]/#/heads-}" &
  training+=($!)
  distil layers "${gpus[-1]}" "$seed" "${layers[@]/#/layers-}" ${OTHERS-kda hybrid-4-recall} &
  training+=($!)
done
for each in "${training[@]}"; do wait "$each"; done

"${evalsuite[@]}" run --out smollm2 --infer-only --no-cache --checkpoint "$teacher" students \
  ${WORKERS:+--executor-args num_workers=$WORKERS workers_per_gpu=$((WORKERS / ${#gpus[@]}))} --export-shard out/heads.tar.xz > out/respond.log 2>&1
