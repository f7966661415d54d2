"""The arithmetic behind one cell of a step, with the real numbers."""

from tinytf.analysis.arithmetic.data import Explained, Explanation
from tinytf.analysis.arithmetic.follow import explain

__all__ = ["Explained", "Explanation", "explain"]
