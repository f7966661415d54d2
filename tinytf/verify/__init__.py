"""Worked examples: what an author computed by hand, computed again, cell by cell."""

from tinytf.verify.edits import edited
from tinytf.verify.example import Edit, Example, open_example, parse, shipped
from tinytf.verify.verify import CheckedStep, ExampleScores, Verification, verify

__all__ = [
    "CheckedStep",
    "Edit",
    "Example",
    "ExampleScores",
    "Verification",
    "edited",
    "open_example",
    "parse",
    "shipped",
    "verify",
]
