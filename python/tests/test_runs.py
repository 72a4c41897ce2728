"""Evaluations from Python."""

import json

import pytest

import uqac


def last(trace: uqac.Trace) -> float:
    return float(trace.heads["own"][-1].max() + trace.layer_means.mean() + trace.logprobs[-1])


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    return uqac.evaluate(model, "abacus", tmp_path_factory.mktemp("run"), limit=6, scores={"last": last}, progress=False)


def test_a_run_is_the_programs(run, program, tmp_path):
    program("eval", "-m", "abacus", "--device", "cpu", "-t", "abacus", "-n", "6", "-o", str(tmp_path))
    expected = uqac.load_run(tmp_path)
    assert run.manifest["options"] == expected.manifest["options"] and len(run.samples) == 6
    for found, sample in zip(run.samples, expected.samples):
        assert found["uq"]["scores"].pop("last") is not None
        assert {**found, "uq": {**found["uq"], "seconds": 0}} == {**sample, "uq": {**sample["uq"], "seconds": 0}}


def test_own_scores_are_stored_reported_and_computed_once(model, run, program):
    report = json.loads(program("report", str(run.folder), "--format", "json", "--resamples", "0"))
    assert "last" in [method["key"] for method in report["methods"]]
    resumed = uqac.evaluate(model, ["abacus"], run.folder, limit=6, scores={"last": lambda trace: 1 / 0}, progress=False)
    assert all("last" in sample["uq"]["scores"] for sample in resumed.samples)


def test_a_run_is_a_table(run):
    pytest.importorskip("pandas", reason="SKIPPED: pandas is not installed")
    table = uqac.load_run(run.folder).to_pandas()
    assert len(table) == 6 and (table["correct"] == (table["answer"] == table["target"])).all()
    assert table["last"].notna().all() and (table["response_tokens"] > 5).all()


def test_what_is_no_run_and_no_model_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="no run of uqac eval"):
        uqac.load_run(tmp_path)
    with pytest.raises(ValueError, match="own scores need a loaded model"):
        uqac.evaluate("abacus", "abacus", scores={"last": last})
    with pytest.raises(uqac.Error, match="no data found"):
        uqac.evaluate("abacus", "gsm8k", tmp_path / "run", data=tmp_path, progress=False)


def test_pandas_is_optional(run, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install uqac\[pandas\]"):
        run.to_pandas()


def test_the_model_is_evaluated_as_it_was_loaded(tmp_path):
    model = uqac.load("abacus", device="cpu", k_cache="f16", weights="q8", gamma=[0.5], template_args={"unused": False})
    found = uqac.evaluate(model, "abacus", tmp_path, limit=1, progress=False).manifest["model"]
    assert (found["k_cache"], found["gamma"], found["template_arguments"]) == ("f16", [0.5], {"unused": False})
    assert "q8" in json.dumps(found)
