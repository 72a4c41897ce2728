#!/usr/bin/env bash
# R10 (EVIDENCE.md): a thinking model at three budgets, for whoever has its weights and a GPU.
#   benches/evidence/r10.sh MODEL DATA [RUNS]       MODEL: a folder or a downloaded name; DATA: the four files below
#   benches/evidence/r10.sh --dry-run THINKING_MODEL
#                                                   any small model whose template opens a thought; labels are drawn by lot
# Stopped, it goes on with the same command. The result, evidence/R10/NAME.jsonl.gz, has no text of questions or responses (GPQA asks not to
# publish them): send it as a pull request. BATCH: responses at once (default 16).
. "$(dirname "$0")/runner.sh"
tasks=(math-500 aime-2024 aime-2025 gpqa-diamond)
budgets=(4096 16384 32768)
reply=2048   # tokens of a reply beside the thought's budget
dry=()

if [ "${1:-}" = --dry-run ]; then
  [ $# = 2 ] || fail "usage: r10.sh --dry-run THINKING_MODEL"
  budgets=(8 16 32) reply=64 dry=(--dry-run)
  runs=$(mktemp -d); trap 'rm -rf "$runs"' EXIT
  data=$runs/data results=$runs
  mkdir "$data"
  for i in "${!tasks[@]}"; do
    sed -n "$((30 * i + 1)),$((30 * i + 30))p" "$root/models/abacus/test.jsonl" |
      sed 's/^{/{"grader": "number", /' > "$data/${tasks[i]}.jsonl"
  done
  model=$2
else
  [ $# -ge 2 ] || fail "usage: r10.sh MODEL DATA [RUNS], or r10.sh --dry-run THINKING_MODEL"
  model=$1 data=$2 results=$here/R10
  runs=${3:-$root/target/R10/$(basename "$model")}
fi
for task in "${tasks[@]}"; do
  [ -s "$data/$task.jsonl" ] || fail "$data/$task.jsonl is missing: python -m uqac.tasks $task > $data/$task.jsonl (gpqa-diamond needs an account)"
done
for budget in "${budgets[@]}"; do
  for task in "${tasks[@]}"; do
    evaluate "$runs/$budget" -m "$model" -t "$data/$task.jsonl" --thinking-budget "$budget" --max-tokens $((budget + reply)) \
      --methods self-consistency,verbalized --samples 1 --temperature 0.6 --seed 0 --draws 0 --batch-size "${BATCH:-16}"
  done
done
mkdir -p "$results"
packed=$results/$(basename "$model").jsonl.gz
"$python" "$here/r10.py" --pack "$runs" "$packed"
"$python" "$here/r10.py" "$packed" "${dry[@]}"
