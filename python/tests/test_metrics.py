"""The metrics equal those of `uqac report`, and follow their definitions."""

import json

import numpy as np
import pytest

from uqac import metrics


def test_small_cases_by_hand():
    scores, labels = [0.9, 0.8, 0.3, 0.3], [True, True, False, True]
    assert metrics.auroc(scores, labels) == pytest.approx((1 + 1 + 0.5) / 3)
    assert metrics.brier(scores, labels) == pytest.approx(np.mean((np.array(scores) - np.array(labels)) ** 2))
    assert metrics.ece(scores, labels) == pytest.approx((0.1 + 0.2 + 2 * 0.2) / 4)
    assert metrics.ece([0.05], [True], bins="right") == pytest.approx(0.95)
    assert metrics.auroc([0.5], [True]) is None and metrics.ece([], []) is None
    with pytest.raises(ValueError, match="ece: expected probabilities, found 1.5"):
        metrics.ece([0.5, 1.5], [True, False])
    curve = metrics.risk_coverage(scores, labels)
    assert [point["coverage"] for point in curve] == [0.25, 0.5, 1.0] and curve[-1]["risk"] == 0.25
    bins = metrics.reliability(np.array(scores), np.array(labels))
    assert len(bins) == 20 and sum(bin["items"] for bin in bins) == 4 and bins[18]["accuracy"] == 1.0


def test_auroc_is_the_share_of_pairs():
    random = np.random.default_rng(1)
    scores, labels = random.integers(0, 20, 200) / 20, random.random(200) < 0.4
    right, wrong = scores[labels], scores[~labels]
    pairs = (right[:, None] > wrong).mean() + (right[:, None] == wrong).mean() / 2
    assert metrics.auroc(scores, labels) == pytest.approx(pairs, rel=1e-12)
    low, high = metrics.bootstrap("auroc", scores, labels, resamples=200, seed=3)
    assert low < metrics.auroc(scores, labels) < high
    assert metrics.bootstrap("auroc", scores, labels, resamples=200, seed=3) == (low, high)
    assert metrics.length_controlled_auroc(scores, [7] * 200, labels) == metrics.auroc(scores, labels)


def test_bad_input_is_an_error():
    with pytest.raises(ValueError, match="2 scores, but 1 labels"):
        metrics.auroc([0.1, 0.2], [True])
    with pytest.raises(ValueError, match="valid names: auroc, ece"):
        metrics.bootstrap("f1", [0.1], [True])


def test_an_evaluation_has_the_same_numbers(program, tmp_path):
    program("eval", "-q", "-m", "abacus", "--device", "cpu", "-t", "abacus", "-n", "12", "--output", str(tmp_path))
    samples = [json.loads(line) for line in (tmp_path / "samples_abacus.jsonl").read_text().splitlines()]
    report = json.loads(program("report", str(tmp_path), "--format", "json"))
    answered = [sample for sample in samples if sample["uq"]["status"] == "ok"]
    labels = [sample["metrics"]["acc"] for sample in answered]
    for key in ("min_token_prob", "attn_mean"):  # not for scores ranked by their logarithm
        scores = [sample["uq"]["scores"][key] for sample in answered]
        expected = next(measures(report, key))["metrics"]
        found = {name: metrics._metric(name, scores, labels) for name in expected}
        # the report reads scores from a file, where a value may be off by one unit in the last place: n of them by 12 · 2^-52
        assert found == {
            name: estimate and pytest.approx(estimate["value"], rel=12 * 2**-52) for name, estimate in expected.items()
        }
        assert found["auroc"] is not None


def measures(value, method):
    """The metrics of a method over answered items, from everywhere in the report."""
    if isinstance(value, dict) and value.get("method") == method and "answered" in value:
        yield value["answered"]
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from measures(inner, method)
