#!/usr/bin/env bash
# A session on a machine with a GPU, without a network: self-test and kernel tests, the measurements of benches/gpu.rs, the
# same work through torch and transformers, a profile, the CUDA tests, compute-sanitizer. Each step has its own time limit;
# a step that fails, hangs or faults is recorded and the next one starts. After every step OUT/DATE.json and .md hold all
# results so far, and OUT/DATE.log has all output, so that an interrupted session keeps its results.
# Exit code: 0 if every step passed, 1 if one did not, 2 if nothing could run.
#
# usage: benches/gpu.sh [options]
#   --device D        auto, cpu, cuda or cuda:N (default auto); cpu is a trial without a GPU
#   --stages S,..     in this order (default: all)
#                       contact   self-test, kernel tests, golden answers, agreement with the CPU; if the self-test hangs
#                                 nothing else runs
#                       figures   rates of the machine, then the measurements
#                       rivals    torch.compile with a CUDA graph, transformers
#                       profile   kernels one by one, timelines, hardware counters
#                       tests     the CUDA tests on the installed driver
#                       sanitize  memcheck, racecheck and synccheck of every kernel test
#                       long      a response of 32k tokens, if time is left
#                       decide    only if named: what to build next, each decision with its threshold and figure: labs, walks of
#                                 attention, timelines, figures of batches, racecheck of the lab's kernels
#   --measure M,..    measurements of the first shape (default decode,answered,prefill,batch,deep,lengths; `gpu run --help`)
#   --shapes S,..     the first is measured in full, the others decode only (default: all that benches/gpu.rs has)
#   --rounds N        rounds of each comparison
#   --quick           shrunken shapes: does everything run? about a minute
#   --budget S        seconds for everything, the build included (default 600)
#   --k-cache T       types of the cached keys and values: f32, f16 or bf16 (default: the engine's)
#   --v-cache T
#   --out FOLDER      results (default benches/results)
#   --folder FOLDER   checkpoints of random weights, 36 GB (default: a new folder in /dev/shm or the temporary folder,
#                     removed at the end)
#   --pack FILE       only build, and write all programs to FILE (.tar.xz) for --binaries on a machine without Rust
#   --arch A          the GPU architecture of a pack, such as 90a (default: all)
#   --binaries PATH   a pack, or the folder that it unpacks to, instead of building
# Kernels are built in if nvcc ($NVCC, $CUDA_HOME or PATH) is available at build time; otherwise NVRTC compiles them on
# first use. $CUPTI names libcupti, $UQAC_GOLDEN the small test models (default ../shared/golden).
set -uo pipefail
from=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

fail() { echo "error: $*" >&2; exit 2; }
command_line="benches/gpu.sh $*"
default_stages="contact figures rivals profile tests sanitize long"
all_stages="decide $default_stages"
device=auto stages=${default_stages// /,} shapes=llama-3.1-8b,llama-3.2-1b,qwen2.5-7b,gemma-2-9b quick="" budget=600
measure=decode,answered,prefill,batch,deep,lengths rounds="" out=benches/results folder="" binaries="" pack="" arch=""
k_cache="" v_cache=""
while (($#)); do
  case $1 in
    --quick) quick=--quick ;;
    --device | --stages | --measure | --shapes | --rounds | --budget | --k-cache | --v-cache | --out | --folder | --binaries | --pack | --arch)
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
  [[ " $all_stages " == *" $name "* ]] || fail "--stages: unknown stage $name (${all_stages// /, })"
done
first_shape=${shapes%%,*} other_shapes=${shapes#"$first_shape"}

source benches/gpu/pack.sh
if [[ -n $pack ]]; then
  pack "$pack" "$arch"
  exit
fi

started=$SECONDS
work=$(mktemp -d)
owned=()
trap 'rm -rf "$work" "${owned[@]}"' EXIT
stamp=$(date -u +%F_%H%M%S)_${device/:/}${quick:+_quick}
about=() results=() failures=0 gpu="" card=""
left() { echo $((budget - (SECONDS - started))); }
have() { command -v "$1" > /dev/null 2>&1; }
note() { about+=(--about "$1=$2"); }
skip() { printf '\n== %s: SKIPPED: %s\n' "$1" "$2"; note "step $1" "skipped: $2"; }
record() {
  [[ ! -x $gpu ]] || "$gpu" report --json "$out/$stamp.json" --markdown "$out/$stamp.md" "${about[@]}" "${results[@]}"
}

# The card's clock, power and temperature twice a second, while a command runs: what a figure was measured at.
watch_clock() { exec nvidia-smi --query-gpu=clocks.sm,power.draw,temperature.gpu --format=csv,noheader,nounits --loop-ms=500; }
clock_of() { # FILE: least, median and most MHz, most W and °C
  sort -n "$1" | awk -F', ' '{ mhz[NR] = $1; if ($2 > watt) watt = $2; if ($3 > heat) heat = $3 }
    END { if (NR) printf "%d to %d MHz, median %d; up to %.0f W, %d °C", mhz[1], mhz[NR], mhz[int((NR + 1) / 2)], watt, heat }'
}

# step NAME SECONDS COMMAND...: runs the command for at most SECONDS, and no longer than the budget allows.
step() {
  local name=$1 cap=$2 begun=$SECONDS code=0 clock=""
  shift 2
  (($(left) < cap)) && cap=$(left)
  if ((cap < 5)); then
    failures=$((failures + 1))
    skip "$name" "no time left"
    return 1
  fi
  printf '\n== %s (at most %d s, %d s left)\n' "$name" "$cap" "$(left)"
  if [[ -n $card ]]; then
    watch_clock > "$work/clock" 2> /dev/null &
    clock=$!
  fi
  timeout -k 5 "$cap" "$@" 2>&1 | tee "$work/last.log" || code=${PIPESTATUS[0]}
  if [[ -n $clock ]]; then
    kill "$clock" 2> /dev/null
    wait "$clock" 2> /dev/null
    note "clock in $name" "$(clock_of "$work/clock")"
  fi
  if ((code == 0)); then
    note "step $name" "ok, $((SECONDS - begun)) s"
  else
    failures=$((failures + 1))
    local why="exit code $code"
    ((code == 124 || code == 137)) && why="cut off after $cap s"
    printf '== %s FAILED: %s\n' "$name" "$why"
    note "step $name" "FAILED, $why: $(grep -v '^ *$' "$work/last.log" | tail -n 1 | cut -c -160)"
  fi
  record
  return "$code"
}

mkdir -p "$out" || exit 2
# the labs alone, in the host run, need no other program
labs_alone=$([[ $stages == decide && $device == cpu ]] && echo yes)
if [[ -n $labs_alone ]]; then
  binaries=$work/bin
elif [[ -z $binaries ]]; then
  binaries=$work/bin
  mkdir -p "$binaries"
  # a step is a separate program
  step build 420 bash -c "source benches/gpu/pack.sh && build '$binaries' with-tests"
elif [[ -f $binaries ]]; then
  mkdir "$work/bin"
  tar -xJf "$binaries" -C "$work/bin" || fail "$binaries does not unpack"
  binaries=$work/bin
fi
gpu=$binaries/gpu
[[ -x $gpu || -n $labs_alone ]] || fail "there is no program $gpu"

# ---- the machine ----

card=$(nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem --format=csv,noheader 2> /dev/null)
[[ $device != auto ]] || device=$([[ -n $card ]] && echo cuda || echo cpu)
torch_device=$device
[[ $device != cuda ]] || torch_device=cuda:0
on_gpu() { [[ $device != cpu ]]; }
named="the host run, which measures nothing"
[[ -n $labs_alone ]] || named=$("$gpu" device --device "$device") || fail "no measurements without the device"
if on_gpu; then
  # a libcuda that runs kernels on the CPU, for tests, is not a device to measure
  if [[ -z $card ]]; then
    [[ -n $quick ]] || fail "nvidia-smi lists no GPU: $named can be tried with --quick only"
  elif ! grep -qF "${named%%, *}" <<< "$card"; then
    fail "libcuda drives $named, but nvidia-smi lists $card: is LD_LIBRARY_PATH set?"
  fi
  note card "${card:-none that nvidia-smi lists}"
fi
exec > >(tee -a "$out/$stamp.log") 2>&1
echo "$named"
note date "$(date -u +%FT%TZ)"
note command "$command_line"
note host "$(nproc) cores, $(awk '/MemTotal/ {printf "%.0f GiB", $2 / 1048576}' /proc/meminfo), $(uname -sr)"
note commit "$(cat "$binaries/commit" 2> /dev/null || git rev-parse --short HEAD)"
if [[ -z $folder ]]; then
  free=$(df --output=avail -k /dev/shm 2> /dev/null | tail -n 1)
  if [[ -z $quick ]] && ((${free:-0} > 40 << 20)); then folder=$(mktemp -d /dev/shm/uqac.XXXXXX); else folder=$work/models; fi
  owned+=("$folder")
fi
torch=$(python3 benches/rivals_gpu.py --device "$torch_device" --versions 2>&1) && has_torch=yes || has_torch=""
[[ -z $has_torch ]] || note "torch and transformers" "$torch"
export PYTHONUNBUFFERED=1

options=(--device "$device" $quick ${rounds:+--rounds "$rounds"})
rates=()
# measure NAME SECONDS OPTIONS...: benches/gpu.rs, which saves its results after each measurement.
measure() {
  local name=$1 cap=$2 limit
  shift 2
  results+=("$work/$name.json")
  limit=$(left)
  ((limit > cap)) && limit=$cap
  # it stops on its own before the cutoff
  step "$name" "$cap" "$gpu" run "${options[@]}" ${k_cache:+--k-cache "$k_cache"} ${v_cache:+--v-cache "$v_cache"} \
    --folder "$folder" --json "$work/$name.json" --budget "$((limit > 40 ? limit - 20 : 20))" "${rates[@]}" "$@"
}

# ---- stages ----

decide() {
  local name blocks found programs=$binaries/labs inputs=()
  : > "$work/figures"
  if ! on_gpu; then
    programs=$work/labs
    step lab-programs 240 bash -c "source benches/gpu/pack.sh && lab_programs '$work' host" || return
  fi
  for name in rows_lab wait_lab gemm_lab rotation_lab; do
    if [[ -x $programs/$name ]]; then
      step "$name" "${quick:+2}90" "$programs/$name" "$binaries/lab_fatbins" ${quick:+--quick 1}
      grep '^figure ' "$work/last.log" >> "$work/figures"
    else
      skip "$name" "it is built by nvcc, and needs a device"
    fi
  done
  if on_gpu; then
    step self-test 60 "$binaries/uqac" devices --check
    found=$(cupti)
    for blocks in "" 3 2; do
      UQAC_DECODE_BLOCKS=$blocks measure "walk${blocks:-0}" 60 --shapes "$first_shape" --stages batch --suffix "${blocks:+, $blocks blocks}" --keep
      inputs+=("walk${blocks:-0}=$work/walk${blocks:-0}.json")
    done
    [[ -z $found ]] || measure timeline 60 --shapes "$first_shape" --stages timeline,prefill-timeline --batches 1,16 --cupti "$found" --keep
    measure figures 120 --shapes "$first_shape" --stages decode,prefill,answered,batch --batches 2,4,8,32 --keep
    measure q8 60 --shapes "$first_shape" --stages decode,prefill,answered --weights q8 --suffix ", 8-bit weights" --keep
    measure small 60 --shapes llama-3.2-1b --stages decode ${found:+--stages timeline --cupti "$found"}
    if have compute-sanitizer; then
      for name in memcheck racecheck; do
        step "$name-gemv_rows" 90 compute-sanitizer --tool "$name" --report-api-errors no --print-limit 20 --error-exitcode 9 \
          "$binaries/kernel_tests/gemv_rows" "$binaries/fatbins"
      done
    fi
  fi
  step decisions 20 python3 benches/gpu/decide.py ${quick:+--quick} "$work/figures" "$out/${stamp}_decisions.md" "${inputs[@]}"
}

contact() {
  local code=0 kernels=("$binaries"/kernel_tests/*)
  if on_gpu && [[ -x $binaries/uqac ]]; then
    step self-test 60 "$binaries/uqac" devices --check || code=$?
    if ((code == 124 || code == 137)); then
      skip "all other steps" "the self-test hangs"
      stages=""
      return
    fi
  else
    skip self-test "no GPU, or no program uqac in $binaries"
  fi
  if on_gpu && [[ -x ${kernels[0]} ]]; then
    step kernel-tests 120 bash -c "source benches/gpu/pack.sh; run_kernel_tests '$binaries' '$work'"
  else
    skip kernel-tests "no GPU, or none in $binaries (g++ and nvcc build them)"
  fi
  [[ ! -x $binaries/uqac ]] || step golden 45 python3 benches/gpu/golden.py "$binaries/uqac" "$device"
  measure agreement 90 --shapes "$shapes" --stages agreement
}

figures() {
  local read=()
  [[ ! -f $binaries/read_rate.fatbin ]] || read=(--read-kernel "$binaries/read_rate.fatbin" --read-rate "$work/read")
  if on_gpu; then
    results+=("$work/rates.json")
    step rates 30 "$gpu" rates --device "$device" $quick "${read[@]}" --json "$work/rates.json"
    [[ ! -s $work/read ]] || rates+=(--read-rate "$(< "$work/read")")
  fi
  [[ -z $has_torch ]] || step matrix-rate 40 python3 benches/rivals_gpu.py --device "$torch_device" $quick --matrix-rate "$work/matrix"
  [[ ! -s $work/matrix ]] || rates+=(--matrix-rate "$(< "$work/matrix")")
  measure "$first_shape" 240 --shapes "$first_shape" --stages "$measure" --keep
  measure q8 60 --shapes "$first_shape" --stages decode,prefill,answered --weights q8 --suffix ", 8-bit weights" --keep
  [[ -z $other_shapes ]] || measure other-shapes 120 --shapes "${other_shapes#,}" --stages decode
}

rivals() {
  if [[ -z $has_torch ]]; then
    skip rivals "${torch##*$'\n'}"
    return
  fi
  "$gpu" configs "$work/configs" $quick
  local name shared=(--device "$torch_device" $quick --configs "$work/configs" --shapes "$first_shape")
  results+=("$work"/rivals-{compiled,sdpa,attentions}.json)
  step rivals-compiled 150 python3 benches/rivals_compiled.py "${shared[@]}" --json "$work/rivals-compiled.json"
  for name in sdpa attentions; do
    step "rivals-$name" 90 python3 benches/rivals_gpu.py "${shared[@]}" --work "$name" --json "$work/rivals-$name.json"
  done
}

# Possible locations of libcupti: as named, in the toolkit, in torch.
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
    measure timeline 90 --shapes "$first_shape" --stages timeline --batches 1,16,64,256 --cupti "$found" --keep
    measure small-timeline 60 --shapes llama-3.2-1b --stages timeline --cupti "$found"
    measure prefill-timeline 60 --shapes "$first_shape" --stages prefill-timeline --cupti "$found" --keep
  else
    skip timeline "libcupti is not found (CUPTI=FILE names it)"
  fi
  if have ncu; then
    # all layers are alike: two are enough
    counters=gpu__time_duration.sum,dram__bytes_read.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed
    counters+=,sm__inst_executed.sum
    counters+=,sm__throughput.avg.pct_of_peak_sustained_elapsed,sm__warps_active.avg.pct_of_peak_sustained_active
    counters+=,launch__registers_per_thread,launch__grid_size
    step counters 120 ncu --clock-control none --csv --page raw --section WarpStateStats --metrics "$counters" --log-file "$out/${stamp}_ncu.csv" \
      "$gpu" run "${options[@]}" --shapes "$first_shape" --layers 2 --stages steps
    gzip -f "$out/${stamp}_ncu.csv" 2> /dev/null
  else
    skip counters "ncu is not installed"
  fi
}

tests() {
  local program module modules
  if ! on_gpu; then
    skip tests "no GPU"
    return
  fi
  [[ ! -d $binaries/golden ]] || export UQAC_GOLDEN=$binaries/golden
  for program in unit it; do
    modules=$("$binaries/$program" --list 2> /dev/null | grep -oE '^(unit::)?cuda_[a-z]*' | sort -u)
    [[ -n $modules ]] || skip "$program tests" "no CUDA tests in $binaries/$program"
    for module in $modules; do
      UQAC_TEST_DRIVER=installed step "$program $module" 90 "$binaries/$program" --test-threads 4 "$module::"
    done
  done
}

sanitize() {
  local tool
  if ! on_gpu || ! have compute-sanitizer; then
    skip sanitize "no GPU, or compute-sanitizer is not installed"
    return
  fi
  for tool in memcheck racecheck synccheck; do
    step "$tool" 150 bash -c "source benches/gpu/pack.sh; sanitize_kernel_tests $tool '$binaries' '$work'"
  done
}

long() {
  if (($(left) > 40)); then
    # the program skips it if the time is too short
    measure whole-response "$(left)" --shapes "$first_shape" --stages whole --keep
  else
    skip whole-response "no time left"
  fi
}

for name in $all_stages; do
  [[ ,$stages, != *,$name,* ]] || "$name"
done
record || failures=$((failures + 1))
printf '\n'
[[ ! -f $out/$stamp.md ]] || cat "$out/$stamp.md"
printf '\n%d s of %d s; results in %s.json, .md and .log\n' "$((SECONDS - started))" "$budget" "$out/$stamp"
if ((failures > 0)); then
  printf '%d steps failed or had no time\n' "$failures"
  exit 1
fi
