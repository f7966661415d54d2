"""Worked examples: what an author computed by hand, computed again, cell by cell."""

from tinytf.worked.example import Example, open_example, parse, shipped
from tinytf.worked.verify import CheckedStep, ExampleScores, Verification, verify

__all__ = ["CheckedStep", "Example", "ExampleScores", "Verification", "open_example", "parse", "shipped", "verify"]
