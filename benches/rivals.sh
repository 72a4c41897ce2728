#!/usr/bin/env bash
# The engine beside llama.cpp, ik_llama.cpp, OpenVINO GenAI and transformers on this machine's CPU, interleaved in one run;
# prints a table with the project's targets.
#
# usage: benches/rivals.sh [--rounds N] [--threads N] [--only decode,scoring,...] [--rivals RIVALS]
#                          [--prompts 128,512,2048,4096] [--json FILE] MODEL_FOLDER...
#        RIVALS: llama.cpp, ik_llama.cpp, openvino, torch (with transformers); by default all
#
# Installs them from PyPI into ~/.cache/uqac-rivals (llama.cpp is compiled there, some minutes), and converts the models to
# GGUF there. Models of the Llama and Qwen2 architectures. UQAC_SIMD=avx2 limits our side alone to AVX2, so only a
# CPU without AVX-512 compares both on AVX2.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cache=${UQAC_RIVALS:-$HOME/.cache/uqac-rivals}
python=$cache/venv/bin/python
mkdir -p "$cache"
wanted="gguf numpy" rivals=llama.cpp,ik_llama.cpp,openvino,torch
previous=""
for word in "$@"; do
  [[ $previous != --rivals ]] || rivals=$word
  previous=$word
done
case ,$rivals, in *,llama.cpp,*) wanted+=" llama-cpp-python" ;; esac
case ,$rivals, in *,ik_llama.cpp,*) wanted+=" ik-llama-cpp-python" ;; esac
case ,$rivals, in *,openvino,*) wanted+=" openvino-genai" ;; esac
case ,$rivals, in *,torch,*) wanted+=" torch transformers" ;; esac
[[ -x $python ]] || python3 -m venv "$cache/venv"
missing=""
for package in $wanted; do # one by one: of several, pip is content with any
  "$python" -m pip show --quiet "$package" > /dev/null 2>&1 || missing+=" $package"
done
if [[ -n $missing ]]; then
  echo "installing$missing in $cache" >&2
  # llama.cpp: the library alone, without its multimodal part
  # shellcheck disable=SC2086 # words
  CMAKE_ARGS="${CMAKE_ARGS:--DLLAVA_BUILD=OFF}" "$cache/venv/bin/pip" install --quiet $missing >&2
fi
(cd "$root" && cargo build --release --quiet)
exec "$python" "$root/benches/rivals/run.py" --uqac "$root/target/release/uqac" --cache "$cache" "$@"
