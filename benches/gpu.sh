#!/usr/bin/env bash
# Everything there is to find out on a machine with a GPU, in one run that fits ten minutes and needs no network: the
# CUDA tests on the real driver, compute-sanitizer, the measurements of benches/gpu.rs, and the same work through
# transformers where that is installed. Stages run in order of value; one that fails is reported and the next goes on.
# Writes a dated JSON and a Markdown table. Exit code: 0 if every stage went well.
#
# usage: benches/gpu.sh [options]
#   --device D       auto, cpu, cuda or cuda:N (default auto); cpu tries the script out without a GPU
#   --quick          shrunken shapes: whether everything runs, in under a minute
#   --budget S       seconds for everything, the build included (default 600)
#   --out FOLDER     where results go (default benches/results)
#   --folder FOLDER  where checkpoints of random weights are written, 36 GB (default: /dev/shm if it is large enough,
#                    else the folder for temporary files)
#   --binaries DIR   use the programs there instead of building (a machine without Rust)
#   --pack DIR       only build, and copy the programs to DIR for --binaries elsewhere
# Kernels: with nvcc ($NVCC, $CUDA_HOME or PATH) at build time they are built in; otherwise NVRTC compiles them there.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

command_line="benches/gpu.sh $*"
device=auto quick="" budget=600 out=benches/results folder="" binaries="" pack=""
while (($#)); do
  case $1 in
    --quick) quick=--quick ;;
    --device | --budget | --out | --folder | --binaries | --pack)
      (($# >= 2)) || { echo "error: $1 needs a value" >&2; exit 2; }
      declare "${1#--}=$2"
      shift ;;
    -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "error: unknown option $1 (--help lists them)" >&2; exit 2 ;;
  esac
  shift
done
[[ $budget =~ ^[0-9]+$ ]] || { echo "error: --budget $budget: expected seconds" >&2; exit 2; }

started=$SECONDS
work=$(mktemp -d)
owned=()
trap 'rm -rf "$work" "${owned[@]}"' EXIT
about=() results=() failures=0
left() { echo $((budget - (SECONDS - started))); }
have() { command -v "$1" > /dev/null 2>&1; }
skip() { printf '\n== %s: SKIPPED: %s\n' "$1" "$2"; about+=(--about "stage $1=skipped: $2"); }

# stage NAME SECONDS COMMAND...: runs it for at most so long, and no longer than what is left.
stage() {
  local name=$1 cap=$2 begun=$SECONDS code=0
  shift 2
  (($(left) < cap)) && cap=$(left)
  if ((cap < 5)); then
    failures=$((failures + 1))
    skip "$name" "no time left"
    return 1
  fi
  printf '\n== %s (at most %d s, %d s left)\n' "$name" "$cap" "$(left)"
  timeout -k 5 "$cap" "$@" 2>&1 | tee "$work/last.log" || code=${PIPESTATUS[0]}
  if ((code == 0)); then
    about+=(--about "stage $name=ok, $((SECONDS - begun)) s")
  else
    failures=$((failures + 1))
    local why="exit code $code"
    ((code == 124 || code == 137)) && why="cut off after $cap s"
    printf '== %s FAILED: %s\n' "$name" "$why"
    about+=(--about "stage $name=FAILED, $why: $(grep -v '^ *$' "$work/last.log" | tail -n 1 | cut -c -160)")
  fi
  return "$code"
}

# ---- programs ----

# Tests that count the host-run driver's calls cannot run on a real one.
cuda_tests() { grep -L 'cuda_host::calls' tests/cuda_*.rs 2> /dev/null | xargs -r -n 1 basename -s .rs; }

executables() { sed -n 's/^ *Executable .*(\(.*\))$/\1/p' "$work/build.log"; }

build() {
  local targets=(--bench gpu) test
  for test in $(cuda_tests); do targets+=(--test "$test"); done
  # a bench target is built by `cargo test` as well, in the release profile
  cargo test --release --offline --no-run "${targets[@]}" 2>&1 | tee "$work/build.log" | grep -v '^ *Compiling'
  ((PIPESTATUS[0] == 0)) || return 1
  mkdir -p "$binaries"
  local path name
  for path in $(executables); do
    name=$(basename "$path")
    # without line tables: a tenth of the size to carry
    if have strip; then strip --strip-debug -o "$binaries/${name%-*}" "$path"; else cp "$path" "$binaries/${name%-*}"; fi
  done
}

if [[ -n $pack ]]; then
  binaries=$pack
  build || exit 1
  ls -l "$pack"
  exit 0
fi
if [[ -z $binaries ]]; then
  binaries=$work/bin
  # the functions go with it: a stage is a program of its own
  export -f build cuda_tests executables have
  export work binaries
  stage build 420 bash -c build || true
fi
gpu=$binaries/gpu
[[ -x $gpu ]] || { echo "error: there is no program $gpu" >&2; exit 1; }

# ---- the machine ----

if [[ $device == auto ]]; then
  device=cpu
  have nvidia-smi && nvidia-smi -L 2> /dev/null | grep -q GPU && device=cuda
fi
on_gpu() { [[ $device != cpu ]]; }
about+=(--about "date=$(date -u +%FT%TZ)" --about "command=$command_line")
about+=(--about "host=$(nproc) cores, $(awk '/MemTotal/ {printf "%.0f GiB", $2 / 1048576}' /proc/meminfo), $(uname -sr)")
commit=$(git rev-parse --short HEAD 2> /dev/null)
[[ -n $commit ]] && about+=(--about "commit=$commit$(git diff --quiet HEAD -- src kernels || echo ', changed')")
if on_gpu && have nvidia-smi; then
  card=$(nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem --format=csv,noheader)
  about+=(--about "card=$card")
  echo "$card"
fi
if [[ -z $folder ]]; then
  free=$(df --output=avail -k /dev/shm 2> /dev/null | tail -n 1)
  if [[ -z $quick ]] && ((${free:-0} > 48 << 20)); then folder=$(mktemp -d /dev/shm/uqac.XXXXXX); else folder=$work/models; fi
  owned+=("$folder")
fi

# measure NAME SECONDS OPTIONS...: benches/gpu.rs, which saves what it has after every stage of its own.
measure() {
  local name=$1 cap=$2 limit
  shift 2
  results+=("$work/$name.json")
  limit=$(left)
  ((limit > cap)) && limit=$cap
  # it stops by itself before it is cut off
  stage "$name" "$cap" "$gpu" run --device "$device" $quick --folder "$folder" --json "$work/$name.json" \
    --budget "$((limit > 40 ? limit - 20 : 20))" "${matrix[@]}" "$@"
}

# rivals NAME SECONDS OPTIONS...: the same shapes through transformers.
rivals() {
  local name=$1 cap=$2
  shift 2
  results+=("$work/$name.json")
  stage "$name" "$cap" python3 benches/rivals_gpu.py --device "${device%%:*}" $quick --configs "$work/configs" \
    --json "$work/$name.json" "$@"
}

# ---- correct first ----

matrix=()
if on_gpu; then
  export UQAC_TEST_DRIVER=installed
  tests=$(find "$binaries" -maxdepth 1 -name 'cuda_*' -perm -u+x | sort)
  [[ -n $tests ]] || skip tests "no CUDA test programs in $binaries"
  for test in $tests; do stage "tests-$(basename "$test")" 60 "$test" --test-threads 4; done
  if have compute-sanitizer; then
    for tool in memcheck racecheck; do
      stage "$tool" 75 compute-sanitizer --tool "$tool" --error-exitcode 9 "$gpu" run --device "$device" --quick \
        --rounds 1 --stages agreement,decode,answered,batch --json "$work/$tool.json" --budget 55
    done
  else
    skip sanitizer "compute-sanitizer is not installed"
  fi
else
  skip tests "no GPU"
  skip sanitizer "no GPU"
fi

# ---- the figures ----

"$gpu" configs "$work/configs" $quick
torch=$(python3 -c 'import torch, transformers; print(torch.__version__, transformers.__version__)' 2> /dev/null)
if [[ -n $torch ]]; then
  about+=(--about "torch and transformers=$torch")
  stage matrix-rate 40 python3 benches/rivals_gpu.py --device "${device%%:*}" $quick --matrix-rate "$work/rate" &&
    matrix=(--matrix-rate "$(< "$work/rate")")
else
  skip rivals "torch and transformers are not installed for $(command -v python3 || echo python3)"
fi
measure llama-8b 240 --shapes llama-3.1-8b --keep
[[ -n $torch ]] && rivals rivals-generation 70 --shapes llama-3.1-8b --work sdpa
measure other-shapes 120 --shapes llama-3.2-1b,qwen2.5-7b,gemma-2-9b --stages agreement,decode
[[ -n $torch ]] && rivals rivals-attentions 60 --shapes llama-3.1-8b --work attentions
# the rest of the time, if it is enough for a whole long response
measure whole-response "$(left)" --shapes llama-3.1-8b --stages whole

# ---- the record ----

stamp=$(date -u +%F_%H%M)_${device/:/}${quick:+_quick}
if "$gpu" report --json "$out/$stamp.json" --markdown "$out/$stamp.md" "${about[@]}" "${results[@]}"; then
  printf '\n'
  cat "$out/$stamp.md"
  printf '\n%d s of %d s; written to %s.json and .md\n' "$((SECONDS - started))" "$budget" "$out/$stamp"
else
  failures=$((failures + 1))
fi
if ((failures > 0)); then
  printf '%d stages failed or had no time\n' "$failures"
  exit 1
fi
