"""Puts the shared helpers, plain modules beside this file, where every test can import them."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)
