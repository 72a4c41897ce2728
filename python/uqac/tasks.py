"""Published benchmarks as the JSON lines that `uqac eval` reads.

    python -m uqac.tasks gsm8k > gsm8k.jsonl
    python -m uqac.tasks bbh:navigate > navigate.jsonl
    uqac eval -m MODEL -t gsm8k.jsonl -o runs/gsm8k

Rows are loaded with `datasets` (`pip install datasets`), which downloads them from the Hugging Face hub. `--list` prints each
benchmark's dataset, its licence, and whether the hub asks for an account that has accepted its terms. `olympiadbench` is that
benchmark's competition mathematics in English, without pictures and proofs; problems with several answers are left out, and so
are answers within a tolerance.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

__all__ = ["TASKS", "lines", "main"]

Row = Mapping[str, Any]
Item = dict[str, Any]


class Task(NamedTuple):
    """A dataset on the hub, and how to read its rows."""

    dataset: str
    config: str | None
    split: str
    #: Converts a row to `{question, answer, grader}`; `None` leaves the row out.
    item: Callable[[Row], Item | None]
    #: The dataset's licence as its card states it.
    licence: str
    #: Whether the hub gives the files only to an account that has accepted the dataset's terms.
    gated: bool = False


def _boxed(question: str, answer: Any, grader: str) -> Item:
    return {"question": f"{question}\n\nPut your final answer within \\boxed{{}}.", "answer": answer, "grader": grader}


def _gsm8k(row: Row) -> Item:
    answer = str(row["answer"]).rsplit("####", 1)[-1].strip().replace(",", "")
    return {"question": row["question"], "answer": answer, "grader": "number"}


def _math(row: Row) -> Item:
    return _boxed(row["problem"], row["answer"], "math")


def _aime_2024(row: Row) -> Item:
    return _integer(row["Problem"], row["Answer"])


def _integer(problem: str, answer: Any) -> Item:
    """A competition's problem. Its answer is an integer, also where the dataset writes `142.0`, `025` or `336^\\circ`."""
    found = re.fullmatch(r"([0-9]+)(\.0)?(\^\\circ)?", str(answer).strip())
    if found is None:
        raise ValueError(f"expected an integer as the answer, found {answer!r}")
    return _boxed(problem, str(int(found[1])), "number")


def _olympiad(row: Row) -> Item | None:
    """An open-ended problem with one exact answer. Left out: several answers at once, and numbers within a tolerance."""
    if row["is_multiple_answer"] or row["error"]:
        return None
    context = f"{row['context']}\n\n" if row.get("context") else ""
    unit = f" The unit of the answer is {row['unit']}; leave it out." if row.get("unit") else ""
    return _boxed(f"{context}{row['question']}{unit}", row["final_answer"][0].strip().strip("$"), "math")


def _choices(question: str, choices: Iterable[str], right: int) -> Item:
    letters = "ABCDEFGHIJ"
    listed = [f"({letter}) {choice}" for letter, choice in zip(letters, choices)]
    text = "\n".join([question, *listed, "", 'End with "The answer is (X)", where X is the letter of the right option.'])
    return {"question": text, "answer": letters[right], "grader": "choice"}


def _mmlu(row: Row) -> Item:
    return _choices(row["question"], row["choices"], int(row["answer"]))


def _mmlu_pro(row: Row) -> Item:
    return _choices(row["question"], row["options"], int(row["answer_index"]))


def _gpqa(row: Row) -> Item:
    """The four options in an order that depends on nothing but the question, and so is the same on every machine."""
    question, right = row["Question"].strip(), row["Correct Answer"].strip()
    options = [right, *(row[f"Incorrect Answer {n}"].strip() for n in (1, 2, 3))]
    options.sort(key=lambda option: hashlib.sha256(f"{question}\0{option}".encode()).digest())
    return _choices(question, options, options.index(right))


def _bbh(row: Row) -> Item:
    target = row["target"]
    grader = "choice" if re.fullmatch(r"\([A-Z]\)", target) else "number" if re.fullmatch("-?[0-9]+", target) else "exact"
    return _boxed(row["input"], target, grader)


#: The benchmarks by name; `bbh` takes its subtask after a colon.
TASKS = {
    "gsm8k": Task("openai/gsm8k", "main", "test", _gsm8k, "MIT"),
    "math-500": Task("HuggingFaceH4/MATH-500", None, "test", _math, "none stated (MATH: MIT)"),
    "aime-2024": Task("Maxwell-Jia/AIME_2024", None, "train", _aime_2024, "MIT"),
    "aime-2025": Task("math-ai/aime25", None, "test", lambda row: _integer(row["problem"], row["answer"]), "see its card"),
    "amc": Task("AI-MO/aimo-validation-amc", None, "train", lambda row: _integer(row["problem"], row["answer"]), "Apache-2.0"),
    "olympiadbench": Task("Hothan/OlympiadBench", "OE_TO_maths_en_COMP", "train", _olympiad, "Apache-2.0"),
    "bbh": Task("lukaemon/bbh", None, "test", _bbh, "none stated (BIG-Bench Hard: MIT)"),
    "mmlu": Task("cais/mmlu", "all", "test", _mmlu, "MIT"),
    "mmlu-pro": Task("TIGER-Lab/MMLU-Pro", None, "test", _mmlu_pro, "MIT"),
    "gpqa-diamond": Task("Idavidrein/gpqa", "gpqa_diamond", "train", _gpqa, "CC-BY-4.0", gated=True),
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
        item = task.item(row)
        if item is not None:
            yield json.dumps(item, ensure_ascii=False)


_TERMS = "accept its terms on the hub, then `hf auth login`"


def _listed() -> str:
    """A line per benchmark: name, dataset, licence, terms."""
    return "\n".join(
        f"{name:14} {task.dataset:28} {task.licence}" + (f"; gated: {_TERMS}" if task.gated else "")
        for name, task in TASKS.items()
    )


def main(arguments: list[str] | None = None) -> int:
    """Writes a benchmark to standard output or a file."""
    parser = argparse.ArgumentParser("python -m uqac.tasks", description="Published benchmarks as JSON lines for uqac eval")
    parser.add_argument("task", nargs="?", help=f"one of {', '.join(sorted(TASKS))}; bbh as bbh:SUBTASK")
    parser.add_argument("-o", "--output", metavar="FILE", help="default: standard output")
    parser.add_argument("--list", action="store_true", help="print the benchmarks with their datasets and licences")
    options = parser.parse_args(arguments)
    if options.list:
        print(_listed())
        return 0
    if options.task is None:
        parser.error("expected a task, or --list")
    if options.task.partition(":")[0] not in TASKS:
        parser.error(f"unknown task {options.task}; valid names: {', '.join(sorted(TASKS))}, bbh as bbh:SUBTASK")
    try:
        found = lines(options.task)
        first = next(found)
    except (ImportError, OSError, ValueError) as error:
        task = TASKS[options.task.partition(":")[0]]
        refused = task.gated and isinstance(error, OSError)
        print(f"error: {error}" + (f"; {task.dataset} is gated: {_TERMS}" if refused else ""), file=sys.stderr)
        return 2
    target = open(options.output, "w", encoding="utf-8") if options.output else nullcontext(sys.stdout)
    with target as out:
        for line in (first, *found):
            print(line, file=out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
