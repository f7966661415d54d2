"""Worked examples: what an author computed by hand, computed again, cell by cell."""

from tinytf.worked.edits import edited
from tinytf.worked.example import Edit, Example, open_example, parse, shipped
from tinytf.worked.verify import CheckedStep, ExampleScores, Verification, verify

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
