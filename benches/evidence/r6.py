#!/usr/bin/env python3
"""The registered measures of R6 (EVIDENCE.md): r6.py PART PART PART --before R1 R2 R3 R4 R5 [--resamples N]

Needs numpy and scikit-learn. The parts' differences are pooled as in tables.py: each weighted by the inverse of its bootstrap
variance. The ridge is a logistic regression on the scores that derive from token probabilities alone and that all runs have, as
normal scores of their ranks within a run; its one parameter is the best of seven by leave-one-out over the earlier runs. Written
before R6 was complete.
"""
import argparse
from pathlib import Path

import numpy as np
from measures import Bootstrap, auroc, held_out, holm, less, pooled, shown, two_sided
from samples import LOGARITHMS, Run
from scipy.stats import norm, rankdata
from sklearn.linear_model import LogisticRegression

# Scores from attention, a chain or other passes, or G4 itself.
NO_TOKEN_SCORE = {"p", "p_attn", "p_sim", "attn_mean", "sim_mean", "attn_logprob", "sim_logprob", "p_logprob", "rauq", "lookback_ratio",
                  "attention_score", "g4", "coe_r", "coe_c", "self_consistency", "self_consistency_majority"}
OF_ATTENTION = ["rauq", "lookback_ratio", "attention_score"]
RIDGE = 10.0 ** np.arange(-5, 2)


def token_scores(runs):
    """The scores that every answered item of every run has."""
    keys = set.intersection(*({key for sample in run.samples for key in sample["uq"]["scores"]} for run in runs))
    keys -= NO_TOKEN_SCORE | set(LOGARITHMS.values())
    return sorted(key for key in keys if all(np.isfinite(run.score(key)).all() for run in runs))


def ranks(run, keys):
    """The normal score of each item's rank in the run, [items, keys]."""
    scores = np.array([rankdata(run.score(key)) for key in keys]).T
    return norm.ppf((scores - 0.5) / len(scores))


def ridge(runs, keys):
    """Returns a function of a run: the regression fitted on `runs`, all weighted equally."""
    def fit(among, c):
        x, y = np.concatenate([ranks(run, keys) for run in among]), np.concatenate([run.labels for run in among])
        weights = np.concatenate([np.full(len(run.labels), 1000 / len(run.labels)) for run in among])
        return LogisticRegression(C=c, max_iter=5000).fit(x, y, sample_weight=weights)

    def without(c):
        found = [fit([other for other in runs if other is not run], c).decision_function(ranks(run, keys)) for run in runs]
        return np.mean([auroc(scores, run.labels) for scores, run in zip(found, runs)])
    best = max(RIDGE, key=without)
    model = fit(runs, best)
    print(f"Ridge: {len(keys)} token scores, C = {best:g}, AUROC of the earlier runs, each left out, {without(best):.3f}")
    return lambda run: model.decision_function(ranks(run, keys))


def of_attention(run, boot):
    """Picks the best attention score on the even items and compares it with G4 on the odd ones, and vice versa."""
    even = np.arange(len(run.labels)) % 2 == 0
    found = []
    for fit, held in [(even, ~even), (~even, even)]:
        def value(key):
            use = fit & np.isfinite(run.score(key))
            return auroc(run.score(key)[use], run.labels[use])
        best = max(OF_ATTENTION, key=value)
        print(f"{run.name}: {best}")
        found.append(less(run, boot, run.score(best), run.score("g4"), held))
    return np.mean([value for value, _ in found]), np.mean([resampled for _, resampled in found], axis=0)


def of_control(run, boot, key, drawn):
    """A score over the chain minus its mean over a control's draws."""
    found = [less(run, boot, run.score(key), one) for one in drawn]
    return np.mean([value for value, _ in found]), np.mean([resampled for _, resampled in found], axis=0)


def last_tokens(run):
    """ln of the product over the answer's tokens and as many tokens before them as the chain has."""
    found = []
    for sample in run.samples:
        uq = sample["uq"]
        logprobs = np.array([0.0 if one is None else one for one in uq["tokens"]["logprobs"]])
        start, end = [position - uq["n_instr"] for position in uq["answer"]["tokens"]]
        size = sum(link["from"] is not None for link in uq["chain"])
        found.append(logprobs[max(0, start - size):end].sum())
    return np.array(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", type=Path)
    parser.add_argument("--before", nargs="+", type=Path, required=True)
    parser.add_argument("--resamples", type=int, default=10_000)
    options = parser.parse_args()
    runs, before = [Run(folder) for folder in options.parts], [Run(folder) for folder in options.before]
    boots = [Bootstrap(len(run.samples), options.resamples) for run in runs]
    for run, boot in zip(runs, boots):
        of = lambda scores: shown(auroc(scores, run.labels), boot.auroc(scores, run.labels))  # noqa: E731
        print(f"{run.name}: {run.right} of {run.graded} right, {len(run.samples)} answered, {run.errors} errors; AUROC of " + ", ".join(
            f"{key} {of(run.score(key))}" for key in ["g4", "response_prob", "p", "p_sim", "p_attn", *OF_ATTENTION]))
    weights = ridge(before, token_scores(before + runs))
    by = lambda measure: [measure(run, boot) for run, boot in zip(runs, boots)]
    base = lambda run: run.score("response_prob")
    attention = by(of_attention)
    print("\n| | " + " | ".join(run.name for run in runs) + " | pooled |\n| --- |" + " --- |" * (len(runs) + 1))
    pooled(runs, "primary: G4 less log P(response), AUROC", by(lambda run, boot: less(run, boot, run.score("g4"), base(run))))
    pooled(runs, "primary: the same, held-out Brier", by(lambda run, boot: held_out(run, boot, run.score("g4"), base(run))))
    tests = [
        pooled(runs, "(a) ridge less log P(response)", by(lambda run, boot: less(run, boot, weights(run), base(run)))),
        pooled(runs, "(b) the best score of attention less G4", attention),
        pooled(runs, "(c) P_sim, chain less digits-matched",
               by(lambda run, boot: of_control(run, boot, "p_sim", run.control("digits-matched", "p_sim")))),
        pooled(runs, "(d) product over the chain less the last k tokens",
               by(lambda run, boot: of_control(run, boot, "p_attn", [last_tokens(run)]))),
    ]
    pooled(runs, "ridge less G4", by(lambda run, boot: less(run, boot, weights(run), run.score("g4"))))
    pooled(runs, "log P(response) less P", by(lambda run, boot: less(run, boot, base(run), run.score("p"))))
    print("\n| secondary | p | corrected |\n| --- | --- | --- |")
    for p, name, corrected in holm([(two_sided(resampled), name) for name, _, resampled in tests]):
        print(f"| {name} | {p:.4f} | {corrected:.4f} |")


if __name__ == "__main__":
    main()
