"""Scores by the caller's own functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Union

import numpy as np

from . import _uqac
from ._result import Trace

#: A score of a response; higher is more confident.
Score = Callable[[Trace], Union[float, None]]


def check_names(scores: Mapping[str, Score]) -> None:
    """Raises ValueError for the name of one of the program's own scores."""
    for name in scores.keys() & set(_uqac.score_keys()):
        raise ValueError(f"scores: {name} is one of uqac's own; give another name")


def score(scores: Mapping[str, Score], trace: Trace, label: str) -> tuple[dict[str, float | None], list[_uqac.Error]]:
    """The scores' values, `None` for a non-finite one as in JSON, and the exceptions, which name item and score."""
    values: dict[str, float | None] = {}
    failures = []
    for name, function in scores.items():
        values[name] = None
        try:
            value = function(trace)
            values[name] = float(value) if value is not None and np.isfinite(value) else None
        except Exception as error:
            failure = _uqac.Error(f"{label}: score {name}: {type(error).__name__}: {error}")
            failure.__cause__ = error
            failures.append(failure)
    return values, failures
