#!/usr/bin/env bash
# CPU seconds by crate of a build into an empty target folder, as a Markdown table.
#
# usage: benches/build.sh [cargo arguments]     default: build --release --locked
set -euo pipefail

# As cargo's RUSTC_WRAPPER: runs rustc and adds a line "user system crate[, test]" to the log.
if [[ ${UQAC_BUILD_LOG:-} ]]; then
  crate="" previous="" kind=""
  for word in "$@"; do
    [[ $previous != --crate-name ]] || crate=$word
    [[ $word != --test ]] || kind=", test"
    previous=$word
  done
  TIMEFORMAT="%U %S $crate$kind"
  { time "$@" 2>&3; } 3>&2 2>> "$UQAC_BUILD_LOG"
  exit
fi

script=$(realpath "${BASH_SOURCE[0]}")
cd "$(dirname "$script")/.."
(($#)) || set -- build --release --locked
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
begun=$SECONDS
UQAC_BUILD_LOG=$work/log RUSTC_WRAPPER=$script CARGO_TARGET_DIR=$work/target cargo "$@"
elapsed=$((SECONDS - begun))
printf '| crate | CPU s |\n| --- | --- |\n'
# a crate may be compiled more than once: as its build script, and in two versions
awk '$3 != "" && $3 != "___" && $3 != "build_script_build" {
       seconds = $1 + $2; total += seconds; sum[$3 ($4 ? " " $4 : "")] += seconds
     }
     END { for (name in sum) if (sum[name] >= 0.5) printf "| %s | %.1f |\n", name, sum[name]
           printf "| all | %.1f |\n", total }' "$work/log" | sort -t '|' -k 3 -rn
echo
echo "cargo $*: $elapsed s on $(nproc) cores"
