#!/usr/bin/env bash
# Downloads nvdisasm (CUDA 13, from PyPI, 6 MB) next to nvcc.sh's nvcc and prints its path. It disassembles
# cubins without a GPU; kernels/lab/run.py uses it for counting.
#
#   nvdisasm.sh [FOLDER]     as for nvcc.sh
set -euo pipefail

folder=${1:-${UQAC_NVCC_CACHE:-$HOME/.cache/uqac-nvcc}}/nvdisasm
nvdisasm=$folder/nvidia/cu13/bin/nvdisasm

mkdir -p "$folder"
exec 9> "$folder/lock"
flock 9
if ! "$nvdisasm" --version > /dev/null 2>&1; then
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps \
    --only-binary=:all: --no-compile --upgrade --target "$folder" nvidia-cuda-nvdisasm==13.2.51 >&2
  "$nvdisasm" --version > /dev/null || { echo "nvdisasm.sh: $nvdisasm does not run" >&2; exit 1; }
fi
echo "$nvdisasm"
