"""One's own graders."""

import functools
import json
import subprocess
import sys

import pytest
from conftest import APPLES, PENCILS

import uqac
from uqac._grade import name_of


def exactly(answer, item, reply):
    return None if answer is None else answer == item["target"]


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    path = tmp_path_factory.mktemp("task") / "own.jsonl"
    rows = [(PENCILS, "29"), (APPLES, "thirteen"), ("What is 4 * 6?", "24")]
    lines = [json.dumps({"question": question, "answer": answer, "grader": "exact"}) + "\n" for question, answer in rows]
    path.write_text("".join(lines))
    return str(path)


def test_a_run_is_graded_once_and_stored_by_name(model, task, tmp_path):
    calls = []

    def spelled(answer, item, reply):
        calls.append(item["question"])
        assert reply.endswith(f"\\boxed{{{answer}}}.")
        return answer == {"thirteen": "13"}.get(item["target"], item["target"])

    run = uqac.evaluate(model, task, tmp_path, grader=spelled, progress=False)
    metrics = {sample["target"]: sample["metrics"] for sample in run.samples}
    assert (metrics["thirteen"]["acc"], metrics["thirteen"]["acc_built_in"], metrics["29"]["acc"]) == (1.0, 0.0, 1.0)
    assert {sample["uq"]["grader"] for sample in run.samples} == {"spelled"} and len(calls) == 3
    assert uqac.evaluate(model, task, tmp_path, grader=spelled, progress=False).samples == run.samples and len(calls) == 3
    assert uqac.evaluate(model, task, tmp_path, progress=False).samples == run.samples, "the program keeps it"


def test_an_exception_names_item_and_grader_and_loses_nothing(model, task, tmp_path):
    def fails(answer, item, reply):
        if item["target"] == "thirteen":
            raise KeyError("no such word")
        return None if item["target"] == "24" else True

    with pytest.raises(uqac.Error, match="own 1: grader fails: KeyError.*all other items are graded"):
        uqac.evaluate(model, task, tmp_path, grader=fails, progress=False)
    found = {sample["target"]: sample for sample in uqac.load_run(tmp_path).samples}
    assert [found[target]["uq"].get("grader") for target in ("29", "thirteen", "24")] == ["fails", None, "fails"]
    assert [found[target]["metrics"].get("acc") for target in ("29", "thirteen", "24")] == [1.0, 0.0, None]

    items = [{"id": "a", "prompt": "1+1?", "response": "It is 2.", "target": "24"}, {"id": "b", "prompt": "?", "response": "7", "target": "thirteen"}]
    results = model.score_many([*items, {"id": "bad"}], grader=fails, progress=False)
    assert [result.record.get("correct") for result in results] == [None, None, None]
    assert "item b: grader fails: KeyError" in results[1].error and results[1].scores and results[0].error is None
    with pytest.raises(uqac.Error, match="expected True, False or None, found 'yes'"):
        uqac.evaluate(model, task, tmp_path / "other", grader=lambda *_: "yes", progress=False)


def test_the_thought_is_not_the_reply(model):
    seen = []
    item = {"prompt": "1+1?", "response": "<think>Is it 3?</think>\nIt is 2.", "target": "2", "grader": "number"}
    [result] = model.score_many([item], grader=lambda *given: bool(seen.append(given)), progress=False)
    assert (seen[0][0], seen[0][2].strip(), result.record["correct"]) == ("2", "It is 2.", False)
    assert result.record["grader"].startswith("<lambda> ")


def test_every_callable_has_a_name_that_tells_it_from_others():
    class Judge:
        def __call__(self, answer, item, reply):
            return True

    def upto(most, answer, item, reply):
        return len(answer) <= most

    assert [name_of(grader) for grader in (exactly, Judge(), functools.partial(upto, 3), functools.partial(upto, most=3))] == [
        "exactly", "Judge", "upto(3)", "upto(most=3)",
    ]
    lambdas = [lambda *_: True, lambda *_: False, lambda answer, *_: answer in {"a", "b"}, *(lambda *_, n=n: n for n in (1, 2))]
    lambdas += [(lambda n: lambda *_: n)(n) for n in (1, 2)]
    names = [name_of(grader) for grader in lambdas]
    assert len(set(names)) == len(names) and names == [name_of(grader) for grader in lambdas]
    again = f"from uqac._grade import name_of\nprint(name_of(lambda answer, *_: answer in {{'b', 'a'}}))"
    done = subprocess.run([sys.executable, "-c", again], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == names[2], "another process gives the same name"


def test_math_verify_grades(model, tmp_path_factory):
    try:
        import math_verify
    except ImportError:
        folder = tmp_path_factory.mktemp("packages")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), "--timeout", "10", "--retries", "1"]
        done = subprocess.run([*command, "math-verify[antlr4_13_2]"], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"SKIPPED: math-verify cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
        sys.path.append(str(folder))
        import math_verify

    def verified(answer, item, reply):
        return math_verify.verify(math_verify.parse(item["target"]), math_verify.parse(reply))

    cases = [("$\\frac{1}{2}$", "So it is $0.5$.", True), ("$x+1$", "It is $\\boxed{1+x}$.", True), ("$3$", "It is $4$.", False)]
    items = [{"prompt": "?", "response": response, "target": target} for target, response, _ in cases]
    results = model.score_many(items, grader=verified, progress=False)
    assert [(result.error, result.record["correct"]) for result in results] == [(None, right) for *_, right in cases]
