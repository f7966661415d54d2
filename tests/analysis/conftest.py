"""Puts the models of every kind, which live beside the tests of gradients, where the tests here can import them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "gradients"))
