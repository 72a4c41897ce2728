"""Metrics of confidences, as in `uqac report`.

Scores: higher is more confident; items with a NaN score have none and are left out. Labels: whether the answer is correct. Ties
never matter: where a definition needs an order, the value is its expectation over all orders of the tied items. An undefined metric
(no items, only one class) is `None`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal

from . import _uqac

__all__ = [
    "aurc",
    "auprc",
    "auroc",
    "bootstrap",
    "brier",
    "ece",
    "length_controlled_auroc",
    "prr",
    "reliability",
    "risk_coverage",
]

Scores = Iterable[float]
Labels = Iterable[Any]
Name = Literal["auroc", "ece", "ece_right", "brier", "auprc", "aurc", "prr"]


def auroc(scores: Scores, labels: Labels) -> float | None:
    """Area under the ROC curve: the probability that a correct answer has a higher score than an incorrect one, ties counting half."""
    return _metric("auroc", scores, labels)


def auprc(scores: Scores, labels: Labels) -> float | None:
    """Average precision, like scikit-learn's `average_precision_score`."""
    return _metric("auprc", scores, labels)


def aurc(scores: Scores, labels: Labels) -> float | None:
    """Area under the risk-coverage curve; lower is better."""
    return _metric("aurc", scores, labels)


def prr(scores: Scores, labels: Labels) -> float | None:
    """Prediction rejection ratio, rejecting up to half: 1 is perfect, 0 is chance."""
    return _metric("prr", scores, labels)


def brier(scores: Scores, labels: Labels) -> float | None:
    """Brier score: the mean of (score - label)²."""
    return _metric("brier", scores, labels)


def ece(scores: Scores, labels: Labels, *, bins: Literal["left", "right"] = "left") -> float | None:
    """Expected calibration error over 20 equal bins: [a, b) as in the authors' code, or (a, b] as in their paper with
    `bins="right"`."""
    return _metric("ece" if bins == "left" else "ece_right", scores, labels)


def length_controlled_auroc(scores: Scores, lengths: Iterable[int], labels: Labels) -> float | None:
    """AUROC among responses of similar length: over pairs in the same quintile of the lengths."""
    return _uqac.length_controlled_auroc(_floats(scores), [int(length) for length in lengths], _labels(labels))


def reliability(scores: Scores, labels: Labels, *, bins: Literal["left", "right"] = "left") -> list[dict[str, Any]]:
    """The 20 bins of the reliability diagram: low, high, items, confidence (mean score) and accuracy, `None` for an empty bin."""
    found: list[dict[str, Any]] = json.loads(
        _uqac.reliability(_floats(scores), _labels(labels), "ece" if bins == "left" else "ece_right")
    )
    return found


def risk_coverage(scores: Scores, labels: Labels) -> list[dict[str, float]]:
    """The risk-coverage curve, in order of decreasing score: threshold, coverage and risk."""
    curve: list[dict[str, float]] = json.loads(_uqac.risk_coverage(_floats(scores), _labels(labels)))
    return curve


def bootstrap(
    name: Name, scores: Scores, labels: Labels, *, resamples: int = 1000, seed: int = 0
) -> tuple[float, float] | None:
    """The interval containing 95 % of a metric's values over resampled items (percentile bootstrap)."""
    return _uqac.bootstrap(name, _floats(scores), _labels(labels), resamples, seed)


def _metric(key: str, scores: Scores, labels: Labels) -> float | None:
    values = _floats(scores)
    if key in ("ece", "ece_right", "brier"):
        outside = next((value for value in values if value < 0 or value > 1), None)
        if outside is not None:
            raise ValueError(f"{key}: expected probabilities, found {outside}")
    return _uqac.metric(key, values, _labels(labels))


def _floats(scores: Scores) -> list[float]:
    return [float(score) for score in scores]


def _labels(labels: Labels) -> list[bool]:
    return [bool(label) for label in labels]
