# For benches/gpu.sh: builds its programs, and packs them for a machine without Rust. Must be sourced in the repository's
# root.

# Maximum size that may be carried to such a machine, including the tree but not the evidence, in MiB.
most_carried=60

# values NAME FILE: the files listed under a name in cargo's JSON messages.
values() { grep -o "\"$1\":\"[^\"]*\"" "$2" | cut -d '"' -f 4; }

# build FOLDER [with-tests]: the program gpu; with tests, also uqac, its unit and integration tests, the kernel tests and
# their data.
build() {
  local into=$1 targets=(--bench gpu ${2:+--lib --test it}) path name messages made
  messages=$(mktemp)
  # cargo test also builds a bench target, in the release profile
  cargo test --release --locked --offline --no-run --message-format=json-render-diagnostics "${targets[@]}" > "$messages" ||
    return 1
  mkdir -p "$into"
  rm -rf "$into"/{unit,it,kernel_tests,fatbins,golden,labs,lab_fatbins} # of an earlier build
  for path in $(values executable "$messages"); do
    name=$(basename "$path")
    case $name in uqac-*) name=unit ;; *) name=${name%-*} ;; esac # the library's own tests, next to the program uqac
    # without symbols and line tables: a quarter of the size
    strip -o "$into/$name" "$path" 2> /dev/null || cp "$path" "$into/$name"
  done
  {
    git rev-parse --short HEAD
    git diff --quiet HEAD -- src kernels benches || echo ', changed'
  } 2> /dev/null | tr -d '\n' > "$into/commit"
  made=$(values out_dir "$messages" | grep '/uqac-')
  rm -f "$messages"
  [[ -z ${2:-} ]] || test_data "$into" "$made"
}

# test_data FOLDER OUT_DIR: fatbins, the kernel tests that launch them, the small test models.
test_data() {
  local into=$1 fatbins=("$2"/*.fatbin) golden=${UQAC_GOLDEN:-../shared/golden}
  if [[ -f ${fatbins[0]} ]]; then
    mkdir -p "$into/fatbins" "$into/kernel_tests"
    cp "${fatbins[@]}" "$into/fatbins"
    printf '%s\n' tests/cuda_kernels/*.cpp |
      xargs -P "$(nproc)" -I {} bash -c 'source benches/gpu/pack.sh; kernel_test "$@"' _ {} "$into" || return 1
    "${NVCC:-nvcc}" -fatbin -gencode "arch=compute_90,code=[sm_90,compute_90]" -o "$into/read_rate.fatbin" benches/gpu/read_rate.cu ||
      return 1
    lab_programs "$into" on-device || return 1
  else
    echo "no nvcc: NVRTC compiles the kernels there, and their tests and the read rate are left out"
  fi
  if [[ -d $golden ]]; then
    mkdir -p "$into/golden"
    cp -r "$golden"/tiny_* "$into/golden"
  else
    echo "no $golden: tests that need its models will be skipped"
  fi
}

# kernel_test FILE FOLDER: builds a test of tests/cuda_kernels as a program that launches on the device (see on_device.h).
kernel_test() {
  local flags=(-std=c++17 -O1 -mf16c -mfma -fno-strict-aliasing -fno-extern-tls-init -pthread -w -Wno-psabi)
  "${CXX:-g++}" "${flags[@]}" -include benches/gpu/on_device.h -I tests/cuda_host -I kernels -I tests/cuda_kernels \
    "$1" -o "$2/kernel_tests/$(basename "$1" .cpp)" -ldl
}

# lab_programs FOLDER host|on-device: the labs of the stage decide, for the host run or with their kernels for a device.
lab_programs() {
  local into=$1 where=$2 nvcc=${NVCC:-nvcc} name flags
  mkdir -p "$into/labs"
  flags=(-std=c++17 -O1 -mf16c -mfma -fno-strict-aliasing -fno-extern-tls-init -pthread -w -Wno-psabi -I tests/cuda_host -I kernels)
  if [[ $where == on-device ]]; then
    mkdir -p "$into/lab_fatbins"
    cp "$into"/fatbins/{gemv,gemm_hopper,rope}.fatbin "$into/lab_fatbins"
    for name in copies gemm_ablation gemm_rotated; do
      "$nvcc" -fatbin -gencode arch=compute_90a,code=sm_90a -std=c++17 -O3 -o "$into/lab_fatbins/$name.fatbin" "kernels/lab/$name.cu" || return 1
    done
    "$nvcc" -arch=sm_90a -std=c++17 -O2 -o "$into/labs/wait_lab" benches/gpu/wait_lab.cu -L"$(dirname "$(command -v "$nvcc")")/../lib" \
      -lcudart_static -ldl -lrt -lpthread || return 1
    flags+=(-include benches/gpu/on_device.h)
    kernel_test kernels/lab/gemv_rows.cpp "$into" || return 1
    cp "$into/lab_fatbins/copies.fatbin" "$into/fatbins"
  else
    flags+=(-include tests/cuda_host/shim/main.cpp)
  fi
  printf '%s\n' rows_lab gemm_lab rotation_lab | xargs -P 2 -I {} "${CXX:-g++}" "${flags[@]}" benches/gpu/{}.cpp -o "$into/labs/{}" -ldl
}

# run_kernel_tests FOLDER LOGS: each in a process with its own time limit, four at a time; the names of failed ones come
# last.
run_kernel_tests() { each_kernel_test "$1" "$2" 4 60; }

# sanitize_kernel_tests TOOL FOLDER LOGS: the same under a tool of compute-sanitizer.
sanitize_kernel_tests() {
  each_kernel_test "$2" "$3" 8 140 compute-sanitizer --tool "$1" --report-api-errors no --print-limit 20 --error-exitcode 9
}

# each_kernel_test FOLDER LOGS AT_ONCE SECONDS COMMAND...
each_kernel_test() {
  local folder=$1 logs=$2 at_once=$3 seconds=$4
  shift 4
  rm -f "$logs/failed-kernel-tests"
  printf '%s\n' "$folder"/kernel_tests/* | xargs -P "$at_once" -I {} bash -c '
    test=$1 folder=$2 logs=$3 seconds=$4 name=${1##*/} code=0 begun=$SECONDS
    shift 4
    timeout -k 2 "$seconds" "$@" "$test" "$folder/fatbins" > "$logs/$name.log" 2>&1 || code=$?
    echo "-- $name: exit code $code, $((SECONDS - begun)) s"
    tail -n 20 "$logs/$name.log"
    ((code == 0)) || echo "$name" >> "$logs/failed-kernel-tests"' _ {} "$folder" "$logs" "$seconds" "$@"
  [[ ! -s $logs/failed-kernel-tests ]] || { echo "failed: $(tr '\n' ' ' < "$logs/failed-kernel-tests")"; return 1; }
}

# pack FILE [ARCHITECTURE]: everything for `gpu.sh --binaries FILE`.
pack() {
  local folder mib
  folder=$(mktemp -d)
  if [[ -n ${2:-} ]]; then export UQAC_CUDA_ARCHITECTURES=$2; fi
  # a dictionary larger than a program: the next program shares most of its code
  build "$folder" with-tests && tar -C "$folder" -c . | xz --lzma2=preset=6,dict=192MiB > "$1" || { rm -rf "$folder"; return 1; }
  du -ah --apparent-size "$folder" | sort -k 2 | grep -v 'golden/tiny_.*/'
  rm -rf "$folder"
  mib=$((($(git ls-files -z ':!benches/evidence' | xargs -0 cat | wc -c) + $(stat -c %s "$1")) >> 20))
  echo "$1: $(($(stat -c %s "$1") >> 20)) MiB, $mib MiB with the tree but benches/evidence (at most $most_carried)"
  ((mib <= most_carried))
}
