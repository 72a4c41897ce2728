#!/usr/bin/env bash
# R9 (EVIDENCE.md): three samples for each item of MATH-500 150 to 499 (1.5B) and of GSM8K 0 to 659 (0.5B). About six hours on two cores.
#   benches/evidence/r9.sh MODELS DATA [RUNS]       MODELS/qwen2.5-coder-{1.5,0.5}b-instruct, DATA/{math*500*,gsm8k*}.jsonl
#   benches/evidence/r9.sh --dry-run                the built-in model's own questions, from end to end, in a folder that is removed
# Stopped, it goes on with the same command. Prints nothing of the results until both parts are complete; then packs them into
# evidence/R9 and runs r9.py. The greedy response is drawn again beside the samples; r9.py compares it with R6's or R3's.
. "$(dirname "$0")/runner.sh"
options=(--methods self-consistency --samples 3 --temperature 0.5 --seed 0 --draws 0 --batch-size "${BATCH:-32}")

if [ "${1:-}" = --dry-run ]; then
  runs=$(mktemp -d); trap 'rm -rf "$runs"' EXIT
  first=1
  for name in math-1.5b gsm8k-0.5b; do
    part "$root/models/abacus/test.jsonl" $first $((first + 79)) "$runs/data-$name"
    first=81
    # cut short and resumed, as the real run may be
    for limit in 30 80; do
      evaluate "$runs/$name" -m abacus -t abacus --data "$runs/data-$name" "${options[@]}" -n $limit
    done
    "$python" "$here/pack.py" "$runs/$name" "$runs/R9/$name"
  done
  "$python" "$here/r9.py" "$runs"/R9/{math-1.5b,gsm8k-0.5b} --before "$runs"/R9/{math-1.5b,gsm8k-0.5b} --dry-run
  exit
fi

[ $# -ge 2 ] || fail "usage: r9.sh MODELS DATA [RUNS], or r9.sh --dry-run"
models=$1 data=$2 runs=${3:-$root/target/R9}
math=$(only "$data" 'math*500*.jsonl'); gsm8k=$(only "$data" 'gsm8k*.jsonl')
part "$math" 151 500 "$runs/data-math-1.5b"
part "$gsm8k" 1 660 "$runs/data-gsm8k-0.5b"
evaluate "$runs/math-1.5b" -m "$models/qwen2.5-coder-1.5b-instruct" -t math --data "$runs/data-math-1.5b" "${options[@]}"
evaluate "$runs/gsm8k-0.5b" -m "$models/qwen2.5-coder-0.5b-instruct" -t gsm8k --data "$runs/data-gsm8k-0.5b" "${options[@]}"
for name in math-1.5b gsm8k-0.5b; do "$python" "$here/pack.py" "$runs/$name" "$runs/R9/$name"; done
"$python" "$here/r9.py" "$runs"/R9/{math-1.5b,gsm8k-0.5b} --before "$here"/{R6/math-1.5b,R3}
cp -r "$runs/R9" "$here/"
