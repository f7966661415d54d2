"""The arithmetic behind one cell of a step, with the real numbers."""

from tinytf.look.explain.data import TEMPERATURES, Explained, Explanation
from tinytf.look.explain.follow import explain

__all__ = ["TEMPERATURES", "Explained", "Explanation", "explain"]
