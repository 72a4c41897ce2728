"""A model's answer with a confidence from the pass that wrote it.

    >>> import uqac
    >>> model = uqac.load("abacus")
    >>> result = model.ask("Tom has 3 boxes with 12 pencils each. He gives away 7. How many are left?")
    >>> result.answer, round(result.p, 2)
    ('29', 0.99)

Positions are 0-based over the whole sequence, prompt and response. Row T is the model's computation with the token at position
T as its input, so it predicts the token at T + 1. Log-probabilities are natural and over the full vocabulary, and for every
confidence higher means more confident. The engine runs without holding the interpreter lock; Ctrl-C stops it.
"""

from . import metrics
from ._model import Generating, Generation, Message, Method, Model, load
from ._result import Result, Results, Token, Trace
from ._runs import Picture, Run, evaluate, load_run
from ._uqac import Error, __version__

__all__ = [
    "Error",
    "Generating",
    "Generation",
    "Message",
    "Method",
    "Model",
    "Picture",
    "Result",
    "Results",
    "Run",
    "Token",
    "Trace",
    "__version__",
    "evaluate",
    "load",
    "load_run",
    "metrics",
]
