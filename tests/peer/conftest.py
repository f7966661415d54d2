"""Skips these tests where TransformerLens is not installed, and puts what they share where they can import it."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "parity")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    missing = find_spec("transformer_lens") is None
    for item in items:
        if here in item.path.parents:
            item.add_marker("peer")
            if missing:
                item.add_marker(pytest.mark.skip(reason="TransformerLens is not installed: pip install -e '.[bench]'"))
