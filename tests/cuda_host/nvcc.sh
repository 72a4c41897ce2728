#!/usr/bin/env bash
# Downloads nvcc (CUDA 13.0, from PyPI, about 100 MB) into a folder and prints the path of a working nvcc. Needs no
# GPU, driver or root; nothing is fetched twice.
#
#   nvcc.sh [FOLDER]     default: $UQAC_NVCC_CACHE, else ~/.cache/uqac-nvcc
set -euo pipefail

folder=${1:-${UQAC_NVCC_CACHE:-$HOME/.cache/uqac-nvcc}}
packages=(
  nvidia-cuda-nvcc==13.0.88      # nvcc, ptxas, fatbinary
  nvidia-cuda-crt==13.0.88       # headers of the compiler itself
  nvidia-nvvm==13.0.88           # cicc, libdevice
  nvidia-cuda-runtime==13.0.96   # cuda_fp16.h, cuda_bf16.h
  nvidia-cuda-cccl==13.0.85      # nv/target, which those include
)
nvcc=$folder/nvidia/cu13/bin/nvcc

complete() {
  local package
  for package in "${packages[@]}"; do
    package=${package//-/_}
    [[ -d $folder/${package/==/-}.dist-info ]] || return 1
  done
  "$nvcc" --version > /dev/null 2>&1
}

mkdir -p "$folder"
exec 9> "$folder/lock"
flock 9  # a second run waits for the first, and then finds it there
if ! complete; then
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps \
    --only-binary=:all: --no-compile --upgrade --target "$folder" "${packages[@]}" >&2
  complete || { echo "nvcc.sh: $nvcc does not run" >&2; exit 1; }
fi
echo "$nvcc"
