#!/usr/bin/env bash
# Packs a piece of the study for a host without packages or network (../pack.sh):
#
#     reports/studies/decision/pack.sh smollm2 TEACHER.gguf DATA TRITON.tar.xz OUT [SUITE]
#
# On the host: host.sh start bash code/reports/studies/decision/piece.sh smollm2 0 1 2
#
# Requests are built for the teacher as a folder, which the host writes again from the GGUF file with the config and
# tokenizer that are carried (protocol.yaml, second amendment).
set -euo pipefail
name=$1 gguf=$2 data=$3 triton=$4 out=$5 suite=${6:-reports/studies/suites/decision.yaml}
python=${PYTHON:-python}
here=$(dirname "$0")
mkdir -p "$out/pieces/carried" "$out/pieces/data"
teacher=$out/teacher-$name
"$python" "$here/teacher_folder.py" "$gguf" "$teacher"
find "$teacher" -type f ! -name '*.safetensors' -exec cp {} "$out/pieces/carried" \;
ln -sfn "$(realpath "$gguf")" "$out/pieces/teacher.gguf"
ln -sfn "$(realpath "$data")/corpora" "$out/pieces/data/corpora"
ln -sfn "$(realpath "$data")/instruct" "$out/pieces/data/instruct"
"$python" -m evalsuite run "$suite" --teacher "$teacher" --data "$data" --build-only --out "$out/pieces/$name"
"$here/../pack.sh" "$out" "$triton" "$out"/pieces/*
