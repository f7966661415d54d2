"""Worked examples: what an author computed by hand, computed again, cell by cell."""

from tinytf.worked.example import Example, parse
from tinytf.worked.shipped import open_example, shipped
from tinytf.worked.verify import CheckedStep, Verification, verify

__all__ = ["CheckedStep", "Example", "Verification", "open_example", "parse", "shipped", "verify"]
