#!/usr/bin/env python3
"""The registered tables of EVIDENCE.md, from samples alone: tables.py FOLDER... [--resamples N] [--against results.json]

Needs numpy and scikit-learn, but not uqac: AUROC and Brier come from scikit-learn, the rest is implemented here. Each folder is a
run's, as written by `uqac eval` or packed by pack.py. With --against the run's `uqac report --format json` is compared with the
values found here; a difference of 0.0005 or more is an error.
"""
import argparse
import json
import sys
from pathlib import Path

import beyond
import measures
import numpy as np
from measures import SEED, Bootstrap, auroc, ece, holm, interval, less, platt, pool, shown, two_sided, wilson
from samples import CHAIN_SCORES, CHAINS, LOGARITHMS, Run, feature
from sklearn.metrics import brier_score_loss

# The paper's baselines that claim to be probabilities.
BASELINES = ["answer_prob", "answer_mean", "response_prob", "response_mean", "ln_predictive_entropy", "ln_answer_entropy"]
# Q6: single-pass methods newer than the paper's baselines.
NEWER = ["deepconf", "deepconf_answer", "deepconf_tail", "deepconf_bottom", "deepconf_lowest", "deepconf_tail_64",
         "deepconf_bottom_64", "deepconf_lowest_64", "self_certainty", "self_certainty_answer", "renyi", "renyi_answer",
         "fisher_rao", "fisher_rao_answer", "boosted_prob", "boosted_prob_answer", "content_logprob",
         "content_mean_logprob", "content_min_prob", "content_entropy", "entropy_slope", "entropy_linearity",
         "entropy_cusum", "min_token_prob"]


def ranking(run, boot):
    """Q1, which is returned, and Q6's methods: every score's AUROC and its difference to P."""
    print(f"\n### {run.name}: ranking\n\n| score | n | AUROC [95 %] | less P's, on the same items [95 %] |\n| --- | --- | --- | --- |")
    p = run.score("p")
    keys = sorted({key for sample in run.samples for key in sample["uq"]["scores"]} - set(LOGARITHMS.values()))
    rows, asked = [], {}
    for key in keys + ["(number of tokens)", "(task identity)"]:
        scores = {"(number of tokens)": -run.tokens.astype(float), "(task identity)": identity(run)}.get(key)
        scores = run.score(key) if scores is None else scores
        if key == "self_consistency_majority" or np.isfinite(scores).sum() < 2:
            continue
        among = np.isfinite(scores)
        value, own = auroc(scores[among], run.labels[among]), boot.auroc(scores, run.labels)
        difference, paired = less(run, boot, scores, p)
        rows.append((value, f"| {key} | {among.sum()} | {shown(value, own)} | {'' if key == 'p' else shown(difference, paired, '+')} |"))
        if key == "response_prob":
            asked = {"Q1: log P(response) over P, AUROC": (difference, paired)}
    for _, row in sorted(rows, key=lambda row: -row[0]):
        print(row)
    return asked


def identity(run):
    """The accuracy on the other items of the item's task."""
    found = np.full(len(run.labels), np.nan)
    if len(set(run.tasks)) > 1:
        for task in set(run.tasks):
            here = run.tasks == task
            n, right = here.sum(), run.labels[here].sum()
            if n > 1:
                found[here] = (right - run.labels[here]) / (n - 1)
    return found


def controls(run, boot, among=None, title="the chain against its controls"):
    """Q2, which is returned, and Q7 with `among`."""
    asked = {}
    among = np.ones(len(run.labels), bool) if among is None else among
    print(f"\n### {run.name}: {title}\n\n| score | chain | n | draws | AUROC of the attention's [95 %] | of the control's [95 %] "
          "| difference [95 %] | verdict |\n| --- | --- | --- | --- | --- | --- | --- | --- |")
    for key in CHAIN_SCORES:
        for chain in CHAINS:
            found = run.control(chain, key)
            if not len(found):
                continue
            both = among & np.isfinite(run.score(key)) & np.isfinite(found).all(0)
            if min(run.labels[both].sum(), (~run.labels[both]).sum()) < 20:
                print(f"| {key} | {chain} | {both.sum()} | {len(found)} | | | | fewer than 20 right or wrong |")
                continue
            own, own_resampled = auroc(run.score(key)[both], run.labels[both]), boot.auroc(run.score(key), run.labels, both)
            value = np.mean([auroc(row[both], run.labels[both]) for row in found])
            resampled = np.mean([boot.auroc(row, run.labels, both) for row in found], axis=0)
            low, high = interval(own_resampled - resampled)
            verdict = "better" if low > 0 else "worse" if high < 0 else "no better than a coin" if -0.05 <= low and high <= 0.05 \
                else "undecided"
            print(f"| {key} | {chain} | {both.sum()} | {len(found)} | {shown(own, own_resampled)} | {shown(value, resampled)} "
                  f"| {shown(own - value, own_resampled - resampled, '+')} | {verdict} |")
            asked[f"Q2: {key} with the chain over {chain}, AUROC"] = own - value, own_resampled - resampled
    return asked


def calibration(run, resamples):
    """The parts of Q3, and Q4 by halves."""
    print(f"\n### {run.name}: raw calibration\n\n| score | n | ECE, 10 bins [95 %] | ECE, 20 bins | Brier |\n| --- | --- | --- | --- | --- |")
    rng = np.random.default_rng(SEED)
    for key in ["p", "p_attn", "p_sim", "answer_prob", "response_prob", "response_mean", "min_token_prob", "self_consistency"]:
        p = run.probability(key)
        among = np.isfinite(p)
        if among.sum() < 2:
            continue
        p, labels = p[among], run.labels[among]
        draws = rng.integers(0, len(p), size=(min(resamples, 2000), len(p)))
        resampled = [ece(p[draw], labels[draw], 10) for draw in draws]
        print(f"| {key} | {among.sum()} | {shown(ece(p, labels, 10), resampled)} | {ece(p, labels, 20):.3f} "
              f"| {brier_score_loss(labels, p):.3f} |")
    print(f"\n### {run.name}: Platt's fit on one half, measured on the other, 20 splits\n\n| score | Brier, mean ± sd | ECE (10 bins), mean ± sd | ECE of as many labels drawn from the fit |\n| --- | --- | --- | --- |")
    rng = np.random.default_rng(SEED)
    splits = [np.random.default_rng(SEED + k).permutation(len(run.labels)) for k in range(20)]
    for key in ["response_prob", "p", "min_token_prob"]:
        scores = feature(run, key)
        among = np.isfinite(scores)
        errors = []
        for split in splits:
            split = split[among[split]]
            fit, held = split[: len(split) // 2], split[len(split) // 2:]
            if len(set(run.labels[fit])) == 2:
                p = platt(scores[fit], run.labels[fit])(scores[held])
                # the ECE of a perfectly calibrated fit: bins with few answers deviate by chance
                chance = np.mean([ece(p, rng.random(len(p)) < p, 10) for _ in range(50)])
                errors.append((brier_score_loss(run.labels[held], p), ece(p, run.labels[held], 10), chance))
        if errors:
            (b, e, chance), (sb, se, _) = np.mean(errors, axis=0), np.std(errors, axis=0)
            print(f"| {key} | {b:.4f} ± {sb:.4f} | {e:.4f} ± {se:.4f} | {chance:.4f} |")


def raw_calibration(run, resamples):
    """Q3: by how much P's ECE exceeds the minimum token probability's, on the same items."""
    p, least = run.probability("p"), run.probability("min_token_prob")
    among = np.isfinite(p) & np.isfinite(least)
    if among.sum() < 2:
        return {}
    p, least, labels = p[among], least[among], run.labels[among]

    def gap(draw):
        return ece(p[draw], labels[draw], 10) - ece(least[draw], labels[draw], 10)
    draws = np.random.default_rng(SEED).integers(0, len(p), size=(resamples, len(p)))
    return {"Q3: P over the least token probability, ECE": (gap(np.arange(len(p))), np.array([gap(draw) for draw in draws]))}


def transfer(runs):
    """Q5."""
    if len(runs) < 2:
        return
    print("\n### A fit on one run, tried on another: ECE (10 bins) of Platt on log P(response)\n\n| fitted on | tried on | ECE |\n| --- | --- | --- |")
    for fitted in runs:
        scores = feature(fitted, "response_prob")
        use = np.isfinite(scores)
        model = platt(scores[use], fitted.labels[use])
        for tried in runs:
            if tried is not fitted:
                scores = feature(tried, "response_prob")
                use = np.isfinite(scores)
                print(f"| {fitted.name} | {tried.name} | {ece(model(scores[use]), tried.labels[use], 10):.3f} |")


def newer(run, boot):
    """Q6: selected on the even items, measured on the odd ones, and vice versa."""
    even = np.arange(len(run.labels)) % 2 == 0
    differences, resampled = {"p": [], "response_prob": []}, {"p": [], "response_prob": []}
    chosen = []
    for fit, held in [(even, ~even), (~even, even)]:
        def value(key):
            use = fit & np.isfinite(run.score(key))
            return auroc(run.score(key)[use], run.labels[use]) if use.sum() > 1 else -1
        best = max(NEWER, key=value)
        chosen.append(best)
        for other in differences:
            value, drawn = less(run, boot, run.score(best), run.score(other), held)
            differences[other].append(value)
            resampled[other].append(drawn)
    print(f"\n### {run.name}: the best newer method of one half on the other ({', '.join(chosen)})\n\n| less | AUROC difference [95 %] |\n| --- | --- |")
    asked = {}
    for other in differences:
        found = np.mean(differences[other]), np.mean(resampled[other], axis=0)
        print(f"| {other} | {shown(*found, '+')} |")
        asked[f"Q6: the best newer method over {other}, AUROC"] = found
    return asked


def of_questions(runs, asked):
    """Every question's differences over the runs: two-sided bootstrap p, with Holm's factor."""
    print("\n## Holm's correction over the runs of one question\n\n| question | run | difference [95 %] | p | corrected | |\n| --- | --- | --- | --- | --- | --- |")
    for question in sorted({question for answers in asked for question in answers}):
        found = []
        for run, answers in zip(runs, asked):
            if question in answers:
                difference, resampled = answers[question]
                found.append((two_sided(resampled), run.name, difference, resampled))
        for p, name, difference, resampled, corrected in holm(found):
            verdict = "" if corrected >= 0.05 else "more" if difference > 0 else "less"
            print(f"| {question} | {name} | {shown(difference, resampled, '+')} | {p:.4f} | {corrected:.4f} | {verdict} |")


def pooled(runs, asked):
    """Every question over all runs: the differences, weighted by the inverse of each run's bootstrap variance."""
    print("\n## Pooled over runs\n\n| question | runs | difference [95 %] |\n| --- | --- | --- |")
    for question in sorted({question for answers in asked for question in answers}):
        found = [(run.name, answers[question]) for run, answers in zip(runs, asked) if question in answers]
        for among in [found, [one for one in found if one[0] != "R1"]]:
            if len(among) < 2 or (among is not found and len(among) == len(found)):
                continue
            names, answers = zip(*among)
            print(f"| {question} | {', '.join(names)} | {shown(*pool(answers), '+')} |")


def balanced(run):
    """The paper's claim: ECE in 20 bins on samples with equal numbers of right and wrong answers, next to a constant, which is
    useless as a confidence. The interval is over bootstrap resamples of the items, drawn from once."""
    right, wrong = np.flatnonzero(run.labels), np.flatnonzero(~run.labels)
    n = min(len(right), len(wrong), 500)
    print(f"\n### {run.name}: ECE on balanced samples, {n} right and {n} wrong\n\n| score | ECE, 20 bins, mean ± sd [95 %] | AUROC, mean |\n| --- | --- | --- |")
    samples = measures.balanced(run.labels)
    rng = np.random.default_rng(SEED)
    worlds = [np.r_[rng.choice(right, n), rng.choice(wrong, n)] for _ in range(1000)]
    rows = [("constant 0.5", np.full(len(run.labels), 0.5))]
    rows += [(key, run.probability(key)) for key in ["p", "p_sim", "p_attn", *BASELINES, "min_token_prob"]]
    for key, p in rows:
        if not np.isfinite(p).all() or p.min() < 0:
            continue
        eces = [ece(p[one], run.labels[one], 20) for one in samples]
        low, high = interval([ece(p[one], run.labels[one], 20) for one in worlds])
        ranks = np.mean([auroc(p[one], run.labels[one]) for one in samples])
        print(f"| {key} | {np.mean(eces):.3f} ± {np.std(eces):.3f} [{low:.3f}, {high:.3f}] | {ranks:.3f} |")


def brier(labels, p):
    """scikit-learn's where it accepts p: 1 - mean entropy, whose calibration the paper shows, may be below 0."""
    return brier_score_loss(labels, p) if p.min() >= 0 else np.mean((p - labels) ** 2)


def compare(run, results):
    """Compares scikit-learn's figures with the report's, task by task; returns whether they agree."""
    tasks = json.loads(Path(results).read_text())["runs"][0]["tasks"]
    worst, n = 0.0, 0
    for task, method in [(task["task"], method) for task in tasks for method in task["methods"]]:
        key = method["method"]
        if key == "self_consistency_majority":
            continue
        scores = run.score(key)
        here = (run.tasks == task) | np.char.startswith(run.tasks, f"{task}:")
        among = np.isfinite(scores) & here
        pairs = [(method["answered"]["metrics"].get("auroc"), auroc(scores[among], run.labels[among]))]
        p = run.probability(key)[among]
        if method["answered"]["metrics"].get("ece") is not None:
            pairs += [(method["answered"]["metrics"]["ece"], ece(p, run.labels[among], 20)),
                      (method["answered"]["metrics"].get("brier"), brier(run.labels[among], p))]
        for ours, theirs in pairs:
            if ours is not None:
                n, worst = n + 1, max(worst, abs(ours["value"] - theirs))
    print(f"\n{run.name}: {n} figures of the report beside scikit-learn's: largest difference {worst:.2g}")
    return worst < 0.0005


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--resamples", type=int, default=10_000)
    parser.add_argument("--against", help="of the first folder: uqac report --format json")
    options = parser.parse_args()
    runs = [Run(folder) for folder in options.folders]
    asked, boots = [], []
    for run in runs:
        low, high = wilson(run.right, run.graded)
        print(f"\n## {run.name}: {run.right} of {run.graded} right, {100 * run.right / run.graded:.1f} % [{100 * low:.1f}, {100 * high:.1f}], "
              f"{len(run.samples)} answered, {run.errors} errors")
        boot = Bootstrap(len(run.samples), options.resamples)
        answers = ranking(run, boot) | controls(run, boot)
        calibration(run, options.resamples)
        balanced(run)
        beyond.unanswered(run)
        answers |= raw_calibration(run, options.resamples) | newer(run, boot) | beyond.same_length(run, boot)
        asked.append(answers | beyond.after_a_fit(run, boot) | beyond.digits(run, boot))
        boots.append(boot)
        thirds = np.quantile(run.tokens, [1 / 3, 2 / 3])
        place = np.searchsorted(thirds, run.tokens)
        for third in range(3):
            controls(run, boot, place == third, f"Q2 among the {['shortest', 'middle', 'longest'][third]} third of the responses")
    asked = [one | more for one, more in zip(asked, beyond.g4(runs, boots))]
    of_questions(runs, asked)
    beyond.family(runs, asked)
    pooled(runs, asked)
    transfer(runs)
    if options.against and not compare(runs[0], options.against):
        sys.exit("the report and scikit-learn differ")


if __name__ == "__main__":
    main()
