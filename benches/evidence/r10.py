#!/usr/bin/env python3
"""R10 (EVIDENCE.md), thinking models: r10.py --pack RUNS FILE.jsonl.gz, by r10.sh; then r10.py FILE.jsonl.gz... [--resamples N]

Needs numpy and scikit-learn. RUNS has one folder of `uqac eval` per budget. A packed file starts with the manifests; each further line is one
item at one budget, without texts. --dry-run draws the labels by lot, so that every table has figures on a model that is never right.
"""
import argparse
import gzip
import json
import sys
from pathlib import Path

import numpy as np
from measures import SEED, Bootstrap, auroc, holm, less, pool, shown, two_sided, wilson
from samples import agreeing, g4_agreement, lines
from scipy.stats import norm, rankdata

FORMAT = 1
ITEMS = {"math-500": 500, "aime-2024": 30, "aime-2025": 30, "gpqa-diamond": 198}
GROUPS = {"math-500": "MATH-500", "aime-2024": "AIME", "aime-2025": "AIME", "gpqa-diamond": "GPQA-Diamond"}
BUDGETS = [4096, 16384, 32768]
# AUROC needs this many right and as many wrong answers; in a dry run, fewer.
LEAST, LEAST_DRY = 20, 5
# Scores of a packed record; some are in no table here.
SCORES = ["g4", "response_logprob", "p_logprob", "p_sim", "p_attn", "trace_length", "verbalized", "self_consistency", "min_token_prob",
          "answer_logprob", "predictive_entropy", "ln_predictive_entropy", "entropy_slope", "entropy_linearity", "entropy_cusum"]


def slim(sample, budget):
    """An item's record: what the tables need, and no text."""
    uq = sample["uq"]
    found = {"budget": budget, "task": sample["task"], "id": sample["doc_id"], "status": uq["status"],
             "right": sample["metrics"].get("acc") == 1, "cut_off": uq.get("cut_off"), "forced": bool(uq.get("forced"))}
    if uq["status"] == "error":
        return found
    found |= {"tokens": len(uq["tokens"]["ids"]), "thought": uq.get("thought", 0)}
    if uq["status"] == "ok":
        found["scores"] = {key: uq["scores"].get(key) for key in SCORES}
        found["agrees"] = list(agreeing(sample))
        found["chain"] = chain(uq)
    return found


def chain(uq):
    """Tokens of the chain in the thought and after it, the answer's left out: number, and ln of the product of their probabilities."""
    logprobs, thought = uq["tokens"]["logprobs"], uq.get("thought", 0)
    rows = [link["row"] + 1 for link in uq["chain"] if link["from"] is not None]
    inside, outside = [row for row in rows if row < thought], [row for row in rows if row >= thought]
    return {name: [len(part), sum(logprobs[row] or 0.0 for row in part)] for name, part in (("inside", inside), ("outside", outside))}


def pack(runs, file):
    folders = sorted((folder for folder in runs.iterdir() if folder.name.isdigit()), key=lambda folder: int(folder.name))
    manifests = {folder.name: json.loads((folder / "manifest.json").read_text()) for folder in folders}
    for manifest in manifests.values():
        manifest.pop("command", None)  # it has the paths of a private machine
    records = [{"r10": FORMAT, "manifests": manifests}]
    for folder in folders:
        samples = [sample for part in sorted(folder.glob("samples_*.jsonl")) for sample in lines(part)]
        samples.sort(key=lambda sample: (sample["task"], sample["doc_id"]))
        records += [slim(sample, int(folder.name)) for sample in samples]
    with open(file, "wb") as out, gzip.GzipFile("", "wb", 9, out, mtime=0) as packed:
        for record in records:
            packed.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")


class Group:
    """The answered items of one benchmark at one budget, with every score by name."""

    def __init__(self, records, least):
        self.least = least
        answered = [record for record in records if record["status"] == "ok"]
        self.labels = np.array([record["right"] for record in answered], bool)
        value = lambda key: np.array([np.nan if record["scores"].get(key) is None else record["scores"][key]  # noqa: E731
                                      for record in answered], float)
        part = lambda name: np.array([record["chain"][name][1] for record in answered], float)  # noqa: E731
        answer = value("answer_logprob")
        agrees = np.array([np.mean(record["agrees"]) for record in answered], float)
        self.scores = {
            "G4": value("g4"), "g4_agreement (1 sample)": g4_agreement(agrees, value("g4")), "agreement (1 sample)": agrees,
            "P": value("p_logprob"), "log P(response)": value("response_logprob"), "answer": answer,
            "chain in the thought": answer + part("inside"), "chain after the thought": answer + part("outside"),
            "length": value("trace_length"), "verbalized": value("verbalized"),
            "length + verbalized": normal(value("trace_length"), value("verbalized")),
            "entropy slope": value("entropy_slope"), "entropy linearity": value("entropy_linearity"), "entropy CUSUM": value("entropy_cusum"),
        }

    def enough(self, *keys):
        """Whether the items that have all these scores suffice for AUROC."""
        labels = self.labels[np.isfinite([self.scores[key] for key in keys]).all(0)]
        return min(labels.sum(), (~labels).sum()) >= self.least


def normal(*scores):
    """The sum of the normal scores of ranks, over the items that have all."""
    both = np.isfinite(scores).all(0)
    found = np.full(both.shape, np.nan)
    if both.any():
        found[both] = sum(norm.ppf((rankdata(one[both]) - 0.5) / both.sum()) for one in scores)
    return found


def complaints(records):
    seen = {(record["budget"], record["task"], record["id"]) for record in records}
    wanted = {(budget, task, i) for budget in BUDGETS for task, n in ITEMS.items() for i in range(n)}
    return f"{len(wanted - seen)} of {len(wanted)} items are missing, {len(seen - wanted)} are not R10's" if seen != wanted else None


def accuracies(budget, records):
    print(f"\n### Budget {budget}: accuracy\n\n| benchmark | items | a thought over the budget is wrong | of the completed | the budget forced "
          "| over the budget | reply cut off | errors | thought, median tokens |\n| --- | ---: | --- | --- | --- | ---: | ---: | ---: | ---: |")
    for name in dict.fromkeys(GROUPS.values()):
        here = [record for record in records if GROUPS.get(record["task"]) == name]
        done = [record for record in here if not record["forced"] and record["cut_off"] is None and record["status"] != "error"]
        right = sum(record["right"] for record in done)

        def share(k, n):
            return f"{100 * k / n:.1f} % [{', '.join(f'{100 * end:.1f}' for end in wilson(k, n))}]" if n else "–"
        thoughts = [record["thought"] for record in here if "thought" in record]
        print(f"| {name} | {len(here)} | {share(right, len(here))} | {share(right, len(done))} | {share(sum(r['right'] for r in here), len(here))} "
              f"| {sum(r['forced'] for r in here)} | {sum(r['cut_off'] is not None for r in here)} | {sum(r['status'] == 'error' for r in here)} "
              f"| {np.median(thoughts) if thoughts else 0:.0f} |")


def ranking(budget, groups, boots):
    print(f"\n### Budget {budget}: AUROC\n\n| score | " + " | ".join(groups) + " | pooled |\n| --- |" + " --- |" * (len(groups) + 1))
    for key in next(iter(groups.values())).scores:
        found, cells = [], []
        for name, group in groups.items():
            if not group.enough(key):
                cells.append("–")
                continue
            scores = group.scores[key]
            among = np.isfinite(scores)
            one = auroc(scores[among], group.labels[among]), boots[name].auroc(scores, group.labels)
            found.append(one)
            cells.append(shown(*one))
        print(f"| {key} | " + " | ".join(cells) + f" | {shown(*pool(found)) if found else '–'} |")


def registered(groups, boots, smallest, resamples):
    """Primary and secondary measures at the middle budget; (d) at the smallest."""
    def measure(key, base):
        found = [less(group, boots[name], group.scores[key], group.scores[base]) for name, group in groups.items() if group.enough(key, base)]
        return pool(found) if found else None
    gained = np.array([float(record["right"]) - (record["right"] and not record["forced"] and record["cut_off"] is None)
                       for record in smallest])
    draws = np.random.default_rng(SEED).integers(0, len(gained), (resamples, len(gained)))
    tests = [("primary: g4_agreement less G4, AUROC", measure("g4_agreement (1 sample)", "G4")),
             ("(a) G4 less log P(response), AUROC", measure("G4", "log P(response)")),
             ("(b) length + verbalized less G4, AUROC", measure("length + verbalized", "G4")),
             ("(c) the chain in the thought less after it, AUROC", measure("chain in the thought", "chain after the thought")),
             ("(d) accuracy with the smallest budget forced less without", (gained.mean(), gained[draws].mean(1)))]
    print("\n### Registered\n\n| measure | difference | p | corrected |\n| --- | --- | ---: | ---: |")
    for name, one in tests:
        if one is None:
            print(f"| {name} | too few right or wrong answers | | |")
    primary, *secondary = [(two_sided(one[1]), name, shown(*one, "+")) if one else None for name, one in tests]
    for p, name, difference, corrected in [(*primary, None)] * bool(primary) + list(holm([one for one in secondary if one])):
        print(f"| {name} | {difference} | {p:.4f} | {'' if corrected is None else f'{corrected:.4f}'} |")


def tables(file, resamples, dry):
    head, *records = lines(file)
    if head.get("r10") != FORMAT:
        sys.exit(f"{file}: expected a file of r10.sh in format {FORMAT}, found {str(head)[:60]}")
    problem = complaints(records)
    if problem and not dry:
        sys.exit(f"{file}: not complete; nothing was computed: {problem}")
    if dry:
        lots = np.random.default_rng(SEED)
        for record in records:
            record["right"] = bool(lots.random() < 0.5)
    budgets, middle = sorted({record["budget"] for record in records}), ({}, {})
    print(("DRY RUN, labels by lot: " if dry else "# R10: ") + file.name.removesuffix(".jsonl.gz"))
    for budget in budgets:
        here = [record for record in records if record["budget"] == budget]
        accuracies(budget, here)
        groups = {name: Group([record for record in here if GROUPS.get(record["task"]) == name], LEAST_DRY if dry else LEAST)
                  for name in dict.fromkeys(GROUPS.values())}
        boots = {name: Bootstrap(len(group.labels), resamples) for name, group in groups.items() if len(group.labels)}
        groups = {name: group for name, group in groups.items() if name in boots}
        if groups:
            ranking(budget, groups, boots)
            shares = [record["chain"] for record in here if "chain" in record]
            inside, outside = [sum(one[part][0] for one in shares) for part in ("inside", "outside")]
            print(f"\nOf the chain's tokens, {100 * inside / max(1, inside + outside):.0f} % are in the thought.")
        if budget == budgets[len(budgets) // 2] and groups:
            middle = groups, boots
    registered(*middle, [record for record in records if record["budget"] == budgets[0]], resamples)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--pack", nargs=2, type=Path, metavar=("RUNS", "FILE"))
    parser.add_argument("--resamples", type=int, default=10_000)
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    if options.pack:
        pack(*options.pack)
    for file in options.files:
        tables(file, options.resamples, options.dry_run)


if __name__ == "__main__":
    main()
