"""Results, tokens and traces."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from . import _uqac

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Token:
    """A generated token.

    `text` is its contribution to the response (empty for an end token, or for part of a character). `response_logprob` (ln p of
    the response so far) and `min_token_prob` (its minimum token probability) are running values of the scores of these names.
    `running` is the running confidence, the mean over the last `window` tokens; `None` before token `window` or if not requested.
    """

    id: int
    text: str
    logprob: float
    response_logprob: float
    min_token_prob: float
    running: float | None = None


class Result:
    """A response, its answer and the confidence.

    `record` is the JSON object of `uqac ask --json` or of a line of `uqac score`; `to_dict()` returns a copy. A notebook renders a
    result as HTML; `print` shows the report of `uqac ask`.
    """

    def __init__(self, native: _uqac.Response) -> None:
        self._native: _uqac.Response | _Pickled = native

    def __getstate__(self) -> dict[str, Any]:
        native, names = self._native, ("json", "text", "input_ids", "token_texts", "logprobs")
        kept = _Pickled({name: getattr(native, name) for name in names}, native.report(100), (native.html(False), native.html(True)))
        return {"record": self.record, "_native": kept}

    @cached_property
    def record(self) -> dict[str, Any]:
        """The record of `uqac ask --json`, or of a line of `uqac score`."""
        record: dict[str, Any] = json.loads(self._native.json)
        return record

    @property
    def status(self) -> Literal["ok", "no_answer", "error"]:
        """`no_answer`: no final answer was found in the response; `error` (only in batches): see `error`."""
        status: Literal["ok", "no_answer", "error"] = self.record["status"]
        return status

    @property
    def error(self) -> str | None:
        """In batches: why there is no result."""
        return self.record.get("error")

    @property
    def answer(self) -> str | None:
        """The final answer's text."""
        found: dict[str, Any] = self.record["answer"] or {}
        return found.get("text")

    @property
    def answer_span(self) -> tuple[int, int] | None:
        """Positions [start, end) of the answer's tokens."""
        found = self.record["answer"]
        return None if found is None else (found["tokens"][0], found["tokens"][1])

    @property
    def confidence(self) -> float | None:
        """Calibrated probability that the answer is correct; `None` if the model has no calibration."""
        confidence: float | None = self.record.get("confidence")
        return confidence

    @property
    def confidence_from(self) -> str | None:
        """Key of the score that `confidence` was computed from."""
        return self.record.get("from")

    @property
    def calibration(self) -> dict[str, Any] | None:
        """Basis of `confidence`: `tasks`, `n` graded answers, `ece` on held-out ones."""
        return self.record.get("calibration")

    @property
    def out_of_range(self) -> bool:
        """Whether the score lies outside the range of the calibration's answers, so that `confidence` may not hold."""
        return bool(self.record.get("out_of_range"))

    @property
    def abstained(self) -> bool:
        """With `abstain`: whether the answer is withheld because it is not above the certified threshold."""
        return bool(self.record.get("abstained"))

    @property
    def withheld(self) -> dict[str, Any] | None:
        """What is withheld, and `why`: the `answer` (text and tokens) and the `response`."""
        return self.record.get("withheld")

    @property
    def p(self) -> float | None:
        """P, UQAC's ranking score; not a probability that the answer is correct."""
        return self.scores.get("p")

    @property
    def scores(self) -> dict[str, float | None]:
        """Every score by its key; empty without an answer."""
        return self.record["scores"] or {}

    @property
    def samples(self) -> dict[str, Any] | None:
        """With `samples`: the `answers` drawn beside the response, their `counts`, and whether each `agrees`."""
        return self.record.get("samples")

    @property
    def chain(self) -> list[dict[str, Any]]:
        """The attention chain: row (relative to the response: row r predicts its token r + 1), score, similarity, from."""
        chain: list[dict[str, Any]] = self.record["chain"]
        return chain

    @property
    def kept(self) -> list[int]:
        """Rows of the chain kept by the similarity filter."""
        kept: list[int] = self.record["kept"]
        return kept

    @property
    def response(self) -> str:
        """The response's text, without the end token; empty if it is withheld."""
        return self._native.text

    @property
    def finish_reason(self) -> Literal["stop", "length", "unsure"] | None:
        """Reason for the end of a generated response (`unsure`: by `stop_below`); `None` for a scored one."""
        return self.record.get("finish_reason")

    @property
    def n_instr(self) -> int | None:
        """Start of the response: the prompt's length in tokens."""
        n_instr: int | None = self.record["n_instr"]
        return n_instr

    @cached_property
    def input_ids(self) -> list[int]:
        """The whole sequence."""
        return self._native.input_ids

    @cached_property
    def token_texts(self) -> list[str]:
        """The text of each response token."""
        return self._native.token_texts

    @cached_property
    def logprobs(self) -> list[float]:
        """ln p of each token of the response."""
        return self._native.logprobs

    def to_dict(self) -> dict[str, Any]:
        """A copy of `record`."""
        return copy.deepcopy(self.record)

    def to_html(self) -> str:
        """A self-contained page: the confidence, the response with its chain drawn on it, the scores."""
        return self._native.html(True)

    def _repr_html_(self) -> str:
        return self._native.html(False)

    def __str__(self) -> str:
        return self.error or f"{self.response}\n\n{self._native.report(100)}".rstrip()

    def __repr__(self) -> str:
        return f"Result(status={self.status!r}, answer={self.answer!r}, confidence={self.confidence}, p={self.p})"


class _Pickled:
    """Replaces the native response in a pickle."""

    json: str
    text: str
    input_ids: list[int]
    token_texts: list[str]
    logprobs: list[float]

    def __init__(self, fields: Mapping[str, Any], report: str, html: tuple[str, str]) -> None:
        self.__dict__.update(fields)
        self._report, self._html = report, html

    def report(self, width: int) -> str:
        return self._report

    def html(self, page: bool) -> str:
        return self._html[page]


class Results(list[Result]):
    """Results in the order of the requests: a list that converts to a table."""

    def to_pandas(self) -> DataFrame:
        """One row per result: `id`, `status`, `confidence`, `error`, `answer`, and one column per score."""
        names = ("id", "status", "confidence", "error")
        rows = ({**{name: result.record.get(name) for name in names}, "answer": result.answer, **result.scores} for result in self)
        return frame(rows)


class Trace:
    """Everything recorded of one response of R tokens in a sequence of T, as read-only numpy arrays.

    - `result`: the Result
    - `input_ids`: uint32 [T]; the response starts at `n_instr`
    - `logprobs`: float64 [R], ln p of each token of the response
    - `entropies`: float64 [R + 1], in nats; row j is row n_instr - 1 + j, which predicts response token j
    - `head_ids`: uint32 [R + 1, K], the heads of lowest entropy of each row, as layer * heads + head (of the layers with
      attention), lowest first
    - `head_entropies`: float32 [R + 1, K], of their reweighted attention, in nats
    - `rows`: int64 [n], positions of the rows of α* requested
    - `attention`: float32 [n, T], α* of those rows: the maximum of the reweighted attention over the row's K heads
    - `heads`: structured [R + 1, layers, heads], with `heads=True`: entropy of a head's reweighted attention, and its attention
      to the row's own token, the previous one, the first one, and the prompt
    - `layer_means`: float64 [L + 1, hidden], with `layers=True`: the mean over the response's rows of the embedding, of each
      layer's output but the last, and of the final hidden state, as Hugging Face's `hidden_states`
    - `hidden_states`: float32 [R + 1, hidden], with `hidden=True`: the final hidden state (after the norm) of each row
    - `chain`: structured [links]: row, score, similarity, source (the row it was reached from; -2 for answer tokens)
    - `kept`: int64, rows of the chain that the similarity filter kept
    - `ensemble`: structured [members]: position, token (-1 for the response itself), log_answer, log_chain
    """

    input_ids: NDArray[np.uint32]
    logprobs: NDArray[np.float64]
    entropies: NDArray[np.float64]
    head_ids: NDArray[np.uint32]
    head_entropies: NDArray[np.float32]
    rows: NDArray[np.int64]
    attention: NDArray[np.float32]
    layer_means: NDArray[np.float64]
    hidden_states: NDArray[np.float32]

    def __init__(self, result: Result, arrays: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> None:
        self.result = result
        for name, (dtype, shape, data) in arrays.items():
            setattr(self, name, np.frombuffer(data, dtype).reshape(shape))

    @property
    def n_instr(self) -> int:
        """Start of the response."""
        return len(self.input_ids) - len(self.logprobs)

    @property
    def heads(self) -> NDArray[np.void]:
        fields = [(name, "f4") for name in ("entropy", "own", "previous", "first", "prompt")]
        statistics: NDArray[np.float32] = getattr(self, "head_statistics")
        return statistics.view(fields).reshape(statistics.shape[:-1])

    @property
    def chain(self) -> NDArray[np.void]:
        links = [
            (link["row"], _number(link["score"]), _number(link["similarity"]), -2 if link["from"] is None else link["from"])
            for link in self.result.chain
        ]
        return np.array(links, [("row", "i8"), ("score", "f8"), ("similarity", "f8"), ("source", "i8")])

    @property
    def kept(self) -> NDArray[np.int64]:
        return np.array(self.result.kept, np.int64)

    @property
    def ensemble(self) -> NDArray[np.void]:
        members = [
            (
                -1 if member["position"] is None else member["position"],
                -1 if member["token"] is None else member["token"],
                _number(member["log_answer"]),
                _number(member["log_chain"]),
            )
            for member in self.result.record["ensemble"]
        ]
        return np.array(members, [("position", "i8"), ("token", "i8"), ("log_answer", "f8"), ("log_chain", "f8")])

    def alternatives(self, row: int) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
        """Ids and log-probabilities of the most probable tokens after row n_instr - 1 + `row`, best first: every one with
        p > 0.01, and at least twenty."""
        offsets, ids, logprobs = (getattr(self, f"top_{name}") for name in ("offsets", "ids", "logprobs"))
        part = slice(offsets[row], offsets[row + 1])
        return ids[part], logprobs[part]

    def __repr__(self) -> str:
        return f"Trace({self.result!r}, tokens={len(self.logprobs)}, heads={self.head_ids.shape[1]}, rows={len(self.rows)})"


def _number(value: float | None) -> float:
    """JSON represents non-finite values as null."""
    return float("nan") if value is None else value


def frame(rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """A table of rows."""
    try:
        import pandas
    except ImportError:
        raise ImportError("pandas is not installed: pip install uqac[pandas]") from None
    return pandas.DataFrame.from_records([dict(row) for row in rows])
