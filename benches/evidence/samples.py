"""Input of the tables in EVIDENCE.md: samples of runs, and the measures, for tables.py and its parts."""
import gzip
import json

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

SEED = 20261122
# For a product of probabilities: the score with its logarithm, which is used for ranking.
LOGARITHMS = {"answer_prob": "answer_logprob", "response_prob": "response_logprob", "p_attn": "attn_logprob",
              "p_sim": "sim_logprob", "p": "p_logprob"}
CHAIN_SCORES = ["p_attn", "p_sim", "p"]
CHAINS = ["random", "random-digits", "digits-matched", "random-content", "similarity", "none"]


def lines(file):
    opened = gzip.open(file, "rt") if file.suffix == ".gz" else open(file)
    with opened as text:
        return [json.loads(line) for line in text]


class Run:
    """The answered, graded items of a run."""

    def __init__(self, folder):
        files = sorted(folder.glob("samples_*.jsonl*"))
        samples = [sample for file in files for sample in lines(file)]
        samples.sort(key=lambda sample: (sample["task"], sample["doc_id"]))
        self.name = folder.name
        self.errors = sum(sample["uq"]["status"] == "error" for sample in samples)
        graded = [sample for sample in samples if sample["uq"]["status"] != "error"]
        self.graded, self.right = len(graded), sum(sample["metrics"]["acc"] == 1 for sample in graded)
        self.samples = [sample for sample in graded if sample["uq"]["status"] == "ok"]
        self.labels = np.array([sample["metrics"]["acc"] == 1 for sample in self.samples])
        silent = [sample for sample in graded if sample["uq"]["status"] != "ok"]
        self.silent = np.array([sample["metrics"]["acc"] == 1 for sample in silent], bool)
        self.tokens = np.array([len(sample["uq"]["tokens"]["ids"]) for sample in self.samples])
        self.tasks = np.array([sample["task"] for sample in self.samples])
        self.index = {(sample["task"], sample["doc_id"]): i for i, sample in enumerate(self.samples)}
        self.controls = {}
        for i, sample in enumerate(self.samples):
            for point in sample["uq"].get("sweep", []):
                self.add(i, point)
        for file in sorted(folder.glob("sweep_*.jsonl*")):
            task = file.name.removeprefix("sweep_").split(".jsonl")[0]
            for row in lines(file):
                key = next((key for key in [(task, row["doc_id"]), (task.replace("_", ":", 1), row["doc_id"])]
                            if key in self.index), None)
                if key is not None:
                    self.add(self.index[key], row)

    def add(self, i, point):
        setting = point["setting"]
        if set(setting) <= {"chain", "draw"} and setting.get("chain") in CHAINS:
            draws = self.controls.setdefault(setting["chain"], {}).setdefault(setting.get("draw", 0), {})
            draws.setdefault(i, {}).update(point["scores"])

    def score(self, key):
        """The values used for ranking; NaN for an item without one."""
        return self.probability(LOGARITHMS.get(key, key))

    def probability(self, key):
        """The values as stored in the samples."""
        values = [sample["uq"]["scores"].get(key) for sample in self.samples]
        return np.array([np.nan if value is None else value for value in values], float)

    def control(self, chain, key):
        """A score over a control's chains, [draws, items]; NaN where it was not drawn."""
        draws = self.controls.get(chain, {})
        rank = LOGARITHMS[key]
        found = np.full((len(draws), len(self.samples)), np.nan)
        for row, items in zip(found, draws.values()):
            for i, scores in items.items():
                value = scores.get(rank)
                if value is None and scores.get(key):
                    value = np.log(scores[key])
                row[i] = np.nan if value is None else value
        return found


class Bootstrap:
    """Resamples of items; statistics are computed on a batch of counts [B, n]."""

    def __init__(self, n, resamples):
        draw = np.random.default_rng(SEED).integers(0, n, size=(resamples, n))
        self.counts = np.stack([np.bincount(row, minlength=n) for row in draw]).astype(np.float32)

    def auroc(self, scores, labels, among=None):
        """AUROC of every resample, over the items `among`."""
        among = np.isfinite(scores) if among is None else among
        scores, labels, counts = scores[among], labels[among], self.counts[:, among]
        order = np.argsort(scores, kind="stable")
        scores, labels = scores[order], labels[order]
        starts = np.flatnonzero(np.r_[True, scores[1:] != scores[:-1]])
        found = []
        for chunk in np.array_split(counts, max(1, counts.size // 4_000_000)):
            chunk = chunk[:, order].astype(np.float64)
            right = np.add.reduceat(chunk * labels, starts, axis=1)
            wrong = np.add.reduceat(chunk * ~labels, starts, axis=1)
            below = np.cumsum(wrong, axis=1) - 0.5 * wrong
            with np.errstate(invalid="ignore"):
                found.append((right * below).sum(1) / (right.sum(1) * wrong.sum(1)))
        return np.concatenate(found)


def interval(values):
    return np.nanpercentile(values, [2.5, 97.5])


def shown(value, resampled, sign=""):
    low, high = interval(resampled)
    return f"{value:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"


def two_sided(resampled):
    """Two-sided bootstrap p value for a difference of 0."""
    resampled = resampled[np.isfinite(resampled)]
    return min(1, 2 * (min((resampled <= 0).sum(), (resampled >= 0).sum()) + 1) / (len(resampled) + 1))


def holm(found):
    """Rows that start with their p, sorted ascending, each with its p after Holm's correction over all of them."""
    corrected = 0
    for i, row in enumerate(sorted(found, key=lambda row: row[0])):
        corrected = max(corrected, min(1, row[0] * (len(found) - i)))
        yield *row, corrected


def pool(found):
    """Pools (value, resamples) of several runs, each weighted by the inverse of its bootstrap variance."""
    weights = np.array([1 / np.nanvar(resampled) for _, resampled in found])
    weights /= weights.sum()
    return sum(w * value for w, (value, _) in zip(weights, found)), sum(w * resampled for w, (_, resampled) in zip(weights, found))


def ece(p, labels, bins):
    """Equal-width bins [a, b), the last closed; weighted |mean p − accuracy|."""
    place = np.minimum((p * bins).astype(int), bins - 1)
    gaps = [(place == b).sum() * abs(p[place == b].mean() - labels[place == b].mean()) for b in set(place)]
    return sum(gaps) / len(p)


def auroc(scores, labels):
    return roc_auc_score(labels, scores) if 0 < labels.sum() < len(labels) else np.nan


def feature(run, key):
    """Logarithms of products unchanged; log-odds of other probabilities."""
    if key in LOGARITHMS and key != "p":
        return run.score(key)
    p = np.clip(run.probability(key), 1e-12, 1 - 1e-12)
    return np.log(p) - np.log1p(-p)


def platt(scores, labels):
    mean, sd = scores.mean(), scores.std() or 1.0
    model = LogisticRegression(C=1e6).fit(((scores - mean) / sd)[:, None], labels)
    return lambda scores: model.predict_proba(((scores - mean) / sd)[:, None])[:, 1]


def wilson(k, n, z=1.959963984540054):
    centre, half = (k + z * z / 2) / (n + z * z), z / (n + z * z) * (k * (n - k) / n + z * z / 4) ** 0.5
    return centre - half, centre + half
