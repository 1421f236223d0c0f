#!/usr/bin/env bash
# Packs host_times.sh with all that it reads: two teachers, data, requests, and what suite quick imports and a host lacks. Further
# files and folders PATH travel along.
#
#     reports/studies/throughput/pack_host_times.sh SMOLLM2.gguf GEMMA.gguf DATA TRITON.tar.xz OUT [PATH …]
set -euo pipefail
smollm2=$1 gemma=$2 data=$3 triton=$4 out=$5
shift 5
here=$(dirname "$0") pieces=$out/pieces
mkdir -p "$pieces"
for path in "$@"; do ln -sfn "$(realpath "$path")" "$pieces/$(basename "$path")"; done
ln -sfn "$(realpath "$gemma")" "$pieces/gemma.gguf"
"${PYTHON:-python}" -m evalsuite prepare quick --data "$pieces/data" --source "$data" --quiet
"$here/../wheels.sh" "$pieces/lmwheels" evalscope lm_eval antlr4-python3-runtime chardet colorlog defusedxml docstring_parser \
  editdistance filetype jsonlines jsonschema jsonschema-specifications referencing rpds-py langdetect latex2sympy2_extended \
  math-verify nltk orjson pytz wonderwords word2number
exec "$here/../decision/pack.sh" smollm2 "$smollm2" "$data" "$triton" "$out" quick:limit=700
