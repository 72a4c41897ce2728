"""The statistics of EVIDENCE.md, shared by all analyses: intervals from resampled items, corrections, fits."""
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

SEED = 20261122


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


def platt(scores, labels):
    mean, sd = scores.mean(), scores.std() or 1.0
    model = LogisticRegression(C=1e6).fit(((scores - mean) / sd)[:, None], labels)
    return lambda scores: model.predict_proba(((scores - mean) / sd)[:, None])[:, 1]


def wilson(k, n, z=1.959963984540054):
    centre, half = (k + z * z / 2) / (n + z * z), z / (n + z * z) * (k * (n - k) / n + z * z / 4) ** 0.5
    return centre - half, centre + half


def balanced(labels):
    """The paper's samples with equal numbers of right and wrong answers, at most 500 each, of seeds 0 to 4; each the same as
    `DataFrame.sample(n, random_state=seed)`."""
    right, wrong = np.flatnonzero(labels), np.flatnonzero(~labels)
    n = min(len(right), len(wrong), 500)

    def half(seed, among):
        return among[np.random.RandomState(seed).choice(len(among), n, replace=False)]
    return [np.r_[half(seed, right), half(seed, wrong)] for seed in range(5)]


def less(run, boot, scores, base, among=None):
    """Difference of AUROCs on the items that have both scores."""
    both = np.isfinite(scores) & np.isfinite(base) & (True if among is None else among)
    value = auroc(scores[both], run.labels[both]) - auroc(base[both], run.labels[both])
    return value, boot.auroc(scores, run.labels, both) - boot.auroc(base, run.labels, both)


def held_out(run, boot, scores, base):
    """Reduction in Brier score: every item's squared error when held out from Platt's fit, averaged over 20 splits, resampled by
    item."""
    errors, times = np.zeros((2, len(run.labels))), np.zeros(len(run.labels))
    among = np.isfinite(scores) & np.isfinite(base)
    for k in range(20):
        split = np.random.default_rng(SEED + k).permutation(len(run.labels))
        split = split[among[split]]
        fit, held = split[: len(split) // 2], split[len(split) // 2:]
        times[held] += 1
        for error, one in zip(errors, [scores, base]):
            error[held] += (platt(one[fit], run.labels[fit])(one[held]) - run.labels[held]) ** 2
    among &= times > 0
    gap = (errors[0] - errors[1])[among] / times[among]
    counts = boot.counts[:, among].astype(np.float64)
    return gap.mean(), counts @ gap / counts.sum(1)


def pooled(runs, name, found):
    """Prints a measure's row, one cell per run and the pooled one; returns its name, the pooled value and its resamples."""
    value, resampled = pool(found)
    cells = [shown(*one, "+") for one in found] + [f"**{shown(value, resampled, '+')}**"]
    print(f"| {name} | " + " | ".join(cells) + " |")
    return name, value, resampled
