#!/usr/bin/env python3
"""The registered measures of R9 (EVIDENCE.md): r9.py MATH GSM8K --before R6/math-1.5b R3 [--resamples N] [--dry-run]

Needs numpy and scikit-learn. Refuses parts that are incomplete, of another model, or of other options; --dry-run lets any two runs with
samples through and says so in each line of its heading. Differences are pooled as R6's: each part weighted by the inverse of its
bootstrap variance. Written before R9 ran.
"""
import argparse
import json
import sys
from pathlib import Path

import numpy as np
from measures import (Bootstrap, auroc, balanced, ece, held_out, holm, less, platt, pooled, shown, two_sided, wilson)
from samples import Run, agreeing, g4_agreement, passes, ties_broken

SAMPLES = (1, 2, 3)
BINS = 20
# Lower end of the interval that one sample and G4 may fall behind three samples by.
MARGIN = -0.03
# What the registration fixed, by part: the task, its items, the weights.
PARTS = {"math-1.5b": ("math", 350, "93e04457c55dce3a"), "gsm8k-0.5b": ("gsm8k", 660, "884700e1c195e75c")}
OPTIONS = {"methods": ["uqac", "self-consistency"], "samples": 3, "temperature": 0.5, "seed": 0, "max_tokens": 1024,
           "profile": "corrected"}


def complaints(run, folder):
    """What keeps a part from being the registered one."""
    task, items, weights = PARTS.get(folder.name, (None, 0, None))
    if task is None:
        return [f"expected one of {', '.join(PARTS)}"]
    manifest = json.loads((folder / "manifest.json").read_text())
    found = [f"{key} is {manifest['options'].get(key)!r}, registered {value!r}"
             for key, value in OPTIONS.items() if manifest["options"].get(key) != value]
    if manifest["model"]["weights"] != weights:
        found.append(f"the weights are {manifest['model']['weights']}, registered {weights}")
    missing = {(task, doc_id) for doc_id in range(items)} ^ run.items
    if missing:
        found.append(f"{len(missing)} items are missing or too many, of {items}")
    return found


def same_questions(run, before):
    """The run's greedy responses beside those of the earlier run; the questions must be the same."""
    shared = run.index.keys() & before.index.keys()
    pairs = [(run.samples[run.index[key]], before.samples[before.index[key]]) for key in shared]
    other = [a["doc_id"] for a, b in pairs if a["doc"] != b["doc"]]
    if other:
        sys.exit(f"{run.name}: items {other[:5]} are other questions than in {before.name}")
    differ = sum(a["uq"]["tokens"]["ids"] != b["uq"]["tokens"]["ids"] for a, b in pairs)
    alone = len(run.index) + len(before.index) - 2 * len(shared)
    print(f"{run.name}: greedy responses of {before.name}: {len(pairs) - differ} of {len(pairs)} are the same, "
          f"{alone} have an answer in one run alone")


class Scores:
    """Of a part: G4, the votes of three samples, and `g4_agreement` with 1, 2 and 3 of them."""

    def __init__(self, run):
        agrees = np.array([agreeing(sample) for sample in run.samples])
        self.g4, self.log_p, self.three = run.score("g4"), run.score("response_prob"), run.score("self_consistency")
        self.share = {n: agrees[:, :n].mean(1) for n in SAMPLES}
        self.both = {n: g4_agreement(share, self.g4) for n, share in self.share.items()}


def balanced_fit(run, boot, scores):
    """The paper's ECE (20 bins, mean over its five balanced samples) of Platt's fit on one half of the balanced sample, measured on
    the other, both ways; and its resamples, without fitting again, centred on it: resampling raises every ECE."""
    values, resampled = [], []
    for sample in balanced(run.labels):
        place = np.arange(len(sample)) % 2
        p = np.empty(len(sample))
        for half in (0, 1):
            fit, held = sample[place != half], place == half
            p[held] = platt(scores[fit], run.labels[fit])(scores[sample[held]])
        labels = run.labels[sample]
        bins = np.minimum((p * BINS).astype(int), BINS - 1)[:, None] == np.arange(BINS)
        counts = boot.counts[:, sample].astype(np.float64)
        values.append(ece(p, labels, BINS))
        resampled.append(np.abs(counts @ (bins * (p - labels)[:, None])).sum(1) / counts.sum(1))
    value, resampled = np.mean(values), np.mean(resampled, axis=0)
    return value, resampled - resampled.mean() + value


def difference(found, base):
    return found[0] - base[0], found[1] - base[1]


def frontier(run, boot, scores):
    """Descriptive: AUROC against the number of passes."""
    low, high = wilson(run.right, run.graded)
    print(f"\n### {run.name}: {run.right} of {run.graded} right, {100 * run.right / run.graded:.1f} % [{100 * low:.1f}, {100 * high:.1f}], "
          f"{len(run.samples)} answered, {run.errors} errors\n\n| score | AUROC | passes |\n| --- | --- | ---: |")
    rows = [("log P(response)", scores.log_p, 1), ("G4", scores.g4, 1)]
    for n in SAMPLES:
        cost = passes(run, n)
        rows += [(f"agreement of {n}", scores.share[n], cost),
                 (f"agreement of {n}, ties by log P", ties_broken(scores.share[n], scores.log_p, n), cost),
                 (f"g4_agreement of {n}", scores.both[n], cost)]
    for name, found, cost in [*rows, ("self-consistency (3)", scores.three, passes(run, 3))]:
        print(f"| {name} | {shown(auroc(found, run.labels), boot.auroc(found, run.labels))} | {cost:.2f} |")
    raw = {"P": run.probability("p"), "P_sim": run.probability("p_sim"), "self-consistency (3)": run.probability("self_consistency")}
    cells = [f"{name} {np.mean([ece(p[one], run.labels[one], BINS) for one in balanced(run.labels)]):.3f}"
             for name, p in raw.items() if np.isfinite(p).all()]
    print("\nECE on balanced samples, raw: " + ", ".join(cells))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs=2, type=Path)
    parser.add_argument("--before", nargs=2, type=Path, required=True)
    parser.add_argument("--resamples", type=int, default=10_000)
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    runs = [Run(folder) for folder in options.parts]
    if not options.dry_run:
        problems = [f"{folder}: {problem}" for run, folder in zip(runs, options.parts) for problem in complaints(run, folder)]
        if problems:
            sys.exit("not R9, or not complete; nothing was computed:\n" + "\n".join(problems))
    print("DRY RUN: these are not the registered items" if options.dry_run else "# R9")
    for run, before in zip(runs, options.before):
        same_questions(run, Run(before))
    boots, scores = [Bootstrap(len(run.samples), options.resamples) for run in runs], [Scores(run) for run in runs]
    for one in zip(runs, boots, scores):
        frontier(*one)
    by = lambda measure: [measure(*one) for one in zip(runs, boots, scores)]  # noqa: E731
    print("\n| | " + " | ".join(run.name for run in runs) + " | pooled |\n| --- |" + " --- |" * (len(runs) + 1))
    _, _, over_g4 = pooled(runs, "primary: g4_agreement of 1 less G4, AUROC", by(lambda run, boot, s: less(run, boot, s.both[1], s.g4)))
    _, _, over_three = pooled(runs, "primary: g4_agreement of 1 less self-consistency (3), AUROC",
                              by(lambda run, boot, s: less(run, boot, s.both[1], s.three)))
    tests = [
        pooled(runs, "(a) g4_agreement of 2 less of 1, AUROC", by(lambda run, boot, s: less(run, boot, s.both[2], s.both[1]))),
        pooled(runs, "(b) g4_agreement of 1 less G4, held-out Brier", by(lambda run, boot, s: held_out(run, boot, s.both[1], s.g4))),
        pooled(runs, "(c) g4_agreement of 1 less G4, balanced ECE after a fit",
               by(lambda run, boot, s: difference(balanced_fit(run, boot, s.both[1]), balanced_fit(run, boot, s.g4)))),
    ]
    low, close = np.percentile(over_g4, 2.5), np.percentile(over_three, 2.5)
    print(f"\nPrimary: above G4: {'yes' if low > 0 else 'no'} (lower end {low:+.3f}, p {two_sided(over_g4):.4f}); not more than 0.03 behind "
          f"self-consistency (3): {'yes' if close >= MARGIN else 'no'} (lower end {close:+.3f})")
    print("\n| secondary | p | corrected |\n| --- | --- | --- |")
    for p, name, corrected in holm([(two_sided(resampled), name) for name, _, resampled in tests]):
        print(f"| {name} | {p:.4f} | {corrected:.4f} |")


if __name__ == "__main__":
    main()
