"""Skips tests whose peer is not installed (TransformerLens unless PEER names another); helpers can be imported."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "parity")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here:
            item.add_marker("peer")
            peer = getattr(getattr(item, "module", None), "PEER", "transformer_lens")
            if find_spec(peer) is None:
                how = "pip install -e '.[bench]'" if peer == "transformer_lens" else f"pip install {peer}"
                item.add_marker(pytest.mark.skip(reason=f"{peer} is not installed: {how}"))
