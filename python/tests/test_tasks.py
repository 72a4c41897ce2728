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
    "aime-2024": {"ID": "2024-I-1", "Problem": "How many?", "Solution": "", "Answer": 25},
    "aime-2025": {"problem": "What angle?", "answer": "336^\\circ", "id": "0"},
    "amc": {"id": 0, "problem": "How many?", "answer": 142.0, "url": ""},
    "olympiadbench": {
        "question": "Which?", "context": "Let $x$ be real.", "final_answer": ["$\\frac{1}{2}$"], "is_multiple_answer": False, "unit": "cm", "error": None
    },
    "gpqa-diamond": {
        "Question": "Which? ", "Correct Answer": "c\n", "Incorrect Answer 1": "a", "Incorrect Answer 2": "b", "Incorrect Answer 3": "d"
    },
}
ANSWERS = {
    "bbh:navigate": ("Yes", "exact"),
    "gsm8k": ("1018", "number"),
    "math-500": ("\\frac{1}{2}", "math"),
    "mmlu": ("C", "choice"),
    "mmlu-pro": ("J", "choice"),
    "aime-2024": ("25", "number"),
    "aime-2025": ("336", "number"),
    "amc": ("142", "number"),
    "olympiadbench": ("\\frac{1}{2}", "math"),
    "gpqa-diamond": ("B", "choice"),
}


@pytest.mark.parametrize("name", sorted(ROWS))
def test_a_row_is_a_question_with_its_answer_and_grader(name):
    (line,) = tasks.lines(name, [ROWS[name]])
    item = json.loads(line)
    assert (item["answer"], item["grader"]) == ANSWERS[name] and item["question"]
    if item["grader"] == "choice":
        assert f"({item['answer']}) {'j' if name == 'mmlu-pro' else 'c'}" in item["question"]


def test_every_task_has_a_row_here():
    assert {name.partition(":")[0] for name in ROWS} == set(tasks.TASKS)


def test_the_right_option_is_not_always_in_the_same_place():
    rows = [{**ROWS["gpqa-diamond"], "Question": f"Question {n}?"} for n in range(200)]
    letters = [json.loads(line)["answer"] for line in tasks.lines("gpqa-diamond", rows)]
    # 200 draws of p = 1/4: mean 50, five standard deviations are 31
    assert all(19 <= letters.count(letter) <= 81 for letter in "ABCD")


def test_rows_without_one_exact_answer_are_left_out():
    row = ROWS["olympiadbench"]
    rows = [{**row, "is_multiple_answer": True}, {**row, "error": "1e-2"}, row]
    (line,) = tasks.lines("olympiadbench", rows)
    assert json.loads(line)["question"].startswith("Let $x$ be real.\n\nWhich? The unit of the answer is cm")
    with pytest.raises(ValueError, match="expected an integer"):
        next(tasks.lines("amc", [{"problem": "?", "answer": 1.5}]))


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


def test_licences_and_terms_are_said(monkeypatch, capsys):
    assert tasks.main(["--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == len(tasks.TASKS) and sum("gated: accept its terms" in line for line in listed) == 1
    with pytest.raises(SystemExit):
        tasks.main([])

    def load_dataset(name, config, *, split):
        raise FileNotFoundError(f"Dataset '{name}' is a gated dataset on the Hub.")

    capsys.readouterr()
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    assert tasks.main(["gpqa-diamond"]) == 2 and "Idavidrein/gpqa is gated: accept its terms" in capsys.readouterr().err
    assert tasks.main(["mmlu"]) == 2 and "accept its terms" not in capsys.readouterr().err
