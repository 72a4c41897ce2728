#!/usr/bin/env bash
# Everything there is to find out on a machine with a GPU, without a network: the kernels' self-test first, then the CUDA
# tests on the installed driver and under compute-sanitizer, the measurements of benches/gpu.rs beside the same work through transformers, and a profile.
# A step that fails is reported and the next goes on. Writes a dated JSON and a Markdown table.
# Exit code: 0 if every step went well, 1 if one did not, 2 if nothing could be run.
#
# usage: benches/gpu.sh [options]
#   --device D        auto, cpu, cuda or cuda:N (default auto); cpu tries the script out without a GPU
#   --stages S,..     of correct (tests, sanitizers, agreement with the CPU), figures (the measurements and the rivals),
#                     profile (gaps, kernels, counters) and long (a response of 32k tokens, if there is time for it);
#                     default: all, in this order
#   --shapes S,..     the first is measured in full, the others decode only (default: all that benches/gpu.rs knows)
#   --quick           shrunken shapes: whether everything runs, in about a minute
#   --budget S        seconds for everything, the build included (default 600)
#   --k-cache T       types of the cached keys and values: f32, f16 or bf16 (default: the engine's)
#   --v-cache T
#   --out FOLDER      where results go (default benches/results)
#   --folder FOLDER   where checkpoints of random weights are written, 36 GB, and that of the first shape left (default:
#                     a new folder in /dev/shm if that has room, else among the temporary files; removed at the end)
#   --pack DIR        only build, and put everything into DIR that --binaries needs elsewhere
#   --binaries DIR    use what is there instead of building (a machine without Rust)
# Kernels: with nvcc ($NVCC, $CUDA_HOME or PATH) at build time they are built in; otherwise NVRTC compiles them there.
# $CUPTI names libcupti where it is not found. The oracle's small models are taken from $UQAC_GOLDEN or ../shared/golden.
set -uo pipefail
from=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

fail() { echo "error: $*" >&2; exit 2; }
command_line="benches/gpu.sh $*"
device=auto stages=correct,figures,profile,long shapes=llama-3.1-8b,llama-3.2-1b,qwen2.5-7b,gemma-2-9b quick="" budget=600
out=benches/results folder="" binaries="" pack="" k_cache="" v_cache=""
while (($#)); do
  case $1 in
    --quick) quick=--quick ;;
    --device | --stages | --shapes | --budget | --k-cache | --v-cache | --out | --folder | --binaries | --pack)
      (($# >= 2)) || fail "$1 needs a value"
      option=${1#--} value=$2
      [[ ! $option =~ ^(out|folder|pack|binaries)$ || $value == /* ]] || value=$from/$value
      declare "${option/-/_}=$value"
      shift ;;
    -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) fail "unknown option $1 (--help lists them)" ;;
  esac
  shift
done
[[ $budget =~ ^[0-9]+$ ]] || fail "--budget $budget: expected seconds"
for name in ${stages//,/ }; do
  [[ $name =~ ^(correct|figures|profile|long)$ ]] || fail "--stages: unknown stage $name (correct, figures, profile, long)"
done
first_shape=${shapes%%,*} other_shapes=${shapes#"$first_shape"}
caches=(${k_cache:+--k-cache "$k_cache"} ${v_cache:+--v-cache "$v_cache"})

started=$SECONDS
work=$(mktemp -d)
owned=()
trap 'rm -rf "$work" "${owned[@]}"' EXIT
about=() results=() failures=0
left() { echo $((budget - (SECONDS - started))); }
have() { command -v "$1" > /dev/null 2>&1; }
wanted() { [[ ,$stages, == *,$1,* ]]; }
note() { about+=(--about "$1=$2"); }
skip() { printf '\n== %s: SKIPPED: %s\n' "$1" "$2"; note "step $1" "skipped: $2"; }

# step NAME SECONDS COMMAND...: runs it for at most so long, and no longer than what is left.
step() {
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
    note "step $name" "ok, $((SECONDS - begun)) s"
  else
    failures=$((failures + 1))
    local why="exit code $code"
    ((code == 124 || code == 137)) && why="cut off after $cap s"
    printf '== %s FAILED: %s\n' "$name" "$why"
    note "step $name" "FAILED, $why: $(grep -v '^ *$' "$work/last.log" | tail -n 1 | cut -c -160)"
  fi
  return "$code"
}

# ---- programs ----

source benches/gpu/pack.sh

if [[ -n $pack ]]; then
  pack "$pack"
  exit
fi
if [[ -z $binaries ]]; then
  binaries=$work/bin
  mkdir -p "$binaries"
  # a step is a program of its own
  step build 420 bash -c "source benches/gpu/pack.sh && build '$binaries' $(wanted correct && echo with-tests)"
fi
gpu=$binaries/gpu
[[ -x $gpu ]] || fail "there is no program $gpu"

# ---- the machine ----

card=$(nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem --format=csv,noheader 2> /dev/null)
[[ $device != auto ]] || device=$([[ -n $card ]] && echo cuda || echo cpu)
on_gpu() { [[ $device != cpu ]]; }
named=$("$gpu" device --device "$device") || fail "no measurements without the device"
echo "$named"
if on_gpu; then
  # a libcuda that runs kernels on the CPU, for tests, is no device to measure
  if [[ -z $card ]]; then
    [[ -n $quick ]] || fail "nvidia-smi lists no GPU: $named can be tried out with --quick only"
  elif ! grep -qF "${named%%, *}" <<< "$card"; then
    fail "libcuda drives $named, but nvidia-smi lists $card: is LD_LIBRARY_PATH set?"
  fi
  note card "${card:-none that nvidia-smi lists}"
fi
note date "$(date -u +%FT%TZ)"
note command "$command_line"
note host "$(nproc) cores, $(awk '/MemTotal/ {printf "%.0f GiB", $2 / 1048576}' /proc/meminfo), $(uname -sr)"
note commit "$(cat "$binaries/commit")"
if [[ -z $folder ]]; then
  free=$(df --output=avail -k /dev/shm 2> /dev/null | tail -n 1)
  if [[ -z $quick ]] && ((${free:-0} > 40 << 20)); then folder=$(mktemp -d /dev/shm/uqac.XXXXXX); else folder=$work/models; fi
  owned+=("$folder")
fi
torch=$(python3 benches/rivals_gpu.py --device "$device" --versions 2>&1) && has_torch=yes || has_torch=""

# measure NAME SECONDS OPTIONS...: benches/gpu.rs, which saves what it has after every stage of its own.
matrix=()
measure() {
  local name=$1 cap=$2 limit
  shift 2
  results+=("$work/$name.json")
  limit=$(left)
  ((limit > cap)) && limit=$cap
  # it stops by itself before it is cut off
  step "$name" "$cap" "$gpu" run --device "$device" $quick "${caches[@]}" --folder "$folder" --json "$work/$name.json" \
    --budget "$((limit > 40 ? limit - 20 : 20))" "${matrix[@]}" "$@"
}

# ---- first contact ----

# Whether every kernel answers right, and what the figures should be: the report has the predictions beside them.
predictions=()
first_contact() {
  local shape model=""
  if ! on_gpu || [[ ! -x $binaries/uqac ]]; then
    skip self-test "no GPU, or no program uqac in $binaries"
    return
  fi
  step self-test 60 "$binaries/uqac" devices --check
  case $card in *H100*) model=h100 ;; *H200*) model=h200 ;; *B200*) model=b200 ;; *4090*) model=4090 ;; esac
  [[ -n $model && -z $quick ]] || return 0
  for shape in ${shapes//,/ }; do
    if "$binaries/uqac" bench --predict "$model" --shape "$shape" --json > "$work/prediction-$shape.json"; then
      predictions+=(--predictions "$work/prediction-$shape.json")
    fi
  done
}

# ---- correct ----

correct() {
  measure agreement 90 --shapes "$shapes" --stages agreement
  if ! on_gpu; then
    skip tests "no GPU"
    return
  fi
  [[ ! -x $binaries/uqac ]] || step devices 30 "$binaries/uqac" devices
  export UQAC_TEST_DRIVER=installed
  [[ ! -d $binaries/golden ]] || export UQAC_GOLDEN=$binaries/golden
  local module modules tests=$binaries/it kernels=("$binaries"/kernel_tests/*) tool cap=100
  modules=$("$tests" --list 2> /dev/null | grep -o '^cuda_[a-z]*' | sort -u)
  # both sanitizers end early if much else is to follow
  ! wanted figures || cap=45
  [[ -n $modules ]] || skip tests "no CUDA tests in $binaries"
  for module in $modules; do step "$module" 90 "$tests" --test-threads 4 "$module::"; done
  [[ -x ${kernels[0]} ]] || skip kernel-tests "none in $binaries (g++ and nvcc are needed to build them)"
  [[ ! -x ${kernels[0]} ]] || step kernel-tests 120 bash -c \
    'printf "%s\n" "${@:2}" | xargs -P "$(($(nproc) < 4 ? $(nproc) : 4))" -I {} env {} "$1"' _ "$binaries/fatbins" "${kernels[@]}"
  for tool in memcheck racecheck; do
    if ! have compute-sanitizer; then
      skip "$tool" "compute-sanitizer is not installed"
      continue
    fi
    local sanitizer=(compute-sanitizer --tool "$tool" --error-exitcode 9)
    [[ -z $modules ]] || step "$tool-models" "$cap" "${sanitizer[@]}" "$tests" --test-threads 1 \
      cuda_backend::every_family cuda_backend::batches
    step "$tool-shapes" "$cap" "${sanitizer[@]}" "$gpu" run --device "$device" --quick --rounds 1 "${caches[@]}" \
      --shapes "$shapes" --stages agreement,decode,answered,batch --json "$work/$tool.json" --budget "$((cap - 15))"
  done
}

# ---- figures ----

# rivals NAME SECONDS OPTIONS...: the first shape through transformers.
rivals() {
  local name=$1 cap=$2
  shift 2
  results+=("$work/$name.json")
  step "$name" "$cap" python3 benches/rivals_gpu.py --device "$device" $quick --configs "$work/configs" \
    --json "$work/$name.json" --shapes "$first_shape" "$@"
}

figures() {
  if [[ -n $has_torch ]]; then
    note "torch and transformers" "$torch"
    step matrix-rate 40 python3 benches/rivals_gpu.py --device "$device" $quick --matrix-rate "$work/rate" &&
      matrix=(--matrix-rate "$(< "$work/rate")")
  else
    skip rivals "${torch##*$'\n'}"
  fi
  "$gpu" configs "$work/configs" $quick
  measure "$first_shape" 240 --shapes "$first_shape" --stages decode,answered,prefill,batch,deep,lengths --keep
  [[ -z $has_torch ]] || rivals rivals-generation 90 --work sdpa
  [[ -z $other_shapes ]] || measure other-shapes 120 --shapes "${other_shapes#,}" --stages decode
  [[ -z $has_torch ]] || rivals rivals-attentions 60 --work attentions
}

# ---- profile ----

# Where libcupti may be: named, with the toolkit, with torch.
cupti() {
  local root found
  for found in "${CUPTI:-}" /usr/local/cuda/extras/CUPTI/lib64/libcupti.so /usr/local/cuda/lib64/libcupti.so; do
    [[ -f $found ]] && echo "$found" && return
  done
  root=$(python3 -c 'import nvidia; print(*nvidia.__path__)' 2> /dev/null) || return
  find $root -name 'libcupti.so*' | sort | tail -n 1
}

profile() {
  local found counters
  found=$(cupti)
  if ! on_gpu; then
    skip profile "no GPU"
    return
  fi
  UQAC_EARLY_STARTS=0 measure one-by-one 60 --shapes "$first_shape" --stages decode --suffix ", one by one" --keep
  if [[ -n $found ]]; then
    measure timeline 60 --shapes "$first_shape" --stages timeline --cupti "$found" --keep
  else
    skip timeline "libcupti is not found (CUPTI=FILE names it)"
  fi
  if have ncu; then
    # two layers are enough: the kernels of the others are the same
    counters=gpu__time_duration.sum,dram__bytes_read.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed
    counters+=,sm__throughput.avg.pct_of_peak_sustained_elapsed,sm__warps_active.avg.pct_of_peak_sustained_active
    counters+=,launch__registers_per_thread,launch__grid_size
    mkdir -p "$out"
    step counters 120 ncu --clock-control none --csv --page raw --metrics "$counters" --log-file "$out/${stamp}_ncu.csv" \
      "$gpu" run --device "$device" $quick "${caches[@]}" --shapes "$first_shape" --layers 2 --stages steps
  else
    skip counters "ncu is not installed"
  fi
}

# ---- long ----

long() {
  if (($(left) > 40)); then
    # says itself that it is skipped where the time is too short for it
    measure whole-response "$(left)" --shapes "$first_shape" --stages whole --keep
  else
    skip whole-response "no time left"
  fi
}

stamp=$(date -u +%F_%H%M%S)_${device/:/}${quick:+_quick}
first_contact
for name in correct figures profile long; do
  if wanted "$name"; then "$name"; fi
done

# ---- the record ----

if "$gpu" report --json "$out/$stamp.json" --markdown "$out/$stamp.md" "${about[@]}" "${predictions[@]}" "${results[@]}"; then
  printf '\n'
  cat "$out/$stamp.md"
  printf '\n%d s of %d s; written to %s.json and .md\n' "$((SECONDS - started))" "$budget" "$out/$stamp"
else
  failures=$((failures + 1))
fi
if ((failures > 0)); then
  printf '%d steps failed or had no time\n' "$failures"
  exit 1
fi
