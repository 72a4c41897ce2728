"""Evaluations: run by the program, read back from their folders."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from . import _uqac
from ._grade import Grader, grade, name_of
from ._model import Model
from ._result import frame
from ._score import Score, check_names, score

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

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Writes the report: a page if `path` is a folder or ends in .html, else a Markdown (.md), LaTeX (.tex), CSV or JSON file.
        Returns the file's path."""
        path = Path(path)
        formats = {".md": "markdown", ".tex": "latex", ".csv": "csv", ".json": "json"}
        name = formats.get(path.suffix, "html")
        _program("report", str(self.folder), "--format", name, "--overwrite", "--output", str(path))
        return path / "report.html" if name == "html" and path.suffix != ".html" else path

    def plot(self, method: str = "p", kind: Literal["reliability", "risk-coverage"] = "risk-coverage") -> Picture:
        """A picture of a method, by its key: how often answers of each confidence are right, or the share of wrong ones among the
        most confident. A notebook shows it; as a string it is SVG."""
        with tempfile.TemporaryDirectory() as folder:
            options = ["--methods", method, "--against", method, "--resamples", "0", "--format", "json", "--pictures", folder]
            _program("report", str(self.folder), *options)
            for path in sorted(Path(folder).glob(f"*{kind}.svg")):
                return Picture(path.read_text("utf-8"))
        raise _uqac.Error(f"there is no {kind} of {method}: it has no probabilities, or all answers are of one class")

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, items={len(self.samples)})"


class Picture(str):
    """An SVG picture."""

    def _repr_svg_(self) -> str:
        return self


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
    scores: Mapping[str, Score] | None = None,
    grader: Grader | None = None,
    data: str | os.PathLike[str] | None = None,
    max_tokens: int | None = None,
    thinking_budget: int | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    shots: int | None = None,
    samples: int | None = None,
    temperature: float | None = None,
    profile: Literal["corrected", "paper", "reference"] | None = None,
    rules: Mapping[str, str] | None = None,
    parameters: Mapping[str, float] | None = None,
    ensemble: bool = True,
    trace: Sequence[Literal["wide", "heads", "layers"]] = (),
    progress: bool = True,
    **options: Any,
) -> Run:
    """Evaluates a model as `uqac eval` does, in a separate process that loads it the way `model` was loaded, into the folder
    `output` (or a new temporary one), and returns the run. The same call resumes an interrupted run.

    `tasks` are names or JSON Lines files. `profile`, `rules`, `parameters` and `ensemble` are as in Method, `trace` has the optional
    parts of the trace, and `samples` and `temperature` are self-consistency's. `options` are the command's others by name:
    `sweep=["k=8,32"]`, `prompt_template="..."`.

    `scores` are custom scores by name: functions of a response's Trace (with heads and layers), higher for more confident. They are
    computed in every call, also for items of an earlier one, and their values are stored in the folder, so that `uqac report` shows
    them. They need a loaded `model`.

    `grader(answer, item, reply)` decides what is correct (True, False, or None: not graded) in place of the tasks' own graders, whose
    verdict a sample keeps as `acc_built_in`; `answer` is None if there is none, `item` the publisher's record with its `target`,
    `reply` the response without its thought. A sample keeps the grader's name, and is not graded again by one of that name.

    Raises Error if the evaluation fails, or, once everything else is stored, for an exception of a score or the grader; ValueError
    for the name of one of uqac's own scores.
    """
    if scores and not isinstance(model, Model):
        raise ValueError("scores: own scores need a loaded model, uqac.load(...)")
    check_names(scores or {})
    folder = Path(output if output is not None else tempfile.mkdtemp(prefix="uqac-"))
    loaded = model._options if isinstance(model, Model) else {}
    given: dict[str, Any] = {
        "model": model._source if isinstance(model, Model) else model,
        "device": model.info["device"].split(" ")[0] if isinstance(model, Model) else None,
        **{name: loaded.get(name) for name in ("k_cache", "v_cache", "threads", "weights", "speculate")},
        "template_arg": [f"{name}={json.dumps(value)}" for name, value in loaded.get("template_args", {}).items()],
        "tasks": tasks if isinstance(tasks, str) else ",".join(tasks),
        "output": folder,
        "limit": limit,
        "methods": ",".join(methods) or None,
        "data": data,
        "max_tokens": max_tokens,
        "thinking_budget": thinking_budget,
        "batch_size": batch_size,
        "seed": seed,
        "shots": shots,
        "samples": samples,
        "temperature": temperature,
        "profile": profile,
        "set": [f"{name}={value}" for name, value in {**(rules or {}), **(parameters or {})}.items()],
        "ensemble": "on" if ensemble else "off",
        "trace": ",".join([*trace, *(["wide"] if options.pop("wide_trace", False) else [])]) or None,
        "no_chat_template": not options.pop("chat_template", True),
        "quiet": not progress,
        **options,
    }
    if "gamma" in loaded:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "gamma.json").write_text(json.dumps(loaded["gamma"]))
        given["gamma"] = folder / "gamma.json"
    _program("eval", "--json", *_flags(given), progress=progress)
    if scores and isinstance(model, Model):
        _add(load_run(folder), model, scores)
    if grader:
        _grade(load_run(folder), grader)
    return load_run(folder)


def _flags(options: Mapping[str, Any]) -> Iterator[str]:
    """Options on the command line."""
    for name, value in options.items():
        values = value if isinstance(value, (list, tuple)) else [] if value is None or value is False else [value]
        for one in values:
            yield f"--{name.replace('_', '-')}"
            yield from () if one is True else (str(one),)


def _program(*arguments: str, progress: bool = False) -> str:
    """Runs the program in a separate process, which Ctrl-C ends, and returns its output. Raises Error with its messages."""
    script = "import sys; from uqac._cli import main; sys.argv[0] = 'uqac'; sys.exit(main())"
    command = [sys.executable, "-c", script, *arguments]
    said: deque[str] = deque(maxlen=20)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        with subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True, encoding="utf-8") as done:
            for line in done.stderr or ():
                said.append(line)
                if progress:
                    print(line, end="", file=sys.stderr, flush=True)
        if done.returncode not in (0, 1):  # 1: some items failed
            raise _uqac.Error(f"uqac {arguments[0]} ended with {done.returncode}: {''.join(said).strip()}")
        output.seek(0)
        return output.read()


def _add(run: Run, model: Model, scores: Mapping[str, Score]) -> None:
    """Adds custom scores to the samples of a run that have an answer."""
    used = {name: run.manifest["options"].get(name) for name in ("profile", "rules", "parameters", "thinking", "ensemble")}
    options = {name: value for name, value in used.items() if value is not None}
    failures: list[_uqac.Error] = []
    for path in _files(run.folder):
        samples = list(_lines(path))
        try:
            for sample in samples:
                uq = sample["uq"]
                if uq["status"] != "ok":
                    continue
                prompt = model.encode(sample["arguments"][0][0], chat_template=False)[-uq["n_instr"] :]
                span = tuple(uq["answer"]["tokens"])
                trace = model.trace(prompt, uq["tokens"]["ids"], answer_span=span, heads=True, layers=True, **options)
                values, failed = score(scores, trace, f"{sample['task']} {sample['doc_id']}")
                uq["scores"].update(values)
                failures += failed
        finally:  # Ctrl-C keeps what has been computed
            _write(path, samples)
    _raise(failures, "all other scores are stored")


def _raise(failures: Sequence[_uqac.Error], rest: str) -> None:
    """Raises the first of them."""
    if failures:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        raise _uqac.Error(f"{failures[0]}{more}; {rest}") from failures[0].__cause__


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
    _raise(failures, "all other items are graded")


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
