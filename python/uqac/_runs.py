"""Evaluations: run by the program, read back from their folders."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _uqac
from ._grade import Grader, grade, name_of
from ._model import Model, _finite
from ._result import Trace, frame

if TYPE_CHECKING:
    from pandas import DataFrame


class Run:
    """A run folder of `uqac eval`: `manifest`, and `samples`, one dict per item as stored in the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text("utf-8"))
        except FileNotFoundError:
            raise FileNotFoundError(f"{folder} is no run of uqac eval: it has no manifest.json") from None
        # if an item occurs twice, the last one counts
        samples = {(sample["task"], sample["doc_id"]): sample for path in _files(folder) for sample in _lines(path)}
        self.samples: list[dict[str, Any]] = [samples[key] for key in sorted(samples)]

    def to_pandas(self) -> DataFrame:
        """One row per item: `task`, `doc_id`, `target`, `answer`, `correct`, `status`, `finish`, `cut_off`, `response_tokens`,
        `response`, and one column per score."""
        return frame(map(_row, self.samples))

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, items={len(self.samples)})"


def load_run(folder: str | os.PathLike[str]) -> Run:
    """Reads a run folder. Raises FileNotFoundError if there is none."""
    return Run(Path(folder))


def evaluate(
    model: Model | str,
    tasks: str | Sequence[str],
    output: str | os.PathLike[str] | None = None,
    *,
    limit: int | None = None,
    methods: Sequence[str] = (),
    scores: Mapping[str, Callable[[Trace], float | None]] | None = None,
    grader: Grader | None = None,
    data: str | os.PathLike[str] | None = None,
    max_tokens: int | None = None,
    thinking_budget: int | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    shots: int | None = None,
    wide_trace: bool = False,
    progress: bool = True,
) -> Run:
    """Evaluates a model as `uqac eval` does, in a separate process that loads it the way `model` was loaded, into the folder
    `output` (or a new temporary one), and returns the run. The same call resumes an interrupted run.

    `tasks` are names or JSON Lines files. `scores` are custom scores by name: functions of a response's Trace (with heads and
    layers), higher for more confident; their values are stored in the folder, so that `uqac report` shows them. They need a loaded
    `model`.

    `grader(answer, item, reply)` decides what is correct (True, False, or None: not graded) in place of the tasks' own graders, whose
    verdict a sample keeps as `acc_built_in`; `answer` is None if there is none, `item` the publisher's record with its `target`,
    `reply` the response without its thought. A sample keeps the grader's name, and is not graded again by one of that name.

    Raises Error if the evaluation fails, or, once all other items are graded and stored, for an exception of the grader.
    """
    if scores and not isinstance(model, Model):
        raise ValueError("scores: own scores need a loaded model, uqac.load(...)")
    folder = Path(output if output is not None else tempfile.mkdtemp(prefix="uqac-"))
    loaded = model._options if isinstance(model, Model) else {}
    flags: dict[str, Any] = {
        "--model": model.info["name"] if isinstance(model, Model) else model,
        "--device": model.info["device"].split(" ")[0] if isinstance(model, Model) else None,
        **{f"--{name.replace('_', '-')}": loaded.get(name) for name in ("k_cache", "v_cache", "threads", "weights", "speculate")},
        "--tasks": tasks if isinstance(tasks, str) else ",".join(tasks),
        "--output": folder,
        "--limit": limit,
        "--methods": ",".join(methods) or None,
        "--data": data,
        "--max-tokens": max_tokens,
        "--thinking-budget": thinking_budget,
        "--batch-size": batch_size,
        "--seed": seed,
        "--shots": shots,
    }
    arguments = [text for flag, value in flags.items() if value is not None for text in (flag, str(value))]
    for name, value in loaded.get("template_args", {}).items():
        arguments += ["--template-arg", f"{name}={json.dumps(value)}"]
    if "gamma" in loaded:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "gamma.json").write_text(json.dumps(loaded["gamma"]))
        arguments += ["--gamma", str(folder / "gamma.json")]
    arguments += (["--trace", "wide"] if wide_trace else []) + ([] if progress else ["--quiet"])
    script = "import sys; from uqac._cli import main; sys.argv[0] = 'uqac'; sys.exit(main())"
    # a separate process: Ctrl-C ends it, and the run can be resumed
    done = subprocess.run([sys.executable, "-c", script, "eval", "--json", *arguments], stdout=subprocess.DEVNULL, stderr=None if progress else subprocess.PIPE, text=True)
    if done.returncode not in (0, 1):  # 1: some items failed
        raise _uqac.Error(f"uqac eval ended with {done.returncode}" + (f": {done.stderr.strip()}" if done.stderr else ""))
    if scores and isinstance(model, Model):
        for path in _files(folder):
            _add(model, path, scores)
    if grader:
        _grade(load_run(folder), grader)
    return load_run(folder)


def _add(model: Model, path: Path, scores: Mapping[str, Callable[[Trace], float | None]]) -> None:
    """Adds custom scores to the samples in a file that have an answer and lack them."""
    samples = list(_lines(path))
    for sample in samples:
        uq = sample["uq"]
        missing = {name: function for name, function in scores.items() if name not in (uq["scores"] or {})}
        if uq["status"] != "ok" or not missing:
            continue
        prompt = model.encode(sample["arguments"][0][0], chat_template=False)[-uq["n_instr"] :]
        trace = model.trace(prompt, uq["tokens"]["ids"], answer_span=tuple(uq["answer"]["tokens"]), heads=True, layers=True)
        uq["scores"].update(_finite({name: function(trace) for name, function in missing.items()}))
    _write(path, samples)


def _grade(run: Run, grader: Grader) -> None:
    """Grades the samples of a run that this grader has not graded."""
    thinking = run.manifest["options"].get("thinking", "auto")
    failures: list[_uqac.Error] = []
    for path in _files(run.folder):
        samples = list(_lines(path))
        try:
            for sample in samples:
                _grade_sample(sample, grader, thinking, failures)
        finally:  # Ctrl-C keeps what has been graded
            _write(path, samples)
    if failures:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        raise _uqac.Error(f"{failures[0]}{more}; all other items are graded") from failures[0].__cause__


def _grade_sample(sample: dict[str, Any], grader: Grader, thinking: str, failures: list[_uqac.Error]) -> None:
    uq, metrics = sample["uq"], sample["metrics"]
    if uq["status"] == "error" or uq.get("grader") == name_of(grader):
        return
    item = {**sample["doc"], "target": sample["target"]}
    reply = _uqac.reply(sample["arguments"][0][0], sample["resps"][0][0], thinking)
    try:
        correct = grade(grader, (uq["answer"] or {}).get("text"), item, reply, f"{sample['task']} {sample['doc_id']}")
    except _uqac.Error as error:
        failures.append(error)
        return
    if "acc" in metrics and "grader" not in uq:
        metrics["acc_built_in"] = metrics["acc"]
    metrics.pop("acc", None)
    metrics.update({} if correct is None else {"acc": float(correct)})
    uq["grader"] = name_of(grader)


def _write(path: Path, samples: Sequence[Mapping[str, Any]]) -> None:
    written = path.with_suffix(".part")
    with gzip.open(written, "wt", encoding="utf-8") if path.suffix == ".gz" else open(written, "w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples)
    written.replace(path)


def _files(folder: Path) -> list[Path]:
    return sorted([*folder.glob("samples_*.jsonl"), *folder.glob("samples_*.jsonl.gz")])


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):  # an unterminated last line was not fully written
                yield json.loads(line)


def _row(sample: Mapping[str, Any]) -> dict[str, Any]:
    uq = sample["uq"]
    correct = sample["metrics"].get("acc")
    return {
        "task": sample["task"],
        "doc_id": sample["doc_id"],
        "target": sample["target"],
        "answer": (uq["answer"] or {}).get("text"),
        "correct": None if correct is None else correct == 1.0,
        "status": uq["status"],
        "finish": uq.get("finish"),
        "cut_off": uq.get("cut_off"),
        "response_tokens": len(uq["tokens"]["ids"]),
        "response": sample["resps"][0][0] if sample["resps"] else None,
        **(uq["scores"] or {}),
    }
