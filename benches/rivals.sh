#!/usr/bin/env bash
# The engine beside llama.cpp and transformers on this machine's CPU, in turns, in one run; prints the table with the
# project's targets.
#
# usage: benches/rivals.sh [--rounds N] [--threads N] [--only decode,scoring,...] [--rivals llama.cpp,torch]
#                          [--json FILE] MODEL_FOLDER...
#
# Installs llama-cpp-python, torch and transformers from PyPI into ~/.cache/uqac-rivals (llama.cpp is compiled there,
# some minutes), and converts the models to GGUF there. Models of the Llama and Qwen2 architectures.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cache=${UQAC_RIVALS:-$HOME/.cache/uqac-rivals}
python=$cache/venv/bin/python
mkdir -p "$cache"
if ! "$python" -c 'import llama_cpp, gguf, torch, transformers' 2>/dev/null; then
  echo "installing llama-cpp-python, torch and transformers in $cache" >&2
  [[ -x $python ]] || python3 -m venv "$cache/venv"
  # the library alone, without its multimodal part
  CMAKE_ARGS="${CMAKE_ARGS:--DLLAVA_BUILD=OFF}" "$cache/venv/bin/pip" install --quiet llama-cpp-python gguf numpy torch transformers >&2
fi
(cd "$root" && cargo build --release --quiet)
exec "$python" "$root/benches/rivals/run.py" --uqac "$root/target/release/uqac" --cache "$cache" "$@"
