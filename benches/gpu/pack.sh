# For benches/gpu.sh: builds the programs that it runs, and packs them for a machine without Rust. To be sourced in the
# repository's root.

# The files that are in a JSON message of cargo under a name: values NAME FILE.
values() { grep -o "\"$1\":\"[^\"]*\"" "$2" | cut -d '"' -f 4; }

# build FOLDER [with-tests]: the program gpu; with tests, the integration tests, the kernels' own, what these read, and
# uqac itself.
build() {
  local into=$1 targets=(--bench gpu ${2:+--test it}) path name messages
  messages=$(mktemp)
  # a bench target is built by `cargo test` as well, in the release profile
  cargo test --release --locked --offline --no-run --message-format=json-render-diagnostics "${targets[@]}" > "$messages" ||
    return 1
  mkdir -p "$into"
  rm -rf "$into"/{it,kernel_tests,fatbins,golden} # of an earlier build
  for path in $(values executable "$messages"); do
    name=$(basename "$path")
    # without symbols and line tables: a quarter of the size to carry
    strip -o "$into/${name%-*}" "$path" 2> /dev/null || cp "$path" "$into/${name%-*}"
  done
  {
    git rev-parse --short HEAD
    git diff --quiet HEAD -- src kernels benches || echo ', changed'
  } 2> /dev/null | tr -d '\n' > "$into/commit"
  local made
  made=$(values out_dir "$messages" | grep '/uqac-')
  rm -f "$messages"
  [[ -z ${2:-} ]] || test_data "$into" "$made"
}

# test_data FOLDER OUT_DIR: fatbins, the kernels' tests that launch them, the oracle's small models.
test_data() {
  local into=$1 fatbins=("$2"/*.fatbin) golden=${UQAC_GOLDEN:-../shared/golden}
  if [[ -f ${fatbins[0]} ]]; then
    mkdir -p "$into/fatbins" "$into/kernel_tests"
    cp "${fatbins[@]}" "$into/fatbins"
    printf '%s\n' tests/cuda_kernels/*.cpp |
      xargs -P "$(nproc)" -I {} bash -c 'source benches/gpu/pack.sh; kernel_test "$@"' _ {} "$into" || return 1
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
  local flags=(-std=c++17 -O1 -fno-strict-aliasing -fno-extern-tls-init -pthread -w -Wno-psabi)
  "${CXX:-g++}" "${flags[@]}" -include benches/gpu/on_device.h -I tests/cuda_host -I kernels -I tests/cuda_kernels \
    "$1" -o "$2/kernel_tests/$(basename "$1" .cpp)" -ldl
}

# pack FOLDER: everything for `gpu.sh --binaries FOLDER`.
pack() {
  build "$1" with-tests || return 1
  du -ah --apparent-size "$1" | sort -k 2 | grep -v 'golden/tiny_.*/'
}
