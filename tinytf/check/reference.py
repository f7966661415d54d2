"""The reference of a check: a model, or a preset with random weights, gains and biases."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from tinytf.config import FIELDS, ModelConfig
from tinytf.errors import UsageError
from tinytf.loading import Model, load
from tinytf.model.transformer import Transformer
from tinytf.nearest import did_you_mean
from tinytf.presets import PRESETS

_SPREAD = 0.1


@torch.no_grad()
def reference(name: str, changes: Mapping[str, Any], seed: int = 0) -> Model:
    """Load a model on the CPU; ``changes`` replace fields of a preset, whose name needs no prefix here.

    A preset gets random gains and biases, so that a mistake about them shows. Raises UsageError for changes to a model
    that is not a preset, or changes that do not fit.
    """
    try:
        model = load(name, device="cpu", seed=seed)
    except UsageError:
        if name not in PRESETS:
            raise
        name = f"preset:{name}"
        model = load(name, device="cpu", seed=seed)
    if not name.startswith("preset:"):
        if changes:
            raise UsageError(f"{name} has weights, and --with changes a preset", "such as --like preset:gpt2-tiny")
        return model
    unknown = [name for name in changes if name not in FIELDS]
    if unknown:
        raise UsageError(f"a configuration has no {unknown[0]!r}", did_you_mean(unknown[0], FIELDS))
    transformer = model.transformer
    if changes:
        transformer = Transformer.initialised(_changed(model.config, changes), seed)
    generator = torch.Generator().manual_seed(seed)
    for parameter in transformer.parameters():
        if parameter.dim() == 1:
            parameter.add_(_SPREAD * torch.randn(parameter.shape, generator=generator))
    return replace(model, transformer=transformer, source=f"random weights, seed {seed}")


def _changed(config: ModelConfig, changes: Mapping[str, Any]) -> ModelConfig:
    """A configuration with some fields changed; d_head and d_ff follow d_model and n_heads unless given."""
    fields = {**config.to_dict(), **changes}
    if {"d_model", "n_heads"} & set(changes):
        fields["d_head"] = changes.get("d_head", fields["d_model"] // fields["n_heads"])
        fields["n_kv_heads"] = changes.get("n_kv_heads", fields["n_heads"] // config.heads_per_kv)
        fields["d_ff"] = changes.get("d_ff", config.d_ff * fields["d_model"] // config.d_model)
    return ModelConfig.from_dict(fields)
