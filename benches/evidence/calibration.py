#!/usr/bin/env python3
"""Checks the guarantees of `uqac calibrate` on runs: calibration.py FOLDER... [--uqac PROGRAM]... [--worlds 1000]

Each PROGRAM calibrates on each run: prints its held-out figures, and the maximum confidence that it can output, i.e. the map's
value at the end of its range (or at infinity if it stores no range). Then checks the certified threshold in resampled worlds,
reimplemented here: the run's answers are the population, a sample of the same size is drawn from them with replacement, a threshold
is certified on it by the rule of src/eval/metrics/risk.rs for each of the scores, and its risk is computed on the population. Needs
numpy and scikit-learn.
"""
import argparse
import json
import math
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from measures import SEED
from samples import Run
from scipy.stats import binom

SCORES = ["p", "response_prob", "min_token_prob"]
LEVELS = 20
CONFIDENCE = 0.95


def highest(found):
    """The maximum confidence of any answer."""
    kind, bounds = found["map"], found.get("range")
    if kind["kind"] == "isotonic":
        p = max(p for _, p in kind["knots"])
    else:
        x = bounds[1] if bounds else math.inf
        p = 1 / (1 + math.exp(-kind["slope"] * x - kind["intercept"]))
    least = 1 / (found["items"] + 2)
    return min(max(p, least), 1 - least)


def programs(folders, found):
    print("| run | program | map | held-out ECE | held-out Brier | highest confidence |\n| --- | --- | --- | --- | --- | --- |")
    for folder in folders:
        for program in found:
            with tempfile.TemporaryDirectory() as place:
                command = [program, "calibrate", folder, "--json", "--output", f"{place}/calibration.json"]
                made = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
            held = made["held_out"]
            print(f"| {folder.name} | {program} | {made['map']['kind']} of {made['score']} | {held['ece']:.3f} | {held['brier']:.3f} | {highest(made):.4f} |")


def threshold(x, right, target):
    """The lowest level that meets the target with this score's share of the failure probability, or None."""
    order = np.argsort(-x, kind="stable")
    x, wrong = x[order][1:], ~right[order][1:]  # without the highest, beyond which nothing is answered
    for level in range(LEVELS, 0, -1):
        above = x[math.ceil(level * len(x) / LEVELS) - 1]
        answered = (x > above).sum()
        if answered and binom.cdf(wrong[:answered].sum(), answered, target) <= (1 - CONFIDENCE) / len(SCORES) / LEVELS:
            return above
    return None


def unproven(x, right, target):
    """The lowest threshold above which the share of wrong answers among those it is chosen on is at most the target."""
    order = np.argsort(-x, kind="stable")
    held = np.flatnonzero(np.cumsum(~right[order]) <= target * np.arange(1, len(x) + 1))
    return x[order][held[-1]] - 1e-12 if len(held) else None


def worlds(run, targets, n):
    """For each target: the number of worlds in which a threshold was found, and in which the population's risk above it exceeds the
    target, for each score, for any of them, and for P(response) without a proof (to show that the worlds can reveal a broken
    guarantee)."""
    rng = np.random.default_rng(SEED)
    scores = np.array([run.score(key) for key in SCORES])
    items = scores.shape[1]
    draws = rng.integers(0, items, size=(n, items))
    for target in targets:
        found, broken, answered, naive = np.zeros(len(SCORES), int), np.zeros((n, len(SCORES)), bool), [], 0
        for world, draw in enumerate(draws):
            without = unproven(scores[1][draw], run.labels[draw], target)
            naive += without is not None and (~run.labels[scores[1] > without]).mean() > target
            for s, x in enumerate(scores):
                above = threshold(x[draw], run.labels[draw], target)
                if above is not None:
                    given = (x > above) & (x <= x[draw].max())
                    found[s] += 1
                    broken[world, s] = (~run.labels[given]).mean() > target
                    if SCORES[s] == "response_prob":
                        answered.append(given.mean())
        share = f"{100 * np.mean(answered):.0f} %" if answered else ""
        print(f"| {run.name} | {target} | {', '.join(map(str, found))} | {', '.join(map(str, broken.sum(0)))} | {broken.any(1).sum()} | {share} | {naive} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--uqac", action="append", default=[], help="a program to calibrate with; can be repeated")
    parser.add_argument("--worlds", type=int, default=1000)
    options = parser.parse_args()
    if options.uqac:
        programs(options.folders, options.uqac)
    print(f"\nOf {options.worlds} worlds (at confidence {CONFIDENCE}, at most {100 * (1 - CONFIDENCE):.0f} % may break the promise), for {', '.join(SCORES)}:\n")
    print("| run | target risk | found | broken | broken for any | answered, response_prob | broken without a proof, response_prob |\n| --- | --- | --- | --- | --- | --- | --- |")
    for folder in options.folders:
        worlds(Run(folder), [0.1, 0.2, 0.3, 0.4], options.worlds)


if __name__ == "__main__":
    main()
