"""Puts what these tests share, and the pairs of models that parity is measured on, where they can import them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "parity"))
sys.path.insert(0, str(Path(__file__).parent))
