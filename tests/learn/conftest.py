"""Models that are opened once."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from architectures import KINDS
from small_models import small

from tinytf.learn.two_stacks import SOURCE
from tinytf.loading import Model, load


@pytest.fixture(scope="package")
def opened() -> Callable[[str], Model]:
    found: dict[str, Model] = {}

    def model(name: str) -> Model:
        if name not in found:
            found[name] = load(name, device="cpu") if name not in KINDS else small(name)
            if name == "tiny-translator":
                found[name] = found[name].reading(SOURCE)
        return found[name]

    return model
