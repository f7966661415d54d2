"""The commands of the command line inside a session: the one rule for those that a session reads differently."""

from collections.abc import Callable
from typing import Any

from tinytf.errors import TinytfError
from tinytf.steps.table import StepTable
from tinytf.trace.address import parse_address

NOTES = {
    "grad": "Here, words that are all addresses are those of --at: grad L0H1.weights is about the present text.",
    "explain": "Here, explain ADDRESS is about the present text.",
    "info": "Here, info without MODEL is about the open model.",
}
"""What a command does here besides."""


TAKES: dict[str, tuple[str, ...]] = {
    "explain": ("cell", "text"),
    "grad": ("address",),
    "info": ("model",),
    "export": ("model", "file"),
    "train": ("file",),
    "runs": ("file",),
    "watch": ("file",),
    "models": ("file",),
    "verify": ("file",),
    "heads": ("file",),
    "learn": ("topic",),
}
"""The kinds of words that commands take; the others take a text."""


def adjust(name: str, parameters: dict[str, Any], table: Callable[[], StepTable]) -> None:
    """Change what click has parsed of a command where a session reads it differently; ``table`` are its steps."""
    words: tuple[str, ...] = parameters.get("words") or ()
    if name == "grad" and words and all(_is_address(word, table()) for word in words):
        parameters["addresses"] = (*words, *parameters["addresses"])
        parameters["words"] = ()


def _is_address(word: str, table: StepTable) -> bool:
    try:
        parse_address(word, table)
    except TinytfError:
        return word[:1] == "L" and word[1:2].isdigit()  # one that is not there; the command says why
    return True
