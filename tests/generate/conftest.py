"""Puts the pairs of models that parity is measured on where these tests can import them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "parity"))
