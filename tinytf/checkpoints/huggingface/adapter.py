"""LoRA adapters of PEFT (Hu et al. 2021), merged into the weights of their model: W + s·B·A, s = α / r.

Their tensors are named after the modules of transformers, so the table of the model's family says which of our
parameters each one changes and how it lies there.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tinytf.checkpoints.table import FamilyTable, Stored, layer_of
from tinytf.checkpoints.weights import Safetensors
from tinytf.config import ModelConfig
from tinytf.errors import CheckpointError
from tinytf.fields import Field, Fields, quoted
from tinytf.files import read_json, resolved
from tinytf.model.transformer import Transformer
from tinytf.nearest import did_you_mean
from tinytf.text.printable import printable

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", "all", "lora_only"),
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),  # others change the model's weights first
    "loftq_config": ({},),
    "runtime_config": ({}, {"ephemeral_gpu_offload": False}),
}
"""Settings that are read only with these values, or missing."""
_HARMLESS = (
    "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
    "target_modules", "exclude_modules", "lora_dropout", "fan_in_fan_out", "modules_to_save", "layers_to_transform",
    "layers_pattern", "megatron_core", "qalora_group_size", "eva_config", "velora_config",
)  # fmt: skip
"""Settings that say how it was trained, or what its tensors say again."""
_LORA = re.compile(r"(?P<path>.+)\.lora_(?P<embedding>embedding_)?(?P<part>[AB])(?:\.default)?(?:\.weight)?")
_SAVED = re.compile(r"\.modules_to_save(?:\.default)?(?=\.)")
_UNBOUNDED = re.compile(r"\)[*+{]|[*+}].*[*+{].*[*+{].*[*+{]")
"""Regular expressions that could take for ever on some names."""


class Change(NamedTuple):
    """What an adapter does to one stored tensor: put another in its place, or add ``scale`` · ``up`` · ``down``.

    ``down`` is (r, in) and ``up`` (out, r). Those of embeddings are of the transposed table. ``under`` is true for a
    tensor that replaces what is shared with another module too.
    """

    whole: Tensor | None = None
    down: Tensor | None = None
    up: Tensor | None = None
    scale: float = 0.0
    embedding: bool = False
    under: bool = False

    @property
    def stored(self) -> Tensor:
        """The tensor that takes the other's place, or is added to it, as (out, in)."""
        if self.whole is not None:
            return self.whole
        assert self.up is not None
        assert self.down is not None
        added = self.scale * (self.up.float() @ self.down.float())
        return added.T if self.embedding else added


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter of PEFT: a folder with adapter_config.json and adapter_model.safetensors."""

    directory: Path

    @property
    def name(self) -> str:
        return printable(resolved(self.directory).name, spaces=False)

    @cached_property
    def fields(self) -> Fields:
        """Its settings. Raises CheckpointError by name for those that are not implemented."""
        path = self.directory / CONFIG
        fields = Fields(read_json(path), path)
        fields.text("peft_type")
        for name, allowed in _PLAIN.items():
            fields.require(name, allowed)
        fields.asked |= {"r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern"}
        for name in fields.unknown(_HARMLESS):
            if fields.data[name] not in (None, False, [], {}):
                raise fields.fault(f"{quoted(name)} is not implemented", "only plain LoRA is: W + s·B·A")
        return fields

    @property
    def base(self) -> str:
        """The model that it was trained on, by its own word; empty where it does not say."""
        return str(self.fields.text("base_model_name_or_path", ""))

    def _of_pattern(self, name: str, path: str, otherwise: int) -> int:
        """A number of a module: by the first pattern that its path ends in, or as for all."""
        for pattern, number in self.fields.get(Field(name, dict, {})).items():
            if _UNBOUNDED.search(pattern) or len(pattern) > 200:
                raise self.fields.fault(f"{name} has the pattern {quoted(pattern)}, which is too involved")
            try:
                if re.fullmatch(rf"(.*\.)?({pattern})", path):
                    return Fields({name: number}, self.fields.source).whole(name, least=1)
            except re.error as error:
                raise self.fields.fault(f"{name} has {quoted(pattern)}, which is no pattern: {error}") from None
        return otherwise

    def _scale(self, path: str, rank: int) -> float:
        """α / r, or α / √r with rank-stabilised LoRA (Kalajdzievski 2023), of the module at ``path``."""
        said = self._of_pattern("rank_pattern", path, self.fields.whole("r", 8, least=1))
        if said != rank:
            raise self.fields.fault(f"the rank of {quoted(path)} is {said}, and its matrices have rank {rank}")
        alpha = self._of_pattern("alpha_pattern", path, self.fields.whole("lora_alpha", 8, least=1))
        return alpha / (math.sqrt(rank) if self.fields.flag("use_rslora", False) else rank)

    def changes(self, table: FamilyTable) -> list[tuple[str, Change]]:
        """What it does to each tensor, by the name in the table. Raises CheckpointError for what is no part of LoRA."""
        source, _ = self.directory / WEIGHTS, self.fields  # whose faults are told first
        file = Safetensors(source)
        whole: list[tuple[str, Change]] = []
        pairs: dict[tuple[str, bool], dict[str, Tensor]] = {}
        for name in file.shapes:
            path = name.removeprefix("base_model.model.")
            if found := _LORA.fullmatch(path):
                pairs.setdefault((found["path"], bool(found["embedding"])), {})[found["part"]] = file.stored(name)
            elif "lora_" in path:
                raise CheckpointError(f"{source}: {quoted(name)} is not implemented", "only plain LoRA is: W + s·B·A")
            else:
                under = ".base_layer." in path
                plain = table.plain(_SAVED.sub("", path).replace(".base_layer.", "."))
                whole.append((plain, Change(file.stored(name), under=under)))
        added = []
        for (path, embedding), pair in pairs.items():
            if pair.keys() != {"A", "B"}:
                raise CheckpointError(f"{source} has only one of lora_A and lora_B of {quoted(path)}")
            down, up = pair["A"], pair["B"]
            if down.dim() != 2 or up.dim() != 2 or down.shape[0] != up.shape[1]:
                sizes = f"{tuple(up.shape)} and {tuple(down.shape)}"
                raise CheckpointError(f"{source}: lora_B and lora_A of {quoted(path)} are {sizes}, which is no product")
            scale = self._scale(path, down.shape[0])
            added.append((table.plain(f"{path}.weight"), Change(None, down, up, scale, embedding)))
        return [*sorted(whole, key=lambda one: not one[1].under), *added]

    def merge(self, model: Transformer, table: FamilyTable) -> Transformer:
        """A model with the adapter in its weights; those that it does not change are the same tensors.

        Sums are made in float32, or in float64 where the weights have it. A head that is tied to the embeddings is so
        no more where one of them is changed, as PEFT changes that one alone.

        Raises CheckpointError for a tensor without a place, or of another shape.
        """
        changes = self.changes(table)
        config, state = model.config, dict((*model.named_parameters(), *model.named_buffers()))
        tied = {table.place("embed.tokens.weight", config)[0], *table.copies}
        if config.tied_head and any(plain in tied and not change.under for plain, change in changes):
            for plain, change in (one for one in changes if one[1].under):
                self._change(plain, change, table, config, state)
            changes = [one for one in changes if not one[1].under]
            config = config.but(tied_head=False)
            state["head.decoder.weight"] = state["embed.tokens.weight"]
        for plain, change in changes:
            self._change(plain, change, table, config, state)
        with torch.device("meta"):
            merged = Transformer(config)
        merged.load_state_dict({name: tensor.detach() for name, tensor in state.items()}, assign=True)
        merged.mapped = model.mapped
        return merged.eval()

    def _change(
        self, plain: str, change: Change, table: FamilyTable, config: ModelConfig, state: dict[str, Tensor]
    ) -> None:
        source = self.directory / WEIGHTS
        stored, matrix = change.stored, change.whole is None
        places = list(_places(plain, table, config, state))
        if not places:
            known = [one for name in state for one, _ in table.places(name, len(state[name]), config, (plain,))]
            raise CheckpointError(
                f"{source} changes {quoted(plain)}, which a {table.name} model has no place for",
                did_you_mean(plain, known, otherwise=self._hint),
            )
        for name, how in places:
            ours = state[name] if how.expert is None else state[name][how.expert]
            laid = stored.T if matrix and how.transposed else stored
            own = layer_of(name, config)
            needed = how.stored_shape(tuple(ours.shape), own)
            if tuple(laid.shape) != needed:
                sizes = f"of shape {tuple(laid.shape)}, and the model's is {needed}"
                raise CheckpointError(f"{source}: {quoted(plain)} is for a tensor {sizes}", self._hint)
            if matrix:
                wide = torch.promote_types(ours.dtype, torch.float32)
                piece = replace(how, offset=0.0).read(laid.to(ours.device, wide), own)
                piece = (ours.detach().to(wide) + piece).to(ours.dtype)
            else:
                piece = how.read(laid.to(ours.device, ours.dtype), own)
            if how.expert is None:
                state[name] = piece
            else:
                state[name] = state[name].detach().clone()
                state[name][how.expert] = piece

    @property
    def _hint(self) -> str:
        return f"it was trained on {quoted(self.base)}" if self.base else "it was trained on another model"


def _places(
    plain: str, table: FamilyTable, config: ModelConfig, state: Mapping[str, Tensor]
) -> Iterator[tuple[str, Stored]]:
    """Our parameters that are stored, each in its part, in the tensor of this name."""
    for name, tensor in state.items():
        for stored, how in table.places(name, len(tensor), config, (plain,)):
            if stored == plain:
                yield name, how
