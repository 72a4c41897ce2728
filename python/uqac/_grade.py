"""Grading by the caller's own function."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, Union

import numpy as np

from . import _uqac

#: Grades an answer: called with the answer (`None` if there is none), the item, and the reply (the response without its thought).
#: Returns whether it is correct; `None`: not graded.
Grader = Callable[[Union[str, None], Mapping[str, Any], str], Union[bool, None]]


def name_of(grader: Callable[..., Any]) -> str:
    """The name that samples keep of a grader, and by which a later call knows it: a function's; an object's class; `f(2, strict=True)`
    for a partial function; for a lambda, `<lambda>` with a hash of what it does."""
    if isinstance(grader, functools.partial):
        given = [repr(value) for value in grader.args] + [f"{name}={value!r}" for name, value in grader.keywords.items()]
        return f"{name_of(grader.func)}({', '.join(given)})"
    name: str = getattr(grader, "__name__", type(grader).__name__)
    if name != "<lambda>":
        return name
    held = [cell.cell_contents for cell in getattr(grader, "__closure__", None) or ()]
    parts = [getattr(grader, part, None) for part in ("__code__", "__defaults__", "__kwdefaults__")] + held
    return f"{name} {hashlib.sha256(repr([_stable(part) for part in parts]).encode()).hexdigest()[:8]}"


def _stable(part: object) -> object:
    """What a part of a function says, the same in every process if its values' texts are."""
    if isinstance(part, CodeType):
        return part.co_code, part.co_names, part.co_varnames, [_stable(value) for value in part.co_consts]
    if isinstance(part, frozenset):
        return sorted(map(repr, part))
    return name_of(part) if callable(part) else repr(part)


def grade(grader: Grader, answer: str | None, item: Mapping[str, Any], reply: str, label: str) -> bool | None:
    """The grader's verdict. Raises Error with the item's label and the grader's name for an exception of the grader, or another
    value than True, False and None."""
    try:
        correct = grader(answer, item, reply)
    except Exception as error:
        raise _uqac.Error(f"{label}: grader {name_of(grader)}: {type(error).__name__}: {error}") from error
    if correct is None or isinstance(correct, (bool, np.bool_)):
        return None if correct is None else bool(correct)
    raise _uqac.Error(f"{label}: grader {name_of(grader)}: expected True, False or None, found {correct!r}")
