"""A transformers model in memory, read by the table of its family like a directory."""

from collections import Counter
from collections.abc import Container, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.checkpoints.huggingface.load import checkpoint_of
from tinytf.checkpoints.load import Checkpoint, Shapes, takes
from tinytf.errors import CheckpointError, UsageError
from tinytf.fields import quoted
from tinytf.files import parse_json


class MemoryWeights:
    """The tensors of a module: shared, not copied, where dtype and layout are ours."""

    def __init__(self, module: nn.Module) -> None:
        self._state: dict[str, Tensor] = module.state_dict()
        self.shapes: Shapes = {name: tuple(tensor.shape) for name, tensor in self._state.items()}

    def stored(self, name: str) -> Tensor:
        return self._state[name]

    def takes(self, dtype: torch.dtype) -> int:
        return takes(self._state.values(), dtype)

    def tensors(self, dtype: torch.dtype, pieces: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._state.items():
            yield name, tensor.to(dtype) if tensor.is_floating_point() else tensor


def read_module(module: nn.Module) -> Checkpoint:
    """The checkpoint of a transformers model in memory, equal to that of the directory it would save.

    Raises CheckpointError for an architecture, setting or tensor that is not implemented, UsageError for anything but
    a transformers model.
    """
    name = type(module).__name__
    config = getattr(module, "config", None)
    if not isinstance(module, nn.Module) or config is None or not hasattr(config, "to_json_string"):
        raise UsageError(
            f"a {name} is not a model of transformers", "tinytf.capture records the modules of any PyTorch model"
        )
    if any(".lora_" in tensor_name for tensor_name in module.state_dict()):
        raise UsageError(f"this {name} has adapters that are not merged", "merge them with model.merge_and_unload()")
    # as save_pretrained writes it: the differences from the defaults, and the class, which implies the head
    keys: dict[str, Any] = {**parse_json(config.to_json_string()), "architectures": [name]}
    if quantization := keys.get("quantization_config"):
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise CheckpointError(f"this {name} is quantised by {quoted(str(method))}", "open it with unquantised weights")
    return checkpoint_of(keys, lambda: MemoryWeights(module), f"the {name} in memory", f"the config of the {name}")


def device_and_dtype(module: nn.Module) -> tuple[torch.device, torch.dtype]:
    """The device of a model's weights, and the dtype of most of them. Raises UsageError for several devices."""
    parameters = list(module.parameters())
    devices = sorted({str(parameter.device) for parameter in parameters})
    if len(devices) != 1 or devices == ["meta"]:
        raise UsageError(
            f"the weights are on {' and '.join(devices) or 'no device'}", "move them to one: model.to('cpu')"
        )
    counts: Counter[torch.dtype] = Counter()
    for parameter in parameters:
        counts[parameter.dtype] += parameter.numel()
    return parameters[0].device, counts.most_common(1)[0][0]
