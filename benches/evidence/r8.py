#!/usr/bin/env python3
"""The registered measures of R8 (EVIDENCE.md): r8.py RUN [--resamples N]

Needs numpy and scikit-learn. A sample agrees if its answer equals the response's, compared as numbers where both are numbers. Ties
of the agreeing share are broken by log P(response), mapped to less than the smallest difference of shares. Written before R8 ran, but for
the intervals of its first table.
"""
import argparse
from pathlib import Path

from measures import Bootstrap, auroc, holm, less, shown, two_sided
from samples import Run, agreement, passes, ties_broken


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--resamples", type=int, default=10_000)
    options = parser.parse_args()
    run = Run(options.run)
    boot, labels = Bootstrap(len(run.samples), options.resamples), run.labels
    log_p, g4 = run.score("response_prob"), run.score("g4")
    print(f"{run.name}: {run.right} of {run.graded} right, {len(run.samples)} answered, {run.errors} errors")

    def row(name, scores, cost):
        print(f"| {name} | {shown(auroc(scores, labels), boot.auroc(scores, labels))} | {cost:.2f} |")

    print("\n| score | AUROC | passes |\n| --- | --- | --- |")
    row("log P(response)", log_p, 1)
    row("g4", g4, 1)
    broken = {}
    for samples in (1, 2, 3, 5):
        share = agreement(run, samples)
        broken[samples] = ties_broken(share, log_p, samples)
        row(f"agreement of {samples}", share, passes(run, samples))
        row(f"agreement of {samples}, ties by log P", broken[samples], passes(run, samples))
    five = run.score("self_consistency")
    row("self-consistency (5)", five, passes(run, 5))
    tests = [("primary: self-consistency (5) less g4", less(run, boot, five, g4)),
             ("(a) agreement of 1, ties by log P, less log P(response)", less(run, boot, broken[1], log_p)),
             ("(b) agreement of 1, ties by log P, less g4", less(run, boot, broken[1], g4))]
    print("\n| measure | difference | p | corrected |\n| --- | --- | --- | --- |")
    primary, *secondary = [(two_sided(resampled), name, shown(value, resampled, "+")) for name, (value, resampled) in tests]
    for p, name, difference, corrected in [(*primary, None), *holm(secondary)]:
        print(f"| {name} | {difference} | {p:.4f} | {'' if corrected is None else f'{corrected:.4f}'} |")


if __name__ == "__main__":
    main()
