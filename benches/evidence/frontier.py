#!/usr/bin/env python3
"""EXPLORATORY, after R8 had been seen: what one more sample buys, and which function of G4 R9 registers: frontier.py R8

Needs numpy and scikit-learn. Agreement as in r8.py. Table 1: AUROC at 1, 2, 3 and 5 samples. Table 2: forms of the score, each
one's constants chosen on four fifths of R8 and measured on the fifth (20 times five folds, by class; mean over the numbers of
samples and all subsets of the five samples). `sd`: of its difference to the registered form, over resampled items.
"""
import argparse
from itertools import combinations
from pathlib import Path

import numpy as np
from measures import SEED, Bootstrap, auroc, held_out, less, shown
from r9 import Scores, balanced_fit, difference
from samples import Run, agreement, g4_agreement, passes, same, ties_broken
from scipy.stats import rankdata

SAMPLES = (1, 2, 3, 5)
REGISTERED = "share + σ(G4)"


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def frontier(run, boot):
    """The issue's table, and what R9's primary measure is on R8."""
    labels, log_p, g4 = run.labels, run.score("response_prob"), run.score("g4")
    rank = (rankdata(g4) - 0.5) / len(g4)
    forms = {
        "agreement alone": lambda share, n: share,
        "ties by log P(response)": lambda share, n: ties_broken(share, log_p, n),
        "ties by G4": lambda share, n: ties_broken(share, g4, n),
        "agreement + ½ rank of G4": lambda share, n: share + rank / 2,
        "agreement + rank of G4": lambda share, n: share + rank,
        "agreement + 2 ranks of G4": lambda share, n: share + 2 * rank,
        "agreement + σ(G4)": lambda share, n: g4_agreement(share, g4),
    }
    print("| AUROC | " + " | ".join(forms) + " | passes |\n| ---: |" + " ---: |" * (len(forms) + 1))
    for n in SAMPLES:
        cells = [f"{auroc(form(agreement(run, n), n), labels):.3f}" for form in forms.values()]
        print(f"| {n} | " + " | ".join(cells) + f" | {passes(run, n):.1f} |")
    votes = [sample["uq"]["self_consistency"] for sample in run.samples]
    agrees = [[same(answer, sample["uq"]["answer"]["text"]) for answer in vote["answers"]] for sample, vote in zip(run.samples, votes)]
    three = np.array([sum(w for w, a in zip(vote["weights"][:3], one) if a) for vote, one in zip(votes, agrees)])
    one = g4_agreement(agreement(run, 1), g4)
    print(f"\nOf one sample, agreement + σ(G4) {shown(auroc(one, labels), boot.auroc(one, labels))}; less G4 "
          f"{shown(*less(run, boot, one, g4), '+')}; less self-consistency of the first three {shown(*less(run, boot, one, three), '+')}")
    s = Scores(run)
    print(f"R9's secondary measures here: (a) {shown(*less(run, boot, s.both[2], s.both[1]), '+')}; "
          f"(b) {shown(*held_out(run, boot, s.both[1], s.g4), '+')}; "
          f"(c) {shown(*difference(balanced_fit(run, boot, s.both[1]), balanced_fit(run, boot, s.g4)), '+')}")
    return np.array(agrees)


class Pairs:
    """How a form ranks each pair of a right and a wrong answer, so that folds and resamples are sums over pairs."""

    def __init__(self, labels, agrees):
        self.right, self.wrong = np.flatnonzero(labels), np.flatnonzero(~labels)
        self.shares = {n: [agrees[:, list(one)].mean(1) for one in combinations(range(agrees.shape[1]), n)] for n in SAMPLES}

    def ranked(self, form):
        """Mean over numbers of samples and over subsets, [right, wrong]."""
        def one(scores):
            return (np.sign(scores[self.right][:, None] - scores[self.wrong][None, :]) + 1) / 2
        return np.mean([np.mean([one(form(share, n)) for share in shares], axis=0) for n, shares in self.shares.items()], axis=0)


def forms(g4):
    """Name, number of constants, whether the function of G4 is the same for any number of samples, and the settings tried."""
    low = lambda a, b: np.clip((g4 - a) / (b - a), 0, 1)  # noqa: E731
    return [
        ("share", 0, True, [lambda share, n: share]),
        ("share, ties by G4", 0, False, [lambda share, n: share + 0.99 * sigmoid(g4) / n]),
        (REGISTERED, 0, True, [lambda share, n: g4_agreement(share, g4)]),
        ("share + σ(G4 − m)", 1, True, [lambda share, n, m=m: share + sigmoid(g4 - m) for m in np.arange(-2, 1, 0.5)]),
        ("share + c σ(G4)", 1, True, [lambda share, n, c=c: share + c * sigmoid(g4) for c in (0.25, 0.5, 0.75, 1, 1.5, 2, 3)]),
        ("share + c σ((G4 − m)/s)", 3, True, [lambda share, n, c=c, m=m, s=s: share + c * sigmoid((g4 - m) / s)
                                              for c in (0.5, 1, 1.5, 2) for m in (-1.5, -1, -0.5, 0) for s in (0.25, 0.5, 1)]),
        ("share + c · G4 from a to b, cut off", 3, True, [lambda share, n, c=c, a=a, b=b: share + c * low(a, b)
                                                          for c in (0.5, 1, 1.5) for a in (-3, -2.5, -2) for b in (0, 0.5, 1)]),
        ("G4 worth k samples: (n share + k σ(G4 + 1))/(n + k)", 1, False,
         [lambda share, n, k=k: (n * share + k * sigmoid(g4 + 1)) / (n + k) for k in (1, 2, 3, 4, 5)]),
    ]


def choice(run, agrees):
    pairs = Pairs(run.labels, agrees)
    right, wrong = pairs.right, pairs.wrong
    found = [(name, constants, same_for_all, [pairs.ranked(form) for form in settings])
             for name, constants, same_for_all, settings in forms(run.score("g4"))]
    held = {name: [] for name, *_ in found}
    for split in range(20):
        rng = np.random.default_rng(SEED + split)
        a, b = [rng.permutation(np.arange(len(one)) % 5) for one in (right, wrong)]
        for name, _, _, settings in found:
            for fold in range(5):
                fitted = [ranked[np.ix_(a != fold, b != fold)].mean() for ranked in settings]
                held[name].append(settings[int(np.argmax(fitted))][np.ix_(a == fold, b == fold)].mean())
    draws = np.random.default_rng(SEED).integers(0, len(run.labels), (1000, len(run.labels)))
    counts = np.stack([np.bincount(draw, minlength=len(run.labels)) for draw in draws]).astype(float)
    of = lambda ranked: ((counts[:, right] @ ranked) * counts[:, wrong]).sum(1)  # noqa: E731
    best = {name: max(settings, key=np.mean) for name, *_, settings in found}
    size = counts[:, right].sum(1) * counts[:, wrong].sum(1)
    print("\n| form | constants | same for any number | held out | on all | sd |\n| --- | ---: | --- | ---: | ---: | ---: |")
    for name, constants, same_for_all, _ in found:
        sd = ((of(best[name]) - of(best[REGISTERED])) / size).std()
        print(f"| {name} | {constants} | {'yes' if same_for_all else 'no'} | {np.mean(held[name]):.4f} | {best[name].mean():.4f} | {sd:.4f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--resamples", type=int, default=2_000)
    options = parser.parse_args()
    run = Run(options.run)
    print(f"{run.name}, exploratory: {len(run.samples)} answered items\n")
    choice(run, frontier(run, Bootstrap(len(run.samples), options.resamples)))


if __name__ == "__main__":
    main()
