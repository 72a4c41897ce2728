"""A model of lm-evaluation-harness (`pip install lm-eval uqac`); this module registers it and is the harness's own command.

    python -m uqac.lm_eval --model uqac --model_args model=Qwen/Qwen2.5-0.5B-Instruct --tasks gsm8k --apply_chat_template

`model_args` are the options of `uqac.load`; `--batch_size` is the number of responses generated concurrently (16). The harness takes
texts alone from a model: for confidences, give its `--log_samples` files to `uqac score`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window, simple_parse_args_string

from ._model import Conversation, load
from ._uqac import Error

__all__ = ["Uqac"]

#: The harness's options of generation that are passed on as they are.
_SAME = ("temperature", "top_p", "top_k", "seed")


class _Messages(str):
    """A conversation as the harness passes it on: JSON, which the engine renders, since its text alone may encode to other tokens."""


@register_model("uqac")
class Uqac(TemplateLM):
    """A model that `uqac.load` loads, as a model of the harness."""

    def __init__(self, model: str = "abacus", batch_size: int | str = 16, **options: Any) -> None:
        super().__init__()
        # 1 is the command's default; the size changes no result
        self.batch_size = 16 if batch_size in ("auto", 1, "1") else int(batch_size)
        self.model = load(model, **options)
        #: Tokens that begin every sequence of this tokenizer.
        self._begin = self.model.encode("", chat_template=False)

    @classmethod
    def create_from_arg_obj(cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None) -> Uqac:
        """Called by the harness with `--model_args` and its own options, of which `cuda:0` is the device if none is given."""
        own = {name: value for name, value in (additional_config or {}).items() if value is not None and name != "max_batch_size"}
        if own.get("device") == "cuda:0":
            del own["device"]  # `auto` is the same where there is one
        return cls(**{**own, **arg_dict})

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: Mapping[str, Any] | None = None) -> Uqac:
        """The same, from text."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @property
    def tokenizer_name(self) -> str:
        """Names the model in the keys of the harness's request cache."""
        return str(self.model.info["name"]).replace("/", "__")

    @property
    def eot_token_id(self) -> int:
        """The token that begins a sequence; an error for a tokenizer that has none."""
        if not self._begin:
            raise Error("a log-likelihood without context begins with a token that this model's tokenizer does not have: give a context")
        return self._begin[-1]

    def apply_chat_template(self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """Keeps the conversation; the engine applies the chat template."""
        if not add_generation_prompt:
            raise Error("gen_prefix: uqac begins a response after the chat template's own prompt")
        return _Messages(json.dumps(list(chat_history), ensure_ascii=False))

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """The tokens of a text, used verbatim; without those that begin a sequence if `add_special_tokens` is False."""
        ids = self.model.encode(string, chat_template=False)
        return ids[len(self._begin) :] if add_special_tokens is False else ids

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        if isinstance(context, _Messages):
            return self.model.encode(json.loads(context)), self.tok_encode(continuation, add_special_tokens=False)
        context_ids, continuation_ids = super()._encode_pair(context, continuation)
        return list(context_ids), list(continuation_ids)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        found = []
        for pair, context, continuation in requests:
            trace = self.model.trace(context, continuation)
            greedy = all(trace.alternatives(row)[0][0] == token for row, token in enumerate(continuation))
            found.append((float(trace.logprobs.sum()), greedy))
            self.cache_hook.add_partial("loglikelihood", pair, found[-1])
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihoods of whole texts, in windows of the model's context if they are longer."""
        sums = []
        for request in requests:
            ids = self.tok_encode(request.args[0], add_special_tokens=False)
            windows = get_rolling_token_windows(ids, self.prefix_token_id, self.model.info["context"] - 1, context_len=1)
            pairs = [(request.args, *make_disjoint_window(window)) for window in windows]
            sums.append(sum(logprob for logprob, _ in self._loglikelihood_tokens(pairs)))
        return sums

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Responses, as text; those with the same options run in batches."""
        texts = [""] * len(requests)
        for options, positions in _by_options(requests):
            contexts = [requests[position].args[0] for position in positions]
            chat = isinstance(contexts[0], _Messages)
            asked: list[Conversation] = [json.loads(context) if chat else context for context in contexts]
            results = self.model.ask_many(
                asked, batch_size=self.batch_size, chat_template=chat, progress=not disable_tqdm, **options
            )
            for position, result in zip(positions, results):
                if result.error is not None:
                    raise Error(f"request {position}: {result.error}")
                texts[position] = result.response
                self.cache_hook.add_partial("generate_until", requests[position].args, result.response)
        return texts


def _by_options(requests: Sequence[Any]) -> list[tuple[dict[str, Any], list[int]]]:
    """The positions of requests with the same options and the same kind of context."""
    groups: dict[str, tuple[dict[str, Any], list[int]]] = {}
    for position, request in enumerate(requests):
        context, given = request.args
        options = _options(given)
        key = json.dumps([isinstance(context, _Messages), options], sort_keys=True)
        groups.setdefault(key, (options, []))[1].append(position)
    return list(groups.values())


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The harness's options under our names. Raises ValueError for one that is not supported."""
    named: dict[str, Any] = dict(normalize_gen_kwargs(dict(given)))
    options = {"max_tokens": named.pop("max_gen_toks"), "stop": [text for text in named.pop("until") if text]}
    named.pop("do_sample", None)  # the temperature says it
    options.update({name: named.pop(name) for name in _SAME if name in named})
    if named:
        raise ValueError(f"gen_kwargs: uqac has no {', '.join(sorted(named))}")
    return options


if __name__ == "__main__":
    cli_evaluate()
