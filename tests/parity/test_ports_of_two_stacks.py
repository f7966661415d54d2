"""What modules of transformers return, as a port of two stacks: right, and with one matrix of its encoder wrong."""

from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import asked
from reference import TWO_STACKS, pair
from safetensors.torch import save_file
from torch import Tensor, nn

from tinytf.compare.dumps.read import open_dump

IDS = [3, 14, 15, 9, 2, 6, 5]


def port(theirs: Any, path: Path) -> Path:
    """What every module of theirs returns for SOURCE and TEXT."""
    acts: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            found = output[0] if isinstance(output, tuple) else output
            if isinstance(found, Tensor) and found.is_floating_point():
                acts[name] = found.detach().clone().contiguous()

        return hook

    handles = [module.register_forward_hook(keep(name)) for name, module in theirs.named_modules() if name]
    with torch.no_grad():
        theirs(torch.tensor([IDS]))
    for handle in handles:
        handle.remove()
    save_file({**acts, "input_ids": torch.tensor(IDS)}, path)
    return path


@pytest.mark.share(6)
@pytest.mark.parametrize("family", TWO_STACKS)
def test_a_port_that_is_wrong_in_its_encoder_is_told_so(family: str, tmp_path: Path) -> None:
    models = pair(family)
    ours = asked(models.ours)
    right = ours.diff(None, open_dump(port(models.theirs, tmp_path / "right.safetensors")))
    assert any(step.stack for step in right.steps)
    assert right.first is None or right.follows, right.sentence
    parts = models.theirs.get_encoder().named_modules()
    *_, last = (part for name, part in parts if isinstance(part, nn.Linear) and "pooler" not in name)
    last.weight.data *= 1.5
    wrong = ours.diff(None, open_dump(port(models.theirs, tmp_path / "wrong.safetensors")))
    assert wrong.first is not None
    assert wrong.first.stack, wrong.sentence
    assert all(one.step.startswith("enc.") for one in (*wrong.causes, *wrong.tried))
