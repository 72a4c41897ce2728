"""Published benchmarks as the JSON lines that `uqac eval` reads.

    python -m uqac.tasks gsm8k > gsm8k.jsonl
    python -m uqac.tasks bbh:navigate > navigate.jsonl
    uqac eval -m MODEL -t gsm8k.jsonl -o runs/gsm8k

Rows are loaded with `datasets` (`pip install datasets`), which downloads them from the Hugging Face hub.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

__all__ = ["TASKS", "lines", "main"]

Row = Mapping[str, Any]


class Task(NamedTuple):
    """A dataset on the hub, and how to read its rows."""

    dataset: str
    config: str | None
    split: str
    #: Converts a row to `{question, answer, grader}`.
    item: Callable[[Row], dict[str, str]]


def _gsm8k(row: Row) -> dict[str, str]:
    answer = str(row["answer"]).rsplit("####", 1)[-1].strip().replace(",", "")
    return {"question": row["question"], "answer": answer, "grader": "number"}


def _math(row: Row) -> dict[str, str]:
    ask = "Put your final answer within \\boxed{}."
    return {"question": f"{row['problem']}\n\n{ask}", "answer": row["answer"], "grader": "math"}


def _choices(question: str, choices: Iterable[str], right: int) -> dict[str, str]:
    letters = "ABCDEFGHIJ"
    listed = [f"({letter}) {choice}" for letter, choice in zip(letters, choices)]
    text = "\n".join([question, *listed, "", 'End with "The answer is (X)", where X is the letter of the right option.'])
    return {"question": text, "answer": letters[right], "grader": "choice"}


def _mmlu(row: Row) -> dict[str, str]:
    return _choices(row["question"], row["choices"], int(row["answer"]))


def _mmlu_pro(row: Row) -> dict[str, str]:
    return _choices(row["question"], row["options"], int(row["answer_index"]))


def _bbh(row: Row) -> dict[str, str]:
    target = row["target"]
    grader = "choice" if re.fullmatch(r"\([A-Z]\)", target) else "number" if re.fullmatch("-?[0-9]+", target) else "exact"
    ask = "Put your final answer within \\boxed{}."
    return {"question": f"{row['input']}\n\n{ask}", "answer": target, "grader": grader}


#: The benchmarks by name; `bbh` takes its subtask after a colon.
TASKS = {
    "gsm8k": Task("openai/gsm8k", "main", "test", _gsm8k),
    "math-500": Task("HuggingFaceH4/MATH-500", None, "test", _math),
    "bbh": Task("lukaemon/bbh", None, "test", _bbh),
    "mmlu": Task("cais/mmlu", "all", "test", _mmlu),
    "mmlu-pro": Task("TIGER-Lab/MMLU-Pro", None, "test", _mmlu_pro),
}


def lines(name: str, rows: Iterable[Row] | None = None) -> Iterator[str]:
    """The lines of a benchmark, from `rows` or from the hub.

    Raises ImportError without `datasets`, KeyError for a name that is not in TASKS, ValueError for `bbh` without a subtask, and any
    exception of `datasets`.
    """
    name, _, subtask = name.partition(":")
    task = TASKS[name]
    if (name == "bbh") != bool(subtask):
        raise ValueError(f"{name}: expected bbh:SUBTASK (such as bbh:navigate), or another name without a colon")
    config = subtask or task.config
    if rows is None:
        try:
            from datasets import load_dataset
        except ImportError:
            raise ImportError("datasets is not installed: pip install datasets") from None
        rows = load_dataset(task.dataset, config, split=task.split)
    for row in rows:
        yield json.dumps(task.item(row), ensure_ascii=False)


def main(arguments: list[str] | None = None) -> int:
    """Writes a benchmark to standard output or a file."""
    parser = argparse.ArgumentParser("python -m uqac.tasks", description="Published benchmarks as JSON lines for uqac eval")
    parser.add_argument("task", help=f"one of {', '.join(sorted(TASKS))}; bbh as bbh:SUBTASK")
    parser.add_argument("-o", "--output", metavar="FILE", help="default: standard output")
    options = parser.parse_args(arguments)
    if options.task.partition(":")[0] not in TASKS:
        parser.error(f"unknown task {options.task}; valid names: {', '.join(sorted(TASKS))}, bbh as bbh:SUBTASK")
    try:
        found = lines(options.task)
        first = next(found)
    except (ImportError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    target = open(options.output, "w", encoding="utf-8") if options.output else nullcontext(sys.stdout)
    with target as out:
        for line in (first, *found):
            print(line, file=out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
