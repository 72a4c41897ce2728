#!/usr/bin/env bash
# Type-checks the library and the program for the systems that continuous integration does not run on: Linux and macOS on 64-bit
# Arm, Windows. The standard library is checked from source, because only Debian's compiler brings it along.
#
#   check.sh [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/../.."
targets=("${@:-aarch64-unknown-linux-gnu aarch64-apple-darwin x86_64-pc-windows-gnu}")
if ! RUSTC=$(tests/targets/rustc.sh); then
  echo "SKIPPED: other systems: Debian's packages cannot be had"
  exit 0
fi
# the source's features that only its own version of the compiler has; kept beside the compiler, as the result for a source is
export RUSTC RUSTC_BOOTSTRAP=1 NVCC=
PATH=$(dirname "$RUSTC")/root/usr/bin:$PATH # dlltool
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$(dirname "$RUSTC")/target}
for target in ${targets[@]}; do
  RUSTFLAGS="-D warnings" cargo check -Zbuild-std=std,panic_unwind,panic_abort --locked --quiet --target "$target" --lib --bins
  echo "$target: no warning"
done
