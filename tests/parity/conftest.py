"""Puts the tables of weight names beside these tests where they can import them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
