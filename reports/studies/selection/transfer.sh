#!/usr/bin/env bash
# Layers selected with one mixer, students of another (Table 2 of arXiv 2512.20569), and students by number of softmax layers, on
# SmolLM2-135M, in the folder of a packed study (../pack.sh) with teacher-smollm2, data, and REQUESTS of suites/transfer.yaml. Its
# shard, out/transfer.tar.xz, is scored at home, and `python -m evalsuite.reports.studies.selection.transfer` writes the table.
#
#     GPUS="0 1" WORKERS=6 host.sh start bash code/reports/studies/selection/transfer.sh REQUESTS
#
# Selections that lie in the folder are not repeated. Smaller: OPTIONS="tokens=8k align_tokens=4k …" SET="stages.align.tokens=4k …"
set -euo pipefail
requests=$1 root=$PWD gpus=(${GPUS:-0})
mixers=(${MIXERS:-gated_deltanet gla kda}) first=${FIRST:-gated_deltanet} second=${SECOND:-gla} shared=${SHARED:-4} sweep=(${SWEEP:-1 2 8 12})
recipe=smollm2-135m-instruct-2:tokens-8m common=(--data "$root/data" --set "teacher=$root/teacher-smollm2")
options=${OPTIONS:-tokens=300k align_tokens=1M batch_size=16 snapshot_interval=6 early_stop=false}
export EVALSUITE_DATA=${EVALSUITE_DATA:-$root/data}

# One search scores a layer once, for every budget.
search() {
  local mixer=$1 gpu=$2
  [ ! -f "by-$mixer-$shared.json" ] || return 0
  # shellcheck disable=SC2086
  CUDA_VISIBLE_DEVICES=$gpu python3 -m evalsuite select "$recipe" --mixer "$mixer" --selector ga_s2 --budget "$shared" "${sweep[@]}" --option $options \
    "${common[@]}" ${SET:-} --work "work-$mixer" --out "by-$mixer.json" > "out/select-$mixer.log" 2>&1
}
distil() {
  local name=$1 gpu=$2
  shift 2
  # shellcheck disable=SC2086
  CUDA_VISIBLE_DEVICES=$gpu python3 -m evalsuite distill "$recipe" "$@" "${common[@]}" ${SET:-} --out "students-$name" > "out/students-$name.log" 2>&1
}
for number in "${!gpus[@]}"; do
  (for ((each = number; each < ${#mixers[@]}; each += ${#gpus[@]})); do search "${mixers[each]}" "${gpus[number]}"; done) &
  searches[number]=$!
done
for each in "${searches[@]}"; do wait "$each"; done
cp by-*.json out

across=() own=()
for mixer in "${mixers[@]}"; do across+=("by-$mixer-$shared.json"); done
for budget in "${sweep[@]}"; do own+=("by-$first-$budget.json"); done
distil across "${gpus[0]}" --mixer "$first" "$second" --layers "${across[@]}" &
students=$!
distil sweep "${gpus[-1]}" --mixer "$first" --layers "${own[@]}"
wait "$students"
python3 -m evalsuite run --out "$requests" --infer-only --no-cache --checkpoint "$root/teacher-smollm2" students-across students-sweep \
  ${WORKERS:+--executor-args num_workers=$WORKERS workers_per_gpu=$((WORKERS / ${#gpus[@]}))} --export-shard out/transfer.tar.xz > out/transfer-respond.log 2>&1
