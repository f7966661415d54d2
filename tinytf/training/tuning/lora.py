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
"""Where the adapter of a run is, in its folder, as PEFT stores it."""
PREFIX = "lora "
"""Before the names of these tensors in a checkpoint."""


class Adapters(nn.Module):
    """A and B of each linear module inside the blocks of a model, whose own weights are frozen.

    A (r, in) is drawn as PEFT does, uniform in ±1/√in, and B (out, r) is 0. Raises UsageError for a model without a
    family of transformers, by whose names PEFT stores them, and for one that has none of its matrices by itself there.
    """

    def __init__(self, model: Transformer, recipe: Recipe) -> None:
        super().__init__()
        self.model_config, self.recipe = model.config, recipe
        self.scale = recipe.lora_alpha / recipe.lora
        self.family, _ = family_for(model.config)
        generator = torch.Generator().manual_seed(recipe.seed)
        self.down, self.up = nn.ParameterDict(), nn.ParameterDict()
        self.modules_adapted: dict[str, Linear] = {}
        model.requires_grad_(False)
        for name, module in model.blocks.named_modules(prefix="blocks"):
            if not isinstance(module, Linear) or not self._stands_alone(f"{name}.weight"):
                continue
            rank, (width_out, width_in) = recipe.lora, module.weight.shape
            bound = 1 / math.sqrt(width_in)
            key = name.replace(".", "/")  # a name of a parameter has no dots
            self.down[key] = nn.Parameter(torch.empty(rank, width_in).uniform_(-bound, bound, generator=generator))
            self.up[key] = nn.Parameter(torch.zeros(width_out, rank))
            self.modules_adapted[key] = module
        if not self.modules_adapted or model.config.layer_groups:
            raise UsageError("LoRA adapts matrices that are stored by themselves, and this model has none")
        for key, module in self.modules_adapted.items():
            module.forward = partial(  # type: ignore[method-assign]
                _adapted, module, self.down[key], self.up[key], self.scale
            )

    def _stands_alone(self, name: str) -> bool:
        """Whether transformers has a module for this matrix alone, which PEFT can name."""
        if not self.family.has(name):
            return False
        stored, how = self.family.place(name, self.model_config)
        return not how.parts and not how.bare and "{e}" not in stored

    def named(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Each A and B by the name in a checkpoint."""
        for key in self.modules_adapted:
            yield f"{PREFIX}{key}.A", self.down[key]
            yield f"{PREFIX}{key}.B", self.up[key]

    @torch.no_grad()
    def merged(self) -> dict[str, Tensor]:
        """The weights W + s·B·A by the names of the model's parameters, on the CPU."""
        return {
            f"{key.replace('/', '.')}.weight": weight.cpu().contiguous()
            for key, module in self.modules_adapted.items()
            for weight in [module.weight + self.scale * (self.up[key] @ self.down[key])]
        }

    @torch.no_grad()
    def settle(self) -> None:
        """Put W + s·B·A into the model itself, which then computes as any other."""
        merged = self.merged()
        for key, module in self.modules_adapted.items():
            module.weight.copy_(merged[f"{key.replace('/', '.')}.weight"])
            del module.forward

    @torch.no_grad()
    def save(self, run: Path) -> None:
        """Write the adapter into its folder in ``run``, as PEFT reads it. Raises OSError."""
        tensors, targets = dict[str, Tensor](), set[str]()
        for key in self.modules_adapted:
            plain, how = self.family.place(f"{key.replace('/', '.')}.weight", self.model_config)
            path = self.family.prefixed(plain).removesuffix(".weight")
            tensors[f"base_model.model.{path}.lora_A.weight"] = self.down[key].detach().cpu().contiguous()
            own = layer_of(f"{key.replace('/', '.')}.weight", self.model_config)
            up = how.laid(self.up[key].detach().cpu(), own)
            tensors[f"base_model.model.{path}.lora_B.weight"] = up.contiguous()
            targets.add(path.rpartition(".")[2])
        settings = {
            "peft_type": "LORA", "task_type": "CAUSAL_LM" if self.model_config.causal else None, "r": self.recipe.lora,
            "lora_alpha": self.recipe.lora_alpha, "lora_dropout": 0.0, "bias": "none",
            "target_modules": sorted(targets),
            "base_model_name_or_path": self.recipe.begun_from, "inference_mode": True, "init_lora_weights": True,
            "fan_in_fan_out": any(self._is_transposed(key) for key in self.modules_adapted),
        }  # fmt: skip
        make_folder(run / FOLDER)
        write_state(run / FOLDER / WEIGHTS, save_tensors(tensors))
        write_state(run / FOLDER / CONFIG, to_json(settings))

    def _is_transposed(self, key: str) -> bool:
        return self.family.place(f"{key.replace('/', '.')}.weight", self.model_config)[1].transposed


def _adapted(module: Linear, down: Tensor, up: Tensor, scale: float, x: Tensor) -> Tensor:
    """x·Wᵀ + b + s·(x·Aᵀ)·Bᵀ."""
    return linear(x, module.weight, module.bias) + F.linear(F.linear(x, down), up) * scale
