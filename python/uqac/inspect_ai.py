"""A model provider for Inspect (`pip install inspect_ai uqac`; found by the entry point, nothing to import).

    inspect eval task.py --model uqac/abacus
    inspect eval task.py --model uqac/Qwen/Qwen2.5-0.5B-Instruct -M device=cpu -M wide_trace=true

The part after `uqac/` is what `uqac.load` takes; `-M` gives its options and those of `Model.ask`. Each output's metadata has, under
`uqac`, the record of `uqac ask --json`: `confidence` with `from` and `calibration`, `scores` (UQAC's P is `p`), `answer`, `chain`,
`kept`. A scorer reads it from `state.output.metadata["uqac"]`.

Responses are generated one after another: for batches, run `uqac serve` and Inspect's `openai-api` provider.
"""

from __future__ import annotations

import functools
import inspect
import secrets
import threading
from typing import Any

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
from ._model import Generating, Message, load
from ._result import Result

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
        for_load = inspect.signature(load).parameters
        self.options = {name: value for name, value in model_args.items() if name not in for_load}
        unknown = self.options.keys() - Generating.__annotations__.keys()
        if unknown:
            raise ValueError(f"-M {', '.join(sorted(unknown))}: neither an option of uqac.load nor of Model.ask")
        self.model = load(model_name, **{name: value for name, value in model_args.items() if name in for_load})

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        """The response to a conversation. Raises ValueError for what this engine cannot do: tools, pictures, some options."""
        if tools:
            raise ValueError("tools: uqac calls none")
        messages = [_message(message) for message in input]
        options = {**self.options, **_options(config)}
        if options.get("temperature", 0.0) > 0:
            # another one for each epoch's sample; the metadata has it
            options.setdefault("seed", secrets.randbits(32))
        stopped = threading.Event()
        try:
            ask = functools.partial(self._ask, messages, options, stopped)
            result = await anyio.to_thread.run_sync(ask, abandon_on_cancel=True)
        finally:
            stopped.set()  # a cancelled sample's response ends at its next token
        return self._output(result, options, bool(config.logprobs))

    def _ask(self, messages: list[Message], options: dict[str, Any], stopped: threading.Event) -> Result:
        generation = self.model.generate(messages, **options)
        for _ in generation:
            if stopped.is_set():
                raise _uqac.Error("the sample was cancelled")
        return generation.result()

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
        """One, since the engine's calls run one after another; more, which Inspect may choose itself, wait their turn."""
        return 1

    def connection_key(self) -> str:
        """A loaded model shares its connection with no other."""
        return str(self.model_name)


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
