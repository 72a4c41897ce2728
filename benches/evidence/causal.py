#!/usr/bin/env python3
"""R7: does the answer depend on the chain's tokens? causal.py TRIPLETS.jsonl, written by `cargo bench --bench causal`.

A difference is the mean over items of the mean over each item's triplets, with a percentile interval from 10,000 bootstrap
resamples of the items.
"""
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from measures import SEED, shown
from samples import lines

KINDS = ["digit of the chain", "digit off the chain", "word off the chain"]
HALF = -np.log(2)


class Triplets:
    """The values of the replaced tokens, [triplets, 3], and the item of each triplet."""

    def __init__(self, rows):
        self.items = np.array([row["doc_id"] for row in rows])
        get = lambda key: np.array([[member[key] for member in row["members"]] for row in rows], float)
        self.change, self.in_answer, self.position = get("change"), get("in_answer") > 0, get("position")
        self.alternative = get("alternative")

    def by_item(self, values, among=None):
        """The mean over each item's triplets."""
        found = defaultdict(list)
        for i, (item, value) in enumerate(zip(self.items, values)):
            if among is None or among[i]:
                found[item].append(value)
        return np.array([np.mean(values) for values in found.values()])


def interval(values, sign=""):
    """The mean with its interval; for a difference (with a sign), also twice the share of resamples on the other side of 0."""
    rng = np.random.default_rng(SEED)
    drawn = values[rng.integers(0, len(values), (10_000, len(values)))].mean(1)
    p = 2 * min((drawn <= 0).mean(), (drawn >= 0).mean())
    return shown(values.mean(), drawn, sign) + (f" | {p:.4f}" if sign else "")


def main():
    triplets = Triplets(lines(Path(sys.argv[1])))
    halves = (triplets.change < HALF).astype(float)
    print(f"{len(halves)} triplets of {len(set(triplets.items))} items\n")
    print("| replaced by its runner-up | P(answer) at least halves | median change of ln P(answer) | median p of the runner-up | in the answer |")
    print("| --- | --- | --- | --- | --- |")
    for k, kind in enumerate(KINDS):
        print(f"| {kind} | {interval(triplets.by_item(halves[:, k]))} | {np.median(triplets.change[:, k]):.1e} | "
              f"{np.exp(np.median(triplets.alternative[:, k])):.1e} | {100 * triplets.in_answer[:, k].mean():.0f} % |")
    print("\n| difference in how often it halves | items | | p |\n| --- | --- | --- | --- |")
    alike = triplets.in_answer[:, 0] == triplets.in_answer[:, 1]
    neither = ~triplets.in_answer[:, 0] & ~triplets.in_answer[:, 1]
    both = triplets.in_answer[:, 0] & triplets.in_answer[:, 1]
    later = triplets.position[:, 0] < triplets.position[:, 1]
    for name, pair, among in [("chain digit − digit off the chain", (0, 1), None), ("chain digit − word", (0, 2), None),
                              ("digit off the chain − word", (1, 2), None), ("chain digit − digit, both or neither in the answer", (0, 1), alike),
                              ("chain digit − digit, both in the answer", (0, 1), both), ("chain digit − digit, neither in the answer", (0, 1), neither),
                              ("chain digit − digit, the chain's digit comes first", (0, 1), later)]:
        values = triplets.by_item(halves[:, pair[0]] - halves[:, pair[1]], among)
        print(f"| {name} | {len(values)} | {interval(values, '+')} |")


if __name__ == "__main__":
    main()
