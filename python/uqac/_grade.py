"""Grading by the caller's own function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Union

import numpy as np

from . import _uqac

#: Grades an answer: called with the answer (`None` if there is none), the item, and the reply (the response without its thought).
#: Returns whether it is correct; `None`: not graded.
Grader = Callable[[Union[str, None], Mapping[str, Any], str], Union[bool, None]]


def name_of(grader: Grader) -> str:
    """The name that samples keep of a grader."""
    name: str = getattr(grader, "__name__", type(grader).__name__)
    return name


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
