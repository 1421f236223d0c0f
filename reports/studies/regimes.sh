#!/usr/bin/env bash
# Regimes A and B (arXiv 2504.14366, Table 4) on SmolLM2-135M, in the folder of a packed study (pack.sh) where teacher-smollm2, the
# unmodified checkpoint, and out/teacher/softmax, tuned by recipe generator, lie. The shard, out/regimes.tar.xz, is scored at home.
#
#     GPUS="0 1" WORKERS=6 host.sh start bash code/reports/studies/regimes.sh REQUESTS      of suite generator, or of suites/regimes.yaml
#                                                                                        with needles, for the teacher's tokenizer
#
# Another run: FIRST="seed=1" LAST="seed=1" regimes.sh REQUESTS; smaller: FIRST="stage.text.tokens=4k …" LAST="stage.instruct.tokens=4k …"
set -euo pipefail
requests=$1 gpus=(${GPUS:-0})
export GENERATOR_DATA=${GENERATOR_DATA:-$PWD/questions} EVALSUITE_DATA=${EVALSUITE_DATA:-$PWD/data}

distil() {
  local variant=$1 gpu=$2
  shift 2
  CUDA_VISIBLE_DEVICES=$gpu python3 -m evalsuite distill "gap-study-smollm2:$variant" --out "$variant" "$@" > "out/$variant.log" 2>&1
}
# shellcheck disable=SC2086
distil regime-b "${gpus[-1]}" --set "teacher=$PWD/out/teacher/softmax" ${FIRST:-} ${LAST:-} &
tuned=$!
distil before-regime-a "${gpus[0]}" --set "teacher=$PWD/teacher-smollm2" ${FIRST:-}
distil regime-a "${gpus[0]}" ${LAST:+--set $LAST}
wait "$tuned"

# A run needs a name for each student.
mkdir -p regimes
for variant in before-regime-a regime-a regime-b; do
  for student in "$variant"/*/config.json; do
    mv "$(dirname "$student")" "regimes/$variant-$(basename "$(dirname "$student")")"
  done
done
python3 -m evalsuite run --out "$requests" --infer-only --no-cache --checkpoint out/teacher/softmax teacher-smollm2 regimes \
  ${WORKERS:+--executor-args num_workers=$WORKERS workers_per_gpu=$((WORKERS / ${#gpus[@]}))} \
  --export-shard out/regimes.tar.xz > out/regimes-respond.log 2>&1
