#!/usr/bin/env bash
# What `./dev check` runs after a build: formatting, layers, symbols, docs, lint.
set -euo pipefail
cd "$(dirname "$0")/.."
./dev fmt --check
python3 tools/check_layers.py
python3 tools/check_symbols.py build/cpu
python3 tools/check_docs.py
if [ "${1:-}" != --quick ]; then
  python3 tools/lint.py build/cpu
fi
