"""Puts this folder's helper where its tests can import it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
