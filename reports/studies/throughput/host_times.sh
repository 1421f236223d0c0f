#!/usr/bin/env bash
# What a host with one or two idle GPUs takes for quick, a first step, evaluation next to HFLM, ten checkpoints, and long sequences
# that two GPUs share, in the folder of a packed study (../pack.sh). Times lie in out/times.txt.
#
#     MPS=0 host.sh start bash code/reports/studies/throughput/host_times.sh
#
# pack_host_times.sh packs it. PHASES="quick ten" does a part.
set -uo pipefail
root=$PWD phases=${PHASES:-quick first engine ten long}
# host.sh sets these, and nproc obeys the first; commands are timed as users start them.
unset OMP_NUM_THREADS TOKENIZERS_PARALLELISM
export EVALSUITE_DATA=$root/data
mkdir -p out
[ -d lm ] || python3 -m pip install -q --no-index --no-deps --target lm lmwheels/*.whl > out/lm.log 2>&1
# Else the first command would compile what it imports.
python3 -m compileall -q -j 0 site code triton lm > out/compile.log 2>&1
[ -d teacher-smollm2 ] || python3 code/reports/studies/decision/teacher_folder.py teacher.gguf teacher-smollm2 carried > out/teacher.log 2>&1
gpus=$(python3 -c "import torch; print(torch.cuda.device_count())")

timed() {
  local name=$1 started code
  shift
  started=$(date +%s.%N)
  timeout 400 "$@" > "out/$name.log" 2>&1
  code=$?
  python3 -c "import os, time; print('$name: exit $code,', round(time.time() - $started, 2), 's, load', round(os.getloadavg()[0], 1))" >> out/times.txt
}
quick() {
  export CUDA_VISIBLE_DEVICES=0 PYTHONPATH=$root/lm:$PYTHONPATH
  for each in 1 2 3; do
    timed "quick-$each" taskset -c 0-7 python3 -m evalsuite run quick --no-cache --checkpoint teacher-smollm2 --data data --quiet --out "quick-$each"
  done
}
first() {
  export CUDA_VISIBLE_DEVICES=0
  for each in 1 2; do
    timed "first-$each" python3 code/tests/performance/bench_first_step.py --out "first-$each" gemma-3-270m --mixer kda kda-local kda-global --data "$root/data" --set "teacher=$root/gemma.gguf"
    cp "first-$each/first_step.json" "out/first-$each.json"
  done
}
engine() {
  export CUDA_VISIBLE_DEVICES=0 PYTHONPATH=$root/lm:$PYTHONPATH
  local bench=(taskset -c 0-7 python3 code/tests/performance/bench_engine.py --checkpoint gemma.gguf)
  timed engine-scores "${bench[@]}" --workload hellaswag --workload mmlu --peer-share 0.25 --out out/engine-scores.json
  # Half of the prompts fill HFLM's batch.
  timed engine-texts "${bench[@]}" --workload generation --peer-share 0.5 --runs 2 --out out/engine-texts.json
}
ten() {
  python3 - <<'PYTHON'
import torch
from pathlib import Path
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("teacher-smollm2", dtype=torch.bfloat16)
tokenizer = AutoTokenizer.from_pretrained("teacher-smollm2")
for number in range(10):
    torch.manual_seed(number)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=1e-4)
    for part in (model, tokenizer):
        part.save_pretrained(Path("ten") / f"noise-{number}")
PYTHON
  respond() {
    rm -rf "run-$1"
    cp -r smollm2 "run-$1"
    timed "$1" python3 -m evalsuite run --infer-only --out "run-$1" --quiet --no-cache "${@:2}"
  }
  CUDA_VISIBLE_DEVICES=0 respond ten-warm-up --checkpoint ten/noise-0
  CUDA_VISIBLE_DEVICES=0 respond ten-on-one --checkpoint ten/noise-*
  [ "$gpus" -lt 2 ] || CUDA_VISIBLE_DEVICES=0,1 respond ten-on-two --executor-args num_workers=2 --checkpoint ten/noise-*
}
# In float32, so that losses of one GPU and of two, which begin the last stage with the same weights, can be compared.
long() {
  distil() {
    local variant=$1 out=$2
    shift 2
    timed "$out" "$@" -m evalsuite distill "smollm2-135m-instruct-2:$variant" --mixer kda hybrid-4-recall --data "$root/data" --out "$out" "${extra[@]}" \
      --set "teacher=$root/teacher-smollm2" precision=fp32 stages.align.tokens=100k stages.kd.tokens=100k validation=null "${stage[@]}"
  }
  extra=() stage=()
  CUDA_VISIBLE_DEVICES=0 distil prefix-8m long-prefix python3
  extra=(--branch-from long-prefix) stage=(stages.late.tokens=400k stages.late.seq_len=8192 stages.late.batch_size=2)
  CUDA_VISIBLE_DEVICES=0 distil tokens-8m long-on-one python3
  stage+=(stages.late.sequence_parallel=2)
  [ "$gpus" -lt 2 ] || CUDA_VISIBLE_DEVICES=0,1 distil tokens-8m long-on-two torchrun --nproc-per-node 2
  for each in long-on-*; do cp "$each/metrics.jsonl" "out/$each.jsonl"; done
}
for phase in $phases; do
  ("$phase")
done
cat out/times.txt
