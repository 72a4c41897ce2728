"""Benchmarks converted to the lines that `uqac eval` reads."""

import json
import sys
import types

import pytest

from uqac import tasks

ROWS = {
    "gsm8k": {"question": "How many?", "answer": "9 * 2 = <<9*2=18>>18\n#### 1,018"},
    "math-500": {"problem": "What is $1/2$?", "answer": "\\frac{1}{2}", "subject": "Algebra"},
    "bbh:navigate": {"input": "Do you return?", "target": "Yes"},
    "mmlu": {"question": "Which?", "choices": ["a", "b", "c", "d"], "answer": 2, "subject": "law"},
    "mmlu-pro": {"question": "Which?", "options": list("abcdefghij"), "answer": "J", "answer_index": 9},
}
ANSWERS = {"bbh:navigate": ("Yes", "exact"), "gsm8k": ("1018", "number"), "math-500": ("\\frac{1}{2}", "math"), "mmlu": ("C", "choice"), "mmlu-pro": ("J", "choice")}


@pytest.mark.parametrize("name", sorted(ROWS))
def test_a_row_is_a_question_with_its_answer_and_grader(name):
    (line,) = tasks.lines(name, [ROWS[name]])
    item = json.loads(line)
    assert (item["answer"], item["grader"]) == ANSWERS[name] and item["question"]
    if item["grader"] == "choice":
        assert "(C) c" in item["question"]


def test_bbh_has_a_subtask_and_its_grader_is_the_targets():
    graders = [json.loads(line)["grader"] for line in tasks.lines("bbh:x", [{"input": "", "target": t} for t in ("(B)", "-12", "] }")])]
    assert graders == ["choice", "number", "exact"]
    for name in ("bbh", "gsm8k:navigate"):
        with pytest.raises(ValueError, match="bbh:SUBTASK"):
            next(tasks.lines(name, []))
    with pytest.raises(SystemExit):
        tasks.main(["unknown"])


def test_the_program_evaluates_them(tmp_path, program):
    path = tmp_path / "mmlu.jsonl"
    path.write_text("".join(line + "\n" for line in tasks.lines("mmlu", [ROWS["mmlu"]])))
    program("eval", "-m", "abacus", "--device", "cpu", "-t", str(path), "-o", str(tmp_path / "run"), "--max-tokens", "8", "--json")
    assert (tmp_path / "run" / "results.json").exists()


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert tasks.main(["gsm8k"]) == 2 and "pip install datasets" in capsys.readouterr().err
    asked = []

    def load_dataset(name, config, *, split):
        asked.append((name, config, split))
        return [ROWS["gsm8k"]] * 2

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    assert tasks.main(["gsm8k", "-o", str(tmp_path / "out.jsonl")]) == 0
    assert asked == [("openai/gsm8k", "main", "test")] and len((tmp_path / "out.jsonl").read_text().splitlines()) == 2
    with pytest.raises(KeyError):  # the rows here belong to gsm8k
        tasks.main(["bbh:navigate", "-o", str(tmp_path / "out.jsonl")])
    assert asked[-1] == ("lukaemon/bbh", "navigate", "test")
    assert tasks.main(["gsm8k"]) == 0 and len(capsys.readouterr().out.splitlines()) == 2
