#!/usr/bin/env bash
# Builds variants of gemm_hopper.cu and the program that times them into FOLDER; there: FOLDER/gemm_hopper_time FOLDER.
#
#   gemm_hopper.sh FOLDER [WIDTH_SCHEDULE_CLUSTER..]    e.g. 128_2_12: see the macros of gemm_hopper.cu; default: all
set -euo pipefail
cd "$(dirname "$0")/../.."
nvcc=$(tests/cuda_host/nvcc.sh) folder=$1
shift
(($#)) || set -- {128_2,128_1,128_0,256_0}_{11,12,21,22}
mkdir -p "$folder"
for variant; do
  IFS=_ read -r width schedule cluster <<< "$variant"
  "$nvcc" -std=c++17 -O3 -cubin -arch=sm_90a -DGEMM_HOPPER_WIDTH="$width" -DGEMM_HOPPER_SCHEDULE="$schedule" \
    -DGEMM_HOPPER_CLUSTER_X="${cluster:0:1}" -DGEMM_HOPPER_CLUSTER_Y="${cluster:1}" \
    -o "$folder/w${width}_s${schedule}_c$cluster.cubin" kernels/gemm_hopper.cu
done
"${CXX:-g++}" -std=c++17 -O1 -static-libstdc++ -static-libgcc -o "$folder/gemm_hopper_time" kernels/lab/gemm_hopper_time.cpp -ldl
