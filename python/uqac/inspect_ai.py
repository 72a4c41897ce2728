"""A model provider for Inspect (`pip install inspect_ai uqac`; found by the entry point, nothing to import).

    inspect eval task.py --model uqac/abacus
    inspect eval task.py --model uqac/Qwen/Qwen2.5-0.5B-Instruct -M device=cpu -M wide_trace=true

The part after `uqac/` is what `uqac.load` takes; `-M` gives its options and those of `Model.ask`. Each output's metadata has, under
`uqac`, the record of `uqac ask --json`: `confidence` with `from` and `calibration`, `scores` (UQAC's P is `p`), `answer`, `chain`,
`kept`. A scorer reads it from `state.output.metadata["uqac"]`.

Greedy responses (the default) are generated in batches of up to `-M batch_size=16`, with the same bits as alone; sampled ones one after
another, each from a seed of its own, which the metadata has.
"""

from __future__ import annotations

import inspect
import secrets
import threading
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import closing
from typing import Any, NamedTuple

import anyio
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    Logprob,
    Logprobs,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    modelapi,
)
from inspect_ai.tool import ToolChoice, ToolInfo

from . import _uqac
from ._model import Generating, Message, Model, load
from ._result import Result, Token

__all__ = ["UqacAPI"]

#: Inspect's options that change a response and have no counterpart here.
_REFUSED = (
    "best_of",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "top_logprobs",
    "prompt_logprobs",
    "response_schema",
    "effort",
    "reasoning_effort",
    "reasoning_mode",
    "verbosity",
    "modalities",
    "extra_body",
)

#: Parts of the record that the output has already: the message, and its time.
_ELSEWHERE = ("response", "tokens_per_second")


@modelapi(name="uqac")
class UqacAPI(ModelAPI):
    """A model that `uqac.load` loads, as a model of Inspect."""

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),
        **model_args: Any,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config)
        batch_size = int(model_args.pop("batch_size", 16))
        for_load = inspect.signature(load).parameters
        self.options = {name: value for name, value in model_args.items() if name not in for_load}
        unknown = self.options.keys() - Generating.__annotations__.keys()
        if unknown:
            raise ValueError(f"-M {', '.join(sorted(unknown))}: neither an option of uqac.load nor of Model.ask")
        self.model = load(model_name, **{name: value for name, value in model_args.items() if name in for_load})
        self.batches = _Batches(self.model, batch_size)

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        """The response to a conversation. Raises ValueError for what this engine cannot do: tools, pictures, some options."""
        if tools:
            raise ValueError("tools: uqac calls none")
        messages = [_message(message) for message in input]
        options = {**self.options, **_options(config)}
        if options.get("temperature", 0.0) > 0:
            options.setdefault("seed", secrets.randbits(32))  # another one for each epoch's sample
        waiting = self.batches.add(messages, options)
        try:
            result = await anyio.to_thread.run_sync(waiting.result, abandon_on_cancel=True)
        finally:
            waiting.cancel()  # nothing, unless this sample was cancelled
        return self._output(result, options, bool(config.logprobs))

    def _output(self, result: Result, options: dict[str, Any], logprobs: bool) -> ModelOutput:
        n_instr = result.n_instr or 0
        prompt, tokens = result.input_ids[:n_instr], result.input_ids[n_instr:]
        reply = _uqac.reply(self.model.decode(prompt), result.response, options.get("thinking", "auto"))
        message = ChatMessageAssistant(content=_content(result.response, reply), model=self.model_name, source="generate")
        pairs = zip(result.token_texts, result.logprobs)
        choice = ChatCompletionChoice(
            message=message,
            stop_reason="max_tokens" if result.finish_reason == "length" else "stop",
            logprobs=Logprobs(content=[Logprob(token=text, logprob=value) for text, value in pairs]) if logprobs else None,
        )
        thought: int = result.record.get("thought", 0)
        usage = ModelUsage(
            input_tokens=len(prompt),
            output_tokens=len(tokens),
            total_tokens=len(result.input_ids),
            reasoning_tokens=thought or None,
        )
        record = {name: value for name, value in result.to_dict().items() if name not in _ELSEWHERE}
        record.update({"seed": options["seed"]} if "seed" in options else {})
        return ModelOutput(model=self.model_name, choices=[choice], usage=usage, metadata={"uqac": record})

    def max_connections(self) -> int:
        """The size of a batch. Inspect may choose more, which wait."""
        return self.batches.size

    def connection_key(self) -> str:
        """A loaded model shares its connection with no other."""
        return str(self.model_name)


class _Request(NamedTuple):
    messages: list[Message]
    options: Mapping[str, Any]
    result: Future[Result]

    def goes_with(self, first: _Request) -> bool:
        """Whether both can be in one batch. The streams of a seed belong to places in a batch, so a sampled response is alone."""
        return self is first or (self.options == first.options and not self.options.get("temperature"))


class _Batches:
    """Requests on their way to the engine: while there are any, a thread takes them to it."""

    def __init__(self, model: Model, size: int) -> None:
        self.model = model
        self.size = size
        self._lock = threading.Lock()
        self._waiting: list[_Request] = []
        self._running = False

    def add(self, messages: list[Message], options: Mapping[str, Any]) -> Future[Result]:
        """The result to come. Cancelling it leaves the request out, or ends a batch of which nobody waits for anything else."""
        request = _Request(messages, options, Future())
        with self._lock:
            self._waiting.append(request)
            if not self._running:
                self._running = True
                threading.Thread(target=self._work, name="uqac-inspect", daemon=True).start()
        return request.result

    def _next(self) -> list[_Request]:
        """The first request, and those that can be computed with it."""
        with self._lock:
            self._waiting = [request for request in self._waiting if not request.result.cancelled()]
            batch = [request for request in self._waiting if request.goes_with(self._waiting[0])][: self.size]
            self._waiting = [request for request in self._waiting if request not in batch]
            self._running = bool(batch)
            return batch

    def _work(self) -> None:
        while batch := self._next():
            try:
                self._answer(batch)
            except Exception as error:
                for request in batch:
                    _settle(request.result, error)

    def _answer(self, batch: list[_Request]) -> None:
        options = {**batch[0].options, "batch_size": len(batch), "stream": True}
        with closing(self.model._ask([request.messages for request in batch], options)) as events:
            for event in events:
                if not isinstance(event, Token):
                    index, result = event
                    _settle(batch[index].result, result if result.error is None else _uqac.Error(result.error))
                if all(request.result.done() for request in batch):
                    return


def _settle(future: Future[Result], found: Result | Exception) -> None:
    try:
        if isinstance(found, Exception):
            future.set_exception(found)
        else:
            future.set_result(found)
    except InvalidStateError:
        pass  # cancelled meanwhile


def _options(config: GenerateConfig) -> dict[str, Any]:
    """Inspect's options under our names. Raises ValueError for those that would change a response and are not supported."""
    for name in _REFUSED:
        if getattr(config, name, None):
            raise ValueError(f"{name}: uqac has no such option")
    if (config.num_choices or 1) != 1:
        raise ValueError("num_choices: uqac gives one response; use epochs")
    options = {
        "max_tokens": config.max_tokens,
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": config.top_k,
        "seed": config.seed,
        "stop": config.stop_seqs,
        "thinking_budget": config.reasoning_tokens,
    }
    return {name: value for name, value in options.items() if value is not None}


def _message(message: ChatMessage) -> Message:
    if message.role == "tool" or getattr(message, "tool_calls", None):
        raise ValueError("tool calls: uqac makes none")
    if not isinstance(message.content, str):
        for part in message.content:
            if part.type not in ("text", "reasoning"):
                raise ValueError(f"{part.type}: uqac reads text only")
    # without earlier thoughts, which chat templates leave out of the prompt as well
    return {"role": message.role, "content": message.text}


def _content(response: str, reply: str) -> str | list[ContentReasoning | ContentText]:
    """The response, with its thought apart: scorers read the reply alone."""
    thought = response.removesuffix(reply).strip() if reply else response.strip()
    if not thought or reply.strip() == response.strip():
        return response
    return [ContentReasoning(reasoning=thought), ContentText(text=reply)]
