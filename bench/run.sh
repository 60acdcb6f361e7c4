#!/usr/bin/env bash
# Measures the demo model on this machine. With LLAMA_CPP=DIR (llama-bench and llama-quantize inside) llama.cpp is measured in the
# same run. Further arguments go to cpu_model.py; --out STEM keeps the figures as STEM.json and STEM.md.
set -euo pipefail
cd "$(dirname "$0")/.."
model=${SUB8_DEMO_DIR:-$PWD/demo}/SmolLM2-135M-Instruct.Q4_1.gguf
exec python3 bench/cpu_model.py --sub8 build/cpu/apps/sub8 --model "$model" ${LLAMA_CPP:+--llama "$LLAMA_CPP"} "$@"
