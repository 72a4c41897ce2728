"""Evaluations from Python."""

import json
from pathlib import Path

import pytest
from conftest import PENCILS

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


def test_own_scores_are_stored_reported_and_computed_again(model, run, program):
    report = json.loads(program("report", str(run.folder), "--format", "json", "--resamples", "0"))
    assert "last" in [method["key"] for method in report["methods"]]
    edited = uqac.evaluate(model, ["abacus"], run.folder, limit=6, scores={"last": lambda trace: 0.25}, progress=False)
    assert [sample["uq"]["scores"]["last"] for sample in edited.samples] == [0.25] * 6
    with pytest.raises(ValueError, match="p is one of uqac's own"):
        uqac.evaluate(model, ["abacus"], run.folder, scores={"p": last})
    with pytest.raises(ValueError, match="g4 is one of uqac's own"):
        model.score_many([], scores={"g4": last})


def test_an_exception_in_a_score_names_it_and_loses_nothing(model, run):
    def fails(trace):
        raise KeyError("entropy")

    both = {"fails": fails, "half": lambda trace: 0.5}
    with pytest.raises(uqac.Error, match=r"abacus \d: score fails: KeyError: 'entropy' .and 5 more.; all other scores are stored"):
        uqac.evaluate(model, "abacus", run.folder, limit=6, scores=both, progress=False)
    scores = [sample["uq"]["scores"] for sample in uqac.load_run(run.folder).samples]
    assert all(found["half"] == 0.5 and found["fails"] is None for found in scores) and len(scores) == 6
    (found,) = model.score_many([{"id": "a", "prompt": PENCILS, "response": "It is \\boxed{29}."}], scores=both, progress=False)
    assert found.error == "item a: score fails: KeyError: 'entropy'" and found.scores["half"] == 0.5 and found.p is not None


def test_evaluate_takes_what_the_command_takes(model, tmp_path):
    run = uqac.evaluate(
        model, "abacus", tmp_path / "run", limit=2, methods=["self-consistency"], samples=2, temperature=0.7, profile="paper",
        rules={"threshold": "at-least"}, parameters={"k": 8}, ensemble=False, trace=["heads"], draws=0, shots=0, progress=False,
    )  # fmt: skip
    options = run.manifest["options"]
    assert (options["profile"], options["rules"], options["parameters"]) == ("paper", {"threshold": "at-least"}, {"k": 8})
    assert (options["samples"], options["temperature"]) == (2, 0.7)
    scores = run.samples[0]["uq"]["scores"]
    assert "p" not in scores and scores["rauq"] is not None and options["ensemble"] is False
    with pytest.raises(uqac.Error, match="unexpected argument '--sampels'"):
        uqac.evaluate(model, "abacus", tmp_path / "run", sampels=3, progress=False)


def test_a_run_has_a_report_and_pictures(run, tmp_path):
    assert "<!doctype html>" in run.report(tmp_path / "page").read_text().lower()
    assert run.report(tmp_path / "report.md").read_text().startswith("#")
    picture = run.plot("g4")
    assert "<svg" in picture and picture._repr_svg_() == picture


def test_a_relative_folder_stays_the_model_after_chdir(tmp_path, monkeypatch):
    folder = uqac.load("abacus", device="cpu").info["folder"]
    monkeypatch.chdir(Path(folder).parent)
    model = uqac.load(Path(folder).name + "/", device="cpu")
    monkeypatch.chdir(tmp_path)
    assert len(uqac.evaluate(model, "abacus", tmp_path / "run", limit=1, progress=False).samples) == 1


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
