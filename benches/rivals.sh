#!/usr/bin/env bash
# Compares the engine with llama.cpp, ik_llama.cpp, OpenVINO GenAI and transformers on this machine's CPU, interleaved in one
# run; prints a table with the project's targets.
#
# usage: benches/rivals.sh [--rounds N] [--threads N] [--only decode,scoring,...] [--rivals RIVALS]
#                          [--prompts 128,512,2048,4096] [--json FILE] MODEL_FOLDER...
#        RIVALS: llama.cpp, ik_llama.cpp, openvino, torch (with transformers); by default all
#        benches/rivals.sh --only lookup --data FOLDER [--tasks gsm8k,...] [--limit N] MODEL_FOLDER...
#        speculative decoding of a task's questions, compared with llama.cpp's own, whose example is compiled from its PyPI source
#        benches/rivals.sh --only family [--prompts 512] MODEL_FOLDER...
#        models of any architecture, compared with llama.cpp's own benchmark, such as the folders of the example `random_weights`
#
# Installs them from PyPI into ~/.cache/uqac-rivals (llama.cpp is compiled there, which takes some minutes), and converts the
# models to GGUF there. Supports models of the Llama and Qwen2 architectures. UQAC_SIMD=avx2 limits only our side to AVX2, so
# only a CPU without AVX-512 compares both on AVX2.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cache=${UQAC_RIVALS:-$HOME/.cache/uqac-rivals}
python=$cache/venv/bin/python
mkdir -p "$cache"
wanted="gguf numpy" rivals=llama.cpp,ik_llama.cpp,openvino,torch only=""
previous=""
for word in "$@"; do
  [[ $previous != --rivals ]] || rivals=$word
  [[ $previous != --only ]] || only=$word
  previous=$word
done
tool=""
case $only in
  lookup) tool=llama-lookup rivals="" wanted="gguf numpy cmake ninja scikit-build-core" ;;
  family) tool=llama-bench rivals="" wanted="gguf numpy cmake ninja scikit-build-core torch transformers" ;;
esac
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
  # llama.cpp: only the library, without its multimodal part
  # shellcheck disable=SC2086 # words
  CMAKE_ARGS="${CMAKE_ARGS:--DLLAVA_BUILD=OFF}" "$cache/venv/bin/pip" install --quiet $missing >&2
fi
if [[ -n $tool && ! -x $cache/llama-build/bin/$tool ]]; then
  echo "compiling $tool in $cache" >&2
  if [[ ! -d $cache/llama-source ]]; then
    source=$(mktemp -d)
    trap 'rm -rf "$source"' EXIT
    "$cache/venv/bin/pip" download --quiet --no-deps --no-binary :all: --no-build-isolation --dest "$source" llama-cpp-python >&2
    tar xzf "$source"/*.tar.gz -C "$source"
    mv "$source"/*/vendor/llama.cpp "$cache/llama-source"
  fi
  PATH=$cache/venv/bin:$PATH cmake -G Ninja -S "$cache/llama-source" -B "$cache/llama-build" -DCMAKE_BUILD_TYPE=Release \
    -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF > /dev/null
  PATH=$cache/venv/bin:$PATH cmake --build "$cache/llama-build" --target "$tool" >&2
fi
(cd "$root" && cargo build --release --quiet)
exec "$python" "$root/benches/rivals/run.py" --uqac "$root/target/release/uqac" --cache "$cache" "$@"
