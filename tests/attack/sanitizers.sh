#!/usr/bin/env bash
# The unit tests of the CPU backend and of the file parsers under the address and thread sanitizers, on a stable compiler
# (RUSTC_BOOTSTRAP=1), and two of its modules under Miri: tests/attack/sanitizers.sh [address|thread ...]. Anything that the toolchain
# lacks is skipped.
set -euo pipefail
cd "$(dirname "$0")/../.."
kinds=("$@")
if [[ ${#kinds[@]} -eq 0 ]]; then kinds=(address thread); fi
triple=$(rustc -vV | sed -n 's/^host: //p')
runtime="$(rustc --print sysroot)/lib/rustlib/$triple/lib"
for kind in "${kinds[@]}"; do
  case $kind in
    address) library=asan; flags="-Zsanitizer=address"; tests=(backend::cpu model) ;;
    # the standard library is not instrumented, which requires a second option here and tsan.supp at run time
    thread) library=tsan; flags="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer"; tests=(backend::cpu) ;;
    *) echo "expected address or thread, found $kind" >&2; exit 2 ;;
  esac
  if ! compgen -G "$runtime/librustc*_rt.$library.a" > /dev/null; then
    echo "SKIPPED: the $kind sanitizer: this toolchain has no runtime for it in $runtime"
    continue
  fi
  mkdir -p "target/$library"
  # a container may forbid a sanitizer's changes to its own address space
  # shellcheck disable=SC2086 # words
  if ! { echo 'fn main() {}' | RUSTC_BOOTSTRAP=1 rustc $flags --target "$triple" -o "target/$library/probe" - && "target/$library/probe"; }; then
    echo "SKIPPED: the $kind sanitizer: an empty program does not run with it here"
    continue
  fi
  echo "== $kind sanitizer"
  # not optimized: the optimizer would take ten minutes for the instrumented, unrolled kernels
  TSAN_OPTIONS="suppressions=$PWD/tests/attack/tsan.supp" RUSTC_BOOTSTRAP=1 RUSTFLAGS=$flags NVCC='' \
    cargo test --lib --config profile.dev.opt-level=0 --target "$triple" --target-dir "target/$library" -- "${tests[@]}"
done

# Disjoint and the portable level under Miri, which requires a nightly toolchain
if cargo miri --version > /dev/null 2>&1; then
  MIRIFLAGS=-Zmiri-disable-isolation NVCC='' cargo miri test --lib --target-dir target/miri -- backend::cpu::threads backend::cpu::simd
else
  echo "SKIPPED: Miri: this toolchain has no cargo-miri"
fi
