#!/usr/bin/env bash
# Trains the pocket teacher of ten million parameters and runs designs that start from it, in the folder of a packed study
# (../pack.sh), all at once on the GPUs of the host:
#
#     pocket_10m.sh DESIGN REQUESTS WORKERS …      REQUESTS: run folder with built requests of the design's suite
#
# 26 workers on two H200 with 32 cores and 256 GiB, each of which started a compiler per core, ran out of memory.
set -uo pipefail
[ -d out/teacher/pocket-10m-teacher ] || python3 -m evalsuite distill pocket-10m-teacher --out out/teacher > out/teacher.log 2>&1
while [ $# -ge 3 ]; do
  python3 -m evalsuite.reports.studies.training_choices "$1" --teacher out/teacher/pocket-10m-teacher --requests "$2" \
    --out "out/$1" --workers "$3" > "out/$1.log" 2>&1 &
  shift 3
done
wait
