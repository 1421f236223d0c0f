#!/usr/bin/env bash
# Trains a teacher and runs designs that start from it, in the folder of a packed study (../pack.sh), all at once on the GPUs
# of the host:
#
#     trained_teacher.sh RECIPE LABEL DESIGN REQUESTS WORKERS …      REQUESTS: run folder with built requests of the design's suite
#     trained_teacher.sh pocket-10m-teacher pocket-10m-teacher gates-pocket-10m pocket-10m 9
#     SET="student.initial_checkpoints={softmax: $PWD/teacher-smollm2}" trained_teacher.sh generator softmax on-policy-smollm2 questions 6
#
# LABEL is the name of the recipe's checkpoint; SET overrides keys of the recipe. A base model gets turns from a folder of
# template and end tokens (gemma_chat), copied over its own: generator:low-lr softmax on-policy-gemma.
# 26 workers on two H200 with 32 cores and 256 GiB, each of which started a compiler per core, ran out of memory.
set -uo pipefail
recipe=$1 teacher=out/teacher/$2
shift 2
[ -d "$teacher" ] || python3 -m evalsuite distill "$recipe" ${SET:+--set "$SET"} --out out/teacher > out/teacher.log 2>&1
while [ $# -ge 3 ]; do
  python3 -m evalsuite.reports.studies.training_choices "$1" --teacher "$teacher" --requests "$2" --out "out/$1" --workers "$3" \
    > "out/$1.log" 2>&1 &
  shift 3
done
wait
