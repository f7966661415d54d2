"""Low-rank adaptation (Hu et al. 2021): frozen weights W with a trained B·A beside them, x·(W + s·B·A)ᵀ, s = α / r."""

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from tinytf.checkpoints.huggingface.adapter import CONFIG, WEIGHTS
from tinytf.checkpoints.huggingface.export import family_for
from tinytf.checkpoints.table import layer_of
from tinytf.errors import UsageError
from tinytf.files import to_json
from tinytf.model.transformer import Transformer
from tinytf.outputs import make_folder, write_state
from tinytf.steps.linear import Linear, linear
from tinytf.training.recipe import Recipe

FOLDER = "adapter"
"""The folder inside a run with its adapter in the format of PEFT."""
PREFIX = "lora "
"""Prefix of the names of A and B in a checkpoint."""


class Adapters(nn.Module):
    """A and B of each linear module inside the blocks of a model, whose own weights are frozen.

    A (r, in) is drawn as in PEFT, uniform in ±1/√in, and B (out, r) is 0. Raises UsageError for a model of no family of
    transformers, whose names PEFT needs, and for a model none of whose matrices the family stores separately.
    """

    def __init__(self, model: Transformer, recipe: Recipe) -> None:
        super().__init__()
        self.model_config, self.recipe = model.config, recipe
        self.scale = recipe.lora_alpha / recipe.lora
        self.family, _ = family_for(model.config)
        generator = torch.Generator().manual_seed(recipe.seed)
        self.down, self.up = nn.ParameterDict(), nn.ParameterDict()
        self.adapted_modules: dict[str, Linear] = {}
        model.requires_grad_(False)
        for name, module in model.named_modules():
            if not isinstance(module, Linear) or not self._stands_alone(f"{name}.weight"):
                continue
            rank, (width_out, width_in) = recipe.lora, module.weight.shape
            bound = 1 / math.sqrt(width_in)
            key = name.replace(".", "/")  # names of parameters have no dots
            self.down[key] = nn.Parameter(torch.empty(rank, width_in).uniform_(-bound, bound, generator=generator))
            self.up[key] = nn.Parameter(torch.zeros(width_out, rank))
            self.adapted_modules[key] = module
        if not self.adapted_modules or model.config.layer_groups or model.config.memory_sets:
            raise UsageError("LoRA adapts matrices that are stored separately, and this model has none")
        for key, module in self.adapted_modules.items():
            module.forward = partial(  # type: ignore[method-assign]
                _adapted_forward, module, self.down[key], self.up[key], self.scale
            )

    def _stands_alone(self, name: str) -> bool:
        """Whether transformers has a module of its own for this matrix of a block, which PEFT can name."""
        if ".blocks." not in f".{name}" or not self.family.has(name):
            return False
        stored, layout = self.family.place(name, self.model_config)
        return not layout.parts and not layout.bare and not layout.apart and "{e}" not in stored

    def named_factors(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Each A and B, by its name in a checkpoint."""
        for key in self.adapted_modules:
            yield f"{PREFIX}{key}.A", self.down[key]
            yield f"{PREFIX}{key}.B", self.up[key]

    @torch.no_grad()
    def merged_weights(self) -> dict[str, Tensor]:
        """The weights W + s·B·A, by the names of the model's parameters, on the CPU."""
        return {
            f"{key.replace('/', '.')}.weight": weight.cpu().contiguous()
            for key, module in self.adapted_modules.items()
            for weight in [module.weight + self.scale * (self.up[key] @ self.down[key])]
        }

    @torch.no_grad()
    def merge_into_model(self) -> None:
        """Put W + s·B·A into the model itself, which then runs without adapters."""
        merged_weights = self.merged_weights()
        for key, module in self.adapted_modules.items():
            module.weight.copy_(merged_weights[f"{key.replace('/', '.')}.weight"])
            del module.forward

    @torch.no_grad()
    def save(self, run: Path) -> None:
        """Write the adapter into its folder in ``run``, in the format of PEFT. Raises OSError."""
        tensors, targets = dict[str, Tensor](), set[str]()
        for key in self.adapted_modules:
            name, layout = self.family.place(f"{key.replace('/', '.')}.weight", self.model_config)
            path = self.family.written_name(name, self.model_config).removesuffix(".weight")
            layer = layer_of(f"{key.replace('/', '.')}.weight", self.model_config)
            down = layout.columns(self.down[key].detach().cpu(), layer)
            tensors[f"base_model.model.{path}.lora_A.weight"] = down.contiguous()
            up = layout.laid(self.up[key].detach().cpu(), layer)
            tensors[f"base_model.model.{path}.lora_B.weight"] = up.contiguous()
            targets.add(path.rpartition(".")[2])
        task = "SEQ_2_SEQ_LM" if self.model_config.encoder else "CAUSAL_LM" if self.model_config.causal else None
        settings = {
            "peft_type": "LORA", "task_type": task, "r": self.recipe.lora,
            "lora_alpha": self.recipe.lora_alpha, "lora_dropout": 0.0, "bias": "none",
            "target_modules": sorted(targets),
            "base_model_name_or_path": self.recipe.begun_from, "inference_mode": True, "init_lora_weights": True,
            "fan_in_fan_out": any(self._is_transposed(key) for key in self.adapted_modules),
        }  # fmt: skip
        make_folder(run / FOLDER)
        write_state(run / FOLDER / WEIGHTS, save_tensors(tensors))
        write_state(run / FOLDER / CONFIG, to_json(settings))

    def _is_transposed(self, key: str) -> bool:
        return self.family.place(f"{key.replace('/', '.')}.weight", self.model_config)[1].transposed


def _adapted_forward(module: Linear, down: Tensor, up: Tensor, scale: float, x: Tensor) -> Tensor:
    """x·Wᵀ + b + s·(x·Aᵀ)·Bᵀ."""
    return linear(x, module.weight, module.bias) + F.linear(F.linear(x, down), up) * scale
