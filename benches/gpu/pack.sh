# For benches/gpu.sh: builds the programs that it runs, and packs them for a machine without Rust. To be sourced in the
# repository's root.

# What may be carried to such a machine at once.
most_bytes=$((64 << 20))

# The files that are in a JSON message of cargo under a name: values NAME FILE.
values() { grep -o "\"$1\":\"[^\"]*\"" "$2" | cut -d '"' -f 4; }

# build FOLDER [with-tests]: the program gpu; with tests, those of the CUDA backend, the kernels' own, what these read,
# and uqac itself.
build() {
  local into=$1 targets=(--bench gpu) test path name messages
  # those that count the host-run driver's calls cannot run on a real one
  if [[ ${2:-} ]]; then
    for test in $(grep -L 'cuda_host::calls' tests/cuda_*.rs); do targets+=(--test "$(basename "$test" .rs)"); done
  fi
  messages=$(mktemp)
  # a bench target is built by `cargo test` as well, in the release profile
  cargo test --release --locked --offline --no-run --message-format=json-render-diagnostics "${targets[@]}" > "$messages" ||
    return 1
  mkdir -p "$into"
  for path in $(values executable "$messages"); do
    name=$(basename "$path")
    # without symbols and line tables: a quarter of the size to carry
    strip -o "$into/${name%-*}" "$path" 2> /dev/null || cp "$path" "$into/${name%-*}"
  done
  {
    git rev-parse --short HEAD
    git diff --quiet HEAD -- src kernels benches || echo ', changed'
  } 2> /dev/null | tr -d '\n' > "$into/commit"
  [[ -z ${2:-} ]] || test_data "$into" "$(values out_dir "$messages" | grep '/uqac-')"
  rm -f "$messages"
}

# test_data FOLDER OUT_DIR: fatbins, the kernels' tests that launch them, the oracle's small models.
test_data() {
  local into=$1 fatbins=("$2"/*.fatbin) golden=${UQAC_GOLDEN:-../shared/golden}
  if [[ -f ${fatbins[0]} ]]; then
    mkdir -p "$into/fatbins" "$into/kernel_tests"
    cp "${fatbins[@]}" "$into/fatbins"
    printf '%s\n' tests/cuda_kernels/*.cpp | xargs -P "$(nproc)" -I {} bash -c 'source benches/gpu/pack.sh; kernel_test "$@"' _ {} "$into"
  else
    echo "no nvcc: the kernels are left to NVRTC, and their own tests are left out"
  fi
  if [[ -d $golden ]]; then
    mkdir -p "$into/golden"
    cp -r "$golden"/tiny_* "$into/golden"
  else
    echo "no $golden: tests that need the oracle's models will say that they are skipped"
  fi
}

# kernel_test FILE FOLDER: a test of tests/cuda_kernels as a program that launches on the device (see on_device.h).
kernel_test() {
  local flags=(-std=c++17 -O1 -fno-strict-aliasing -fno-extern-tls-init -pthread -w)
  "${CXX:-g++}" "${flags[@]}" -include benches/gpu/on_device.h -I tests/cuda_host -I kernels -I tests/cuda_kernels \
    "$1" -o "$2/kernel_tests/$(basename "$1" .cpp)" -ldl
}

# pack FOLDER: everything for `gpu.sh --binaries FOLDER`.
pack() {
  build "$1" with-tests || return 1
  local bytes
  bytes=$(du -sb "$1" | cut -f 1)
  (cd "$1" && du -ab . | sort -k 2 | awk '{printf "%10d  %s\n", $1, $2}' | grep -v 'golden/tiny_.*/')
  echo "$((bytes >> 20)) MiB of $((most_bytes >> 20)) that may be carried"
  ((bytes <= most_bytes))
}
