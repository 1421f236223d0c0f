#!/usr/bin/env bash
# Makes the teacher's folder, trains the seeds and responds, in the folder of a packed piece (pack.sh):
#
#     piece.sh smollm2 0 1 2       more options of piece.py may follow, and another piece once it has finished
set -euo pipefail
name=$1
shift
if [ ! -d "teacher-$name" ]; then
  python3 "$(dirname "$0")/teacher_folder.py" teacher.gguf "teacher-$name" carried
fi
# shellcheck disable=SC2086
python3 -m evalsuite.reports.studies.decision.piece "$name" --seed $* --teacher "teacher-$name" --data data --requests "$name" --out out
