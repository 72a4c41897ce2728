"""Loading a model, and its methods."""

from __future__ import annotations

import difflib
import functools
import inspect
import json
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Union, get_type_hints

import numpy as np

from . import _uqac
from ._grade import Grader, grade, name_of
from ._result import Result, Results, Token, Trace
from ._score import Score, check_names, score

if TYPE_CHECKING:
    from typing_extensions import Unpack

    _Told = Generator[Any, None, None]


class Message(TypedDict):
    """A turn of a conversation; `content` is a string, or a list of `{"type": "text", "text": …}`. Other fields (`name`,
    `reasoning_content`, `tool_calls`, …) reach the chat template; one that it does not read is an error."""

    role: str
    content: str | Sequence[Mapping[str, str]]


#: A question, or the messages of a conversation.
Conversation = Union[str, Sequence[Message]]


class Method(TypedDict, total=False):
    """Options of the assessment; the defaults match the command line."""

    profile: Literal["corrected", "paper", "reference"]
    """Interpretation of the method; default `corrected`."""
    rules: Mapping[str, str]
    """Changed rules of the profile, by name: {"threshold": "above"}."""
    parameters: Mapping[str, float]
    """Changed parameters of the method, by name: {"k": 32, "theta": 0.7} (`uqac ask --help` lists them)."""
    ensemble: bool
    """Re-score the response with alternative tokens, for P; default True. No other score needs these passes."""
    thinking: str
    """Marks of a response's thought, where no answer is looked for: `auto` (the known formats; default), `none`, or `OPEN,CLOSE`."""
    wide_trace: bool
    """Record statistics of each prediction's whole distribution, for the scores that need them."""
    trace: bool
    """Add the selected heads and the largest attention weights of each chain row to the record."""
    abstain: bool
    """Withhold answers that are not above the threshold certified by `uqac calibrate --target-risk`: only `withheld` has them."""
    chat_template: bool
    """Apply the chat template; default True. False uses prompts verbatim, for base models."""


class Generating(Method, total=False):
    """Options of generation and assessment."""

    max_tokens: int
    """Default 1024."""
    temperature: float
    """Default 0: greedy."""
    top_p: float
    top_k: int
    seed: int
    repetition_penalty: float
    """Default 1: none. Divides the logits of tokens that the text has; scores stay the model's own."""
    stop: Sequence[str]
    """Texts that end a response; they are cut off."""
    running: Literal["group", "entropy"]
    """Quantity averaged over the last `window` tokens: negative mean log-probability of the top 20 tokens (`group`, DeepConf), or
    negative entropy (`entropy`)."""
    window: int
    """Default 64."""
    stop_below: float
    """End a response once its running confidence (default `group`) falls below this."""
    thinking_budget: int
    """Close a thought after this many tokens, and have the model reply."""
    samples: int
    """Also draw this many responses (at most 128) at temperature 0.5, alongside, for the scores of their agreement: g4_agreement."""


#: Values of options that are not given.
_DEFAULTS: dict[str, Any] = dict(
    profile="corrected",
    rules={},
    parameters={},
    ensemble=True,
    thinking="auto",
    wide_trace=False,
    trace=False,
    abstain=False,
    chat_template=True,
    max_tokens=1024,
    temperature=0.0,
    top_p=1.0,
    top_k=0,
    seed=0,
    repetition_penalty=1.0,
    stop=(),
    running=None,
    window=64,
    stop_below=None,
    thinking_budget=None,
    samples=0,
)

#: transformers' option names, and ours.
_THEIRS = {
    "max_new_tokens": "max_tokens",
    "max_length": "max_tokens",
    "stop_strings": "stop",
    "do_sample": "temperature, which is 0 for greedy",
    "generation_config": "the options by name",
    "num_return_sequences": "ask_many with the question several times",
}

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _takes(options: type) -> Callable[[_Function], _Function]:
    """Adds options to a function's signature, and rejects others."""

    def decorate(function: _Function) -> _Function:
        types = get_type_hints(options)
        signature = inspect.signature(function)
        *own, _ = signature.parameters.values()
        more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS[name], annotation=types[name]) for name in types]
        known = [parameter.name for parameter in own] + list(types)

        @functools.wraps(function)
        def checked(*arguments: Any, **given: Any) -> Any:
            for name in given.keys() - set(known):
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; transformers' name, here: {_THEIRS[name]}" if name in _THEIRS else f"; did you mean {near[0]}?" if near else ""
                raise TypeError(f"{function.__name__}() has no option {name}{hint}")
            return function(*arguments, **given)

        checked.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return checked  # type: ignore[return-value]

    return decorate


class Item(TypedDict, total=False):
    """An existing response in the form of an input line of `uqac score`: `prompt` or `messages` and `response`, or `input_ids` and
    `n_instr` (and `answer_span`); or of another tool's output."""

    id: str | int
    prompt: str
    messages: Sequence[Message]
    response: str
    input_ids: Sequence[int]
    n_instr: int
    answer_span: tuple[int, int]
    dataset: str
    reasoning_content: str
    finish_reason: str
    target: str | float | Sequence[str | float]
    grader: Literal["number", "math", "choice", "exact", "contains"]


def load(
    model: str = "abacus",
    device: str = "auto",
    *,
    k_cache: Literal["f32", "f16", "bf16"] | None = None,
    v_cache: Literal["f32", "f16", "bf16", "q8"] | None = None,
    threads: int = 0,
    weights: Literal["file", "q8"] = "file",
    gamma: Sequence[float] | None = None,
    template_args: Mapping[str, Any] | None = None,
    speculate: Literal["auto", "off"] | int = "auto",
) -> Model:
    """Loads a model: a folder in Hugging Face layout, a name on the hub (`org/name` or `org/name@revision`), or `"abacus"`, the
    small model inside the package. A model that is not in the hub's cache is downloaded by `huggingface_hub`
    (`pip install uqac[hub]`).

    `device` is `auto` (the first CUDA device if usable, else the CPU), `cpu`, `cuda`, `cuda:N` or `reference`; `k_cache` and
    `v_cache` are the types of cached keys and values (f32; on CUDA values are f16); `threads` 0 means one per core; `gamma` discounts
    the nearest positions; `template_args` are variables of the chat template, such as `{"enable_thinking": False}`; `speculate` is the
    number of tokens guessed per pass, which never changes results.

    Raises Error if there is no such model or it cannot run, ValueError for an invalid option, and any exception of
    `huggingface_hub`.
    """
    missing = _uqac.downloadable(str(model))
    if missing is not None:
        _download(*missing)
    options: dict[str, Any] = dict(device=device, k_cache=k_cache, v_cache=v_cache, threads=threads, weights=weights)
    options["speculate"] = str(speculate)
    if gamma is not None:
        options["gamma"] = list(gamma)
    if template_args is not None:
        options["template_args"] = dict(template_args)
    native, events = _uqac.Model.load(str(model), json.dumps(options))
    # a relative folder is another one after a chdir
    source = os.path.abspath(model) if os.path.isdir(model) and str(model) != "abacus" else str(model)
    return Model(native, json.loads(_only(events)), options, source)


def _download(repository: str, revision: str, error: str) -> None:
    """Downloads a model into the hub's cache, skipping files that the engine does not read."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise _uqac.Error(f"{error}; or pip install uqac[hub], and uqac.load downloads it") from None
    files = ["*.json", "*.jinja", "*.safetensors"]
    snapshot_download(repository, revision=revision, allow_patterns=files, ignore_patterns=["*/*"])


class Model:
    """A loaded model. Concurrent calls from several threads run one after the other."""

    def __init__(self, native: _uqac.Model, info: dict[str, Any], options: dict[str, Any], source: str) -> None:
        self._native = native
        self._options = options
        self._source = source
        #: How it runs: name, folder, architecture, context, device, k_cache, v_cache, ...
        self.info = info

    def __repr__(self) -> str:
        return f"Model({self.info['name']!r}, device={self.info['device']!r})"

    @_takes(Generating)
    def ask(self, question: Conversation, *, system: str | None = None, **options: Unpack[Generating]) -> Result:
        """Answers a question, as `uqac ask` does; options as in Generating.

        Raises Error if the question cannot be answered; ValueError for an invalid option.
        """
        return _checked(_only(self._ask([_conversation(question, system)], options))[1])

    @_takes(Generating)
    def ask_many(
        self,
        questions: Iterable[Conversation],
        *,
        system: str | None = None,
        batch_size: int = 16,
        progress: bool = True,
        **options: Unpack[Generating],
    ) -> Results:
        """Answers questions, `batch_size` concurrently; results are in the order of the questions, and identical to asking one by
        one (the i-th draws from stream i of the seed). A failed question has its result's `error` set."""
        conversations = [_conversation(question, system) for question in questions]
        events = self._ask(conversations, {**options, "batch_size": batch_size})
        return _collect(events, len(conversations), progress)

    @_takes(Generating)
    def generate(
        self, question: Conversation, *, system: str | None = None, **options: Unpack[Generating]
    ) -> Generation:
        """Answers a question token by token: an iterator of Token, whose `result()` is the Result."""
        if options.get("abstain"):
            raise ValueError("abstain: an answer can be withheld only once it is complete; use ask()")
        return Generation(self._ask([_conversation(question, system)], {**options, "stream": True}))

    @_takes(Method)
    def score(
        self,
        prompt: Conversation | Sequence[int],
        response: str | Sequence[int],
        *,
        answer_span: tuple[int, int] | None = None,
        dataset: str | None = None,
        **options: Unpack[Method],
    ) -> Result:
        """Scores an existing response, as `uqac score` does.

        `prompt` is a question, messages, or token ids, in which case `response` must be token ids as well. `answer_span`, only with
        token ids, gives the positions [start, end) of the answer in the whole sequence; otherwise the answer is extracted from the
        text, with `dataset` in that dataset's format.

        Raises Error if the response cannot be scored; ValueError for an invalid option.
        """
        item = _item(prompt, response, answer_span, dataset)
        return _checked(Result(_only(self._native.score([_json(item)], _json(options)))[1]))

    @_takes(Method)
    def score_many(
        self,
        items: Iterable[Item],
        *,
        scores: Mapping[str, Score] | None = None,
        grader: Grader | None = None,
        progress: bool = True,
        **options: Unpack[Method],
    ) -> Results:
        """Scores responses; an item is an input line of `uqac score`. A failed item has its result's `error` set.

        `grader(answer, item, reply)` decides what is `correct` (True, False, or None: not graded), in place of the item's own target
        and grader; `answer` is None if there is none, `reply` the response without its thought. Its name is the record's `grader`.
        An exception becomes the item's `error`; its scores stay.

        `scores` are custom scores by name: functions of a response's Trace (with heads and layers), higher for more confident.
        Their values appear in the result's `scores`, along with the scores that heads and layers enable. An exception becomes the
        item's `error`; its other scores stay. Raises ValueError for the name of one of uqac's own scores."""
        items = list(items)
        check_names(scores or {})
        if scores:
            lines = [_json({"id": index, **item}) for index, item in enumerate(items)]
            results = _collect(self._own(lines, scores, options), len(lines), progress)
        else:
            lines = [_json(item) for item in items]
            results = _collect(_told(self._native.score(lines, _json(options))), len(lines), progress)
        for item, result in zip(items, results) if grader else ():
            self._grade(grader, item, result, options)  # type: ignore[arg-type]
        return results

    def _grade(self, grader: Grader, item: Item, result: Result, options: Mapping[str, Any]) -> None:
        """Puts a grader's verdict, or its error, into a result that has a response."""
        if result.n_instr is None or not result.input_ids:
            return
        record = result.record
        record.pop("correct", None)
        prompt = self.decode(result.input_ids[: result.n_instr])
        reply = _uqac.reply(prompt, result.response, options.get("thinking", "auto"))
        try:
            correct = grade(grader, result.answer, item, reply, f"item {record['id']}")
        except _uqac.Error as error:
            record["error"] = str(error)
            return
        record.update({"grader": name_of(grader)} if correct is None else {"grader": name_of(grader), "correct": correct})

    def _own(
        self, lines: Sequence[str], scores: Mapping[str, Score], options: Mapping[str, Any]
    ) -> _Told:
        """Results with custom scores, which need the traces."""
        for index, line in enumerate(lines):
            try:
                native, arrays = _only(self._native.trace(line, '"chain"', _json({**options, "heads": True, "layers": True})))
            except (_uqac.Error, ValueError):  # invalid item: its result reports the error
                yield index, _only(_told(self._native.score([line], _json(options))))[1]
                continue
            trace = Trace(Result(native), arrays)
            record = trace.result.record
            values, failures = score(scores, trace, f"item {record['id']}")
            record["scores"] = {**trace.result.scores, **values}
            if failures:
                record["error"] = "; ".join(map(str, failures))
            yield index, trace.result

    @_takes(Generating)
    def trace(
        self,
        prompt: Conversation | Sequence[int],
        response: str | Sequence[int] | None = None,
        *,
        rows: Sequence[int] | Literal["chain", "all"] = "chain",
        heads: bool = False,
        layers: bool = False,
        hidden: bool = False,
        answer_span: tuple[int, int] | None = None,
        dataset: str | None = None,
        **options: Unpack[Generating],
    ) -> Trace:
        """The recorded trace of a response as numpy arrays (see Trace). Without `response`, one is generated first. `rows`: rows of
        α* to return, as positions, "chain" or "all" (of the response). `heads`: record the attention of every head in every layer;
        `layers`: record each layer's mean hidden state; `hidden`: return the final hidden state of every row."""
        result = None
        if response is None:
            result = self.ask(prompt, **options)  # type: ignore[arg-type]
            prompt, response = result.input_ids[: result.n_instr], result.input_ids[result.n_instr :]
            answer_span = result.answer_span
        item = _item(prompt, response, answer_span, dataset)
        wanted = rows if isinstance(rows, str) else [int(row) for row in rows]
        more = {**options, "heads": heads, "layers": layers, "hidden": hidden}
        native, arrays = _only(self._native.trace(_json(item), _json(wanted), _json(more)))
        return Trace(result or Result(native), arrays)

    def encode(self, prompt: Conversation, *, system: str | None = None, chat_template: bool = True) -> list[int]:
        """The tokens of a prompt, up to the start of the response."""
        ids: list[int] = _only(self._native.encode(_json(_conversation(prompt, system)), chat_template))
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a token sequence."""
        text: str = _only(self._native.decode([int(id) for id in ids]))
        return text

    def _ask(self, conversations: Sequence[Conversation], options: Mapping[str, Any]) -> _Told:
        for conversation in conversations:
            if isinstance(conversation, str) and not conversation.strip():
                raise ValueError("the question is empty")
        return _told(self._native.ask(_json(conversations), _json(options)))


class Generation(Iterator[Token]):
    """A stream of generated tokens. Leaving the loop stops the engine."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._result: Result | None = None

    def __next__(self) -> Token:
        event = next(self._events)
        if isinstance(event, Token):
            return event
        self._result = event[1]
        raise StopIteration

    def result(self) -> Result:
        """The result; waits for the end of the response and skips unread tokens."""
        for _ in self:
            pass
        assert self._result is not None
        return _checked(self._result)


def _told(events: _uqac.Events) -> _Told:
    """The events of a job; closing it stops the job."""
    try:
        for event in events:
            yield (event[0], Result(event[1])) if len(event) == 2 else Token(*event)
    finally:
        events.stop()


def _only(events: Iterator[Any]) -> Any:
    """The only event of a job."""
    for event in events:
        return event
    raise _uqac.Error("the model's thread has ended")


def _conversation(question: Conversation, system: str | None) -> Conversation:
    if system is None:
        return question
    if not isinstance(question, str):
        raise ValueError("system: expected a question as text beside it; messages have a system message of their own")
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]


def _item(
    prompt: Conversation | Sequence[int],
    response: str | Sequence[int],
    answer_span: tuple[int, int] | None,
    dataset: str | None,
) -> dict[str, Any]:
    item: dict[str, Any] = {} if dataset is None else {"dataset": dataset}
    if isinstance(response, str):
        if answer_span is not None:
            raise ValueError("answer_span: expected a prompt and a response of token ids beside it")
        return {**item, "prompt" if isinstance(prompt, str) else "messages": prompt, "response": response}
    item.update(input_ids=[*prompt, *response], n_instr=len(prompt))
    return item if answer_span is None else {**item, "answer_span": list(answer_span)}


def _checked(result: Result) -> Result:
    if result.error is not None:
        raise _uqac.Error(result.error)
    return result


def _collect(events: _Told, total: int, progress: bool) -> Results:
    """Results in the order of the requests."""
    results: dict[int, Result] = {}
    with closing(events):  # Ctrl-C may come between two events, and its traceback keeps them
        for index, result in _shown(events, total) if progress else events:
            results[index] = result
    return Results(results[index] for index in sorted(results))


def _shown(events: Iterable[Any], total: int) -> Iterable[Any]:
    """Events with a progress bar: tqdm's if installed."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return _counted(events, total)
    bar: Iterable[Any] = tqdm(events, total=total)
    return bar


def _counted(events: Iterable[Any], total: int) -> Iterator[Any]:
    for done, event in enumerate(events, 1):
        yield event
        print(f"\r{done}/{total}", end="" if done < total else "\n", file=sys.stderr, flush=True)


def _json(value: Any) -> str:
    return json.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    """Converts numpy and torch scalars and arrays to plain Python values."""
    if isinstance(value, (np.generic, np.ndarray)) or hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable):
        return list(value)
    raise TypeError(f"expected what JSON can hold, found {type(value).__name__}")
