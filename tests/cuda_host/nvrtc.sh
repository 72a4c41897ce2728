#!/usr/bin/env bash
# Downloads the real libnvrtc (CUDA 13.0, from PyPI, 90 MB) next to nvcc.sh's nvcc, whose headers it uses, and prints the
# toolkit's folder: lib/libnvrtc.so.13, include/cuda_bf16.h. NVRTC needs no GPU and no driver.
#
#   nvrtc.sh [FOLDER]     as for nvcc.sh
set -euo pipefail

nvcc=$("$(dirname "$0")/nvcc.sh" "$@")
toolkit=$(dirname "$(dirname "$nvcc")")
folder=$(dirname "$(dirname "$toolkit")")

exec 9> "$folder/lock"
flock 9
if ! [[ -e $toolkit/lib/libnvrtc.so.13 && -d $folder/nvidia_cuda_nvrtc-13.0.88.dist-info ]]; then
  part=$(mktemp -d "$folder/nvrtc.XXXXXX")
  trap 'rm -rf "$part"' EXIT
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps \
    --only-binary=:all: --no-compile --target "$part" nvidia-cuda-nvrtc==13.0.88 >&2
  rm -f "$part"/nvidia/cu13/lib/*.alt.so*  # for processors that are not meant here
  cp -r "$part"/* "$folder/"
fi
echo "$toolkit"
