"""Lets the tests here import the plain modules beside them, and the models of the parity tests."""

import sys
from pathlib import Path

_TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(Path(__file__).parent), *(str(_TESTS / name) for name in ("parity", "text", "cli", "checkpoints"))]
