"""LM-Polygraph over this engine: a calculator of its statistics, and UQAC as one of its estimators.

The benchmark's configuration refers to both by the name of this module:

    stat_calculators:
      - name: Uqac
        builder: uqac.lm_polygraph
        stats: [input_tokens, greedy_tokens, greedy_texts, greedy_log_likelihoods, entropy, uqac_scores]
        dependencies: []
        cfg: {model: FOLDER}
    estimators:
      - name: MeanTokenEntropy
      - name: uqac.lm_polygraph
        cfg: {score: p}

Estimators that need only these statistics then run on our responses: MaximumSequenceProbability, Perplexity, MeanTokenEntropy, and
the token-level ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from lm_polygraph.estimators.estimator import Estimator
from lm_polygraph.stat_calculators.stat_calculator import StatCalculator

from ._model import Model, load

#: Statistics that the calculator returns for each text, by LM-Polygraph's names; `uqac_scores` are our scores by key.
STATS = ["input_tokens", "greedy_tokens", "greedy_texts", "greedy_log_likelihoods", "entropy", "uqac_scores"]


class Uqac(StatCalculator):
    """Greedy responses, their log-probabilities and entropies, and our scores for them, from one pass."""

    @staticmethod
    def meta_info() -> tuple[list[str], list[str]]:
        """The statistics that it computes, and those that it depends on: none."""
        return STATS, []

    def __init__(self, model: Model, **options: Any) -> None:
        """`options` are those of `Model.ask`."""
        super().__init__()
        self.model = model
        self.options = options

    def __call__(
        self,
        dependencies: Mapping[str, Any],
        texts: Sequence[str],
        model: Any = None,
        max_new_tokens: int = 100,
        **_: Any,
    ) -> dict[str, list[Any]]:
        """The statistics of responses to `texts`; `model`, LM-Polygraph's own, is not used."""
        stats: dict[str, list[Any]] = {stat: [] for stat in STATS}
        for text in texts:
            # with a window of one token, the running confidence is the negative entropy
            options = {**self.options, "max_tokens": max_new_tokens, "running": "entropy", "window": 1}
            generation = self.model.generate(text, **options)
            entropies = [-token.running for token in generation if token.running is not None]
            result = generation.result()
            found = {
                "input_tokens": result.input_ids[: result.n_instr],
                "greedy_tokens": result.input_ids[result.n_instr :],
                "greedy_texts": result.response,
                "greedy_log_likelihoods": result.logprobs,
                "entropy": entropies,
                "uqac_scores": result.scores,
            }
            for stat, value in found.items():
                stats[stat].append(value)
        return stats


class UqacScore(Estimator):
    """One of our scores, by key, as an uncertainty: lower is more certain, and a response without an answer is the least certain."""

    def __init__(self, score: str = "p") -> None:
        super().__init__(["uqac_scores"], "sequence")
        self.score = score

    def __str__(self) -> str:
        return f"UQAC({self.score})"

    def __call__(self, stats: Mapping[str, Any]) -> Any:
        found = [scores.get(self.score) for scores in stats["uqac_scores"]]
        return np.array([np.inf if score is None else -score for score in found])


def load_stat_calculator(config: Mapping[str, Any], environment: Any) -> Uqac:
    """Called by LM-Polygraph: `config` has `model`, options of `uqac.load` under `load` and of `Model.ask` under `ask`; the
    environment may provide an already loaded model as `uqac`."""
    loaded = getattr(environment, "uqac", None)
    model = loaded if loaded is not None else load(config.get("model", "abacus"), **config.get("load", {}))
    return Uqac(model, **config.get("ask", {}))


def load_estimator(config: Mapping[str, Any]) -> UqacScore:
    """Called by LM-Polygraph: `config` may have `score`, the key of one of our scores."""
    return UqacScore(**config)
