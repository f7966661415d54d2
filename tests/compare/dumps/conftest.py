"""Lets the tests here import the plain modules beside them, and the models of the parity tests."""

import sys
from pathlib import Path

_TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(_TESTS / "parity")]
