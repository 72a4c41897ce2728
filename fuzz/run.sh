#!/usr/bin/env bash
# Fuzzes the parsers of untrusted files: fuzz/run.sh [SECONDS for each target, 60 by default] [TARGET ...]
#
# Builds fuzz/ with coverage and the address sanitizer on a stable compiler (RUSTC_BOOTSTRAP=1), seeds it with files of
# this repository, and keeps its findings in target/fuzz/corpus/TARGET. A failure is written to
# target/fuzz/TARGET-crash-…; running the same command with that file among a target's seeds reproduces it. Exits with 1
# if a target failed.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
shift || true
targets=("$@")
if [[ ${#targets[@]} -eq 0 ]]; then
  targets=(config safetensors tokenizer template score_line task_file run_folder answer grader page)
fi

triple=$(rustc -vV | sed -n 's/^host: //p')
runtime="$(rustc --print sysroot)/lib/rustlib/$triple/lib"
flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
  -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing"
if compgen -G "$runtime/librustc*_rt.asan.a" > /dev/null; then
  flags="$flags -Zsanitizer=address"
else
  echo "SKIPPED: the address sanitizer: this toolchain has no runtime for it in $runtime"
fi
if ! command -v c++ > /dev/null; then
  echo "SKIPPED: fuzzing: libFuzzer needs a C++ compiler"
  exit 0
fi
# with --target, build scripts and macros are built without the flags
RUSTC_BOOTSTRAP=1 RUSTFLAGS=$(echo $flags) NVCC='' cargo build --release --locked --target "$triple" \
  --manifest-path fuzz/Cargo.toml --target-dir target/fuzz
program=target/fuzz/$triple/release/fuzz

# Seed files from this repository.
seed() {
  mkdir -p "target/fuzz/corpus/$1"
  local i=0
  while IFS= read -r line; do
    i=$((i + 1))
    printf '%b' "$line" > "target/fuzz/corpus/$1/seed-$i"
  done
}
mkdir -p target/fuzz/corpus/{config,safetensors,tokenizer,run_folder,page}
cp models/abacus/config.json target/fuzz/corpus/config/seed
head -c 20000 models/abacus/tokenizer.json > target/fuzz/corpus/tokenizer/cut
python3 - target/fuzz/corpus << 'END'
import importlib.util, json, pathlib, sys
spec = importlib.util.spec_from_file_location("folders", "tests/attack/folders.py")
folders = importlib.util.module_from_spec(spec)
spec.loader.exec_module(folders)
corpus = pathlib.Path(sys.argv[1])
base = folders.base_folder()
(corpus / "config/llama").write_text(json.dumps(base["config.json"]))
small = base["tokenizer.json"]
small["model"]["vocab"] = {token: i for token, i in small["model"]["vocab"].items() if i < 280}
(corpus / "tokenizer/bpe").write_text(json.dumps(small))
for i, step in enumerate(folders.STEPS):
    for part in ["normalizer", "pre_tokenizer", "decoder", "post_processor"]:
        (corpus / f"tokenizer/{part}-{i}").write_text(json.dumps({
            "version": "1.0", part: step, "model": {"type": "WordLevel", "vocab": {"?": 0, "a": 1}, "unk_token": "?"}}))
for i, model in enumerate(folders.MODELS):
    (corpus / f"tokenizer/model-{i}").write_text(json.dumps({"version": "1.0", "model": model}))
tiny = {"model.norm.weight": {"dtype": "BF16", "shape": [8], "data_offsets": [0, 16]}}
text = json.dumps(tiny).encode()
(corpus / "safetensors/one").write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))
sample = {"doc_id": 0, "task": "gsm8k", "doc": {"question": "1+1?"}, "target": "2", "arguments": [["1+1?"]],
          "resps": [["The answer is 2."]], "filtered_resps": ["2"]}
(corpus / "run_folder/one").write_text(json.dumps({"format": 1}) + "\n" + json.dumps(sample) + "\n")
(corpus / "page/one").write_text(json.dumps(sample) + "\n")
END
grep -v '^# ' tests/data/template_snippets.txt | sed 's/^= \(.*\)/{{ \1 }}/; s/\\/\\\\/g' | seed template
head -n 40 models/abacus/test.jsonl | sed 's/\\/\\\\/g' | seed task_file
head -n 40 models/abacus/test.jsonl | sed 's/\\/\\\\/g' | seed score_line
printf '%s\n' 'The answer is: $[-2,2]$.' 'so \\\\boxed{\\\\frac{1}{2}}' '#### 1,234' 'Final Answer: (B) 3 pm' | seed answer
printf '%s\n' '\\\\frac{1}{2}\n0.5' 'x+1\n1+x' '(B)\nB' '1,000,000\n10^6' '\\\\sqrt{2}/2\n\\\\frac{1}{\\\\sqrt 2}' | seed grader

# Files written by a target stay in memory; its output is printed when it has ended.
fuzz() {
  local scratch log=target/fuzz/$1.log
  scratch=$(mktemp -d -p "$([[ -d /dev/shm ]] && echo /dev/shm || echo /tmp)")
  local status=0
  TMPDIR=$scratch UQAC_FUZZ=$1 "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -max_len=65536 -print_final_stats=1 -artifact_prefix="target/fuzz/$1-" "target/fuzz/corpus/$1" > "$log" 2>&1 || status=1
  rm -rf "$scratch"
  echo "== $1, $seconds s"
  if [[ $status -ne 0 ]]; then grep -m 5 -E 'panicked|ERROR|SUMMARY|Test unit' "$log" || tail -n 5 "$log"; fi
  grep -E 'stat::(number_of_executed_units|peak_rss_mb)' "$log" || true
  return $status
}
export -f fuzz
export program seconds
# in parallel, one per core
if ! printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'fuzz {}'; then
  echo "failed; see target/fuzz/*.log"
  exit 1
fi
