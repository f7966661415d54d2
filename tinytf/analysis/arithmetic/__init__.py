"""The arithmetic behind one cell of a step, with the real numbers: ``explain`` and ``follow``."""

from tinytf.analysis.arithmetic.data import Explained, Explanation
from tinytf.analysis.arithmetic.follow import explain, follow

__all__ = ["Explained", "Explanation", "explain", "follow"]
