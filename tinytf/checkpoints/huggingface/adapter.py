"""LoRA adapters of PEFT (Hu et al. 2021), merged into the weights of their model: W + s·B·A, s = α / r.

With DoRA (Liu et al. 2024) the sum V is scaled to a magnitude m for each output, m·V/‖V‖; trained tokens replace rows.

Adapter tensors are named after the modules of transformers, so the table of the model's family gives our parameter
for each, and its layout.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
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
from tinytf.files import read_json, resolve_links
from tinytf.kept import ADAPTER_CONFIG
from tinytf.model.transformer import Transformer
from tinytf.nearest import did_you_mean
from tinytf.text.printable import printable

CONFIG, WEIGHTS = ADAPTER_CONFIG, "adapter_model.safetensors"
_ALLOWED: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", "all", "lora_only"),
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),  # others first change the model's weights
    "loftq_config": ({},),
    "runtime_config": ({}, {"ephemeral_gpu_offload": False}),
}
"""Settings that must have one of these values, or be missing."""
_HARMLESS = (
    "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
    "target_modules", "exclude_modules", "lora_dropout", "fan_in_fan_out", "modules_to_save", "layers_to_transform",
    "layers_pattern", "use_dora", "megatron_core", "qalora_group_size", "eva_config", "velora_config",
)  # fmt: skip
"""Settings of training, and settings that the tensors imply."""
_LORA = re.compile(r"(?P<path>.+)\.lora_(?P<embedding>embedding_)?(?P<part>[AB])(?:\.default)?(?:\.weight)?")
_MAGNITUDE = re.compile(r"(?P<path>.+)\.lora_magnitude_vector(?:\.default)?(?:\.weight)?")
_TOKENS = re.compile(r"(?P<path>.+)\.token_adapter\.trainable_tokens_delta(?:\.default)?")
_ONLY = "LoRA and DoRA are implemented, and tokens trained beside them"
_REPLACED = re.compile(r"\.modules_to_save(?:\.default)?(?=\.)")
_UNBOUNDED = re.compile(r"\)[*+{]|[*+}].*[*+{].*[*+{].*[*+{]")
"""Regular expressions that could backtrack forever on some names."""


class Change(NamedTuple):
    """The change of one stored tensor: ``whole`` replaces it, or ``scale`` · ``up`` @ ``down`` is added to it.

    ``down`` is (r, in) and ``up`` (out, r); for an ``embedding`` they belong to the transposed table. The sum is then
    scaled to the ``magnitude`` (out,) of DoRA. Where there are ``rows``, ``whole`` replaces only these. ``under`` is
    true for a base layer: a replacement that also holds for the module tied to it.
    """

    whole: Tensor | None = None
    down: Tensor | None = None
    up: Tensor | None = None
    scale: float = 0.0
    embedding: bool = False
    under: bool = False
    magnitude: Tensor | None = None
    rows: tuple[int, ...] = ()

    @property
    def stored(self) -> Tensor:
        """The replacement, or the (out, in) matrix to add."""
        if self.whole is not None:
            return self.whole
        assert self.up is not None
        assert self.down is not None
        added = self.scale * (self.up.float() @ self.down.float())
        return added.T if self.embedding else added

    def spread(self, transposed: bool) -> Tensor:
        """The magnitude of each number's output, in the shape of the stored matrix."""
        assert self.magnitude is not None
        wide = self.magnitude.float() if self.embedding else self.magnitude.float()[:, None]
        wide = wide.expand(self.stored.shape)
        return wide.T if transposed else wide


@dataclass(frozen=True)
class Merged:
    """An adapter in the weights of a model: its ``name``, the model's weights without it, and its scales."""

    name: str
    base: Callable[[], Transformer]
    scales: Callable[[], Mapping[str, float]]


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter of PEFT: a folder with adapter_config.json and adapter_model.safetensors."""

    directory: Path

    @property
    def name(self) -> str:
        return printable(resolve_links(self.directory).name, spaces=False)

    @cached_property
    def fields(self) -> Fields:
        """The settings of adapter_config.json. Raises CheckpointError, by name, for one that is not implemented."""
        path = self.directory / CONFIG
        fields = Fields(read_json(path), path)
        fields.text("peft_type")
        for name, allowed in _ALLOWED.items():
            fields.require(name, allowed)
        fields.asked |= {"r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "trainable_token_indices"}
        for name in fields.unknown(_HARMLESS):
            if fields.data[name] not in (None, False, [], {}):
                raise fields.fault(f"{quoted(name)} is not implemented", _ONLY)
        return fields

    @property
    def base(self) -> str:
        """The name of the model it was trained on, according to its settings; may be empty."""
        return str(self.fields.text("base_model_name_or_path", ""))

    def _matching_number(self, name: str, path: str, default: int) -> int:
        """The number of the first pattern (of rank_pattern or alpha_pattern) that ends ``path``, or ``default``."""
        for pattern, number in self.fields.get(Field(name, dict, {})).items():
            if _UNBOUNDED.search(pattern) or len(pattern) > 200:
                raise self.fields.fault(f"{name} has the pattern {quoted(pattern)}, which is too complex")
            try:
                if re.fullmatch(rf"(.*\.)?({pattern})", path):
                    return Fields({name: number}, self.fields.source).whole(name, least=1)
            except re.error as error:
                raise self.fields.fault(
                    f"{name} has {quoted(pattern)}, which is not a regular expression: {error}"
                ) from None
        return default

    def _scale(self, path: str, rank: int) -> float:
        """α / r, or α / √r with rank-stabilised LoRA (Kalajdzievski 2023), of the module at ``path``."""
        expected = self._matching_number("rank_pattern", path, self.fields.whole("r", 8, least=1))
        if expected != rank:
            raise self.fields.fault(f"the rank of {quoted(path)} is {expected}, but its matrices have rank {rank}")
        alpha = self._matching_number("alpha_pattern", path, self.fields.whole("lora_alpha", 8, least=1))
        return alpha / (math.sqrt(rank) if self.fields.flag("use_rslora", False) else rank)

    def _token_rows(self, path: str, count: int) -> tuple[int, ...]:
        """The ids of the ``count`` trained tokens of the module at ``path``."""
        listed = self.fields.data.get("trainable_token_indices")
        if isinstance(listed, dict):
            listed = next((ids for name, ids in listed.items() if f".{path}".endswith(f".{name}")), None)
        rows = listed if isinstance(listed, list) else []
        if len(rows) != count or not all(type(row) is int and row >= 0 for row in rows):
            raise self.fields.fault(f"trainable_token_indices does not name the {count:,} tokens of {quoted(path)}")
        return tuple(rows)

    def changes(self, table: FamilyTable) -> list[tuple[str, Change]]:
        """The change of each tensor, by its name in the table. Raises CheckpointError for another kind of adapter."""
        source, _ = self.directory / WEIGHTS, self.fields  # reading the settings reports their faults first
        file = Safetensors(source)
        replacements: list[tuple[str, Change]] = []
        pairs: dict[tuple[str, bool], dict[str, Tensor]] = {}
        magnitudes: dict[str, Tensor] = {}
        tokens: dict[str, Tensor] = {}
        for name in file.shapes:
            path = name.removeprefix("base_model.model.")
            if match := _LORA.fullmatch(path):
                pairs.setdefault((match["path"], bool(match["embedding"])), {})[match["part"]] = file.stored(name)
            elif match := _MAGNITUDE.fullmatch(path):
                magnitudes[match["path"]] = file.stored(name)
            elif match := _TOKENS.fullmatch(path):
                tokens[match["path"]] = file.stored(name)
            elif "lora_" in path or "token_adapter" in path:
                raise CheckpointError(f"{source}: {quoted(name)} is not implemented", _ONLY)
            else:
                under = ".base_layer." in path
                plain = table.plain(_REPLACED.sub("", path).replace(".base_layer.", "."))
                replacements.append((plain, Change(file.stored(name), under=under)))
        for path, rows in tokens.items():  # those of the embeddings alone hold for a head that is tied to them
            change = Change(rows, under=len(tokens) == 1, rows=self._token_rows(path, len(rows)))
            replacements.append((table.plain(f"{path}.weight"), change))
        products = []
        for (path, embedding), pair in pairs.items():
            if pair.keys() != {"A", "B"}:
                raise CheckpointError(f"{source} has only one of lora_A and lora_B of {quoted(path)}")
            down, up = pair["A"], pair["B"]
            if down.dim() != 2 or up.dim() != 2 or down.shape[0] != up.shape[1]:
                sizes = f"{tuple(up.shape)} and {tuple(down.shape)}"
                raise CheckpointError(
                    f"{source}: lora_B and lora_A of {quoted(path)} are {sizes}, which cannot be multiplied"
                )
            magnitude = magnitudes.pop(path, None)
            if self.fields.flag("use_dora", False) != (magnitude is not None):
                extra = "without use_dora" if magnitude is not None else "missing, despite use_dora"
                raise CheckpointError(f"{source}: the lora_magnitude_vector of {quoted(path)} is {extra}")
            if magnitude is not None and magnitude.shape != up.shape[:1]:
                sizes = f"{magnitude.numel():,} magnitudes, but {up.shape[0]:,} outputs"
                raise CheckpointError(f"{source}: {quoted(path)} has {sizes}")
            change = Change(None, down, up, self._scale(path, down.shape[0]), embedding, magnitude=magnitude)
            products.append((table.plain(f"{path}.weight"), change))
        if magnitudes:
            raise CheckpointError(f"{source} has a lora_magnitude_vector of {quoted(min(magnitudes))}, but no lora_A")
        return [*sorted(replacements, key=lambda pair: not pair[1].under), *products]

    def scales(self, model: Transformer, table: FamilyTable) -> dict[str, float]:
        """The scale s of each product B·A, by the name of our parameter; without DoRA, which rescales the sum."""
        state, config = dict(model.named_parameters()), model.config
        return {
            name: change.scale
            for plain, change in self.changes(table)
            if change.whole is None and change.magnitude is None
            for name, _ in _targets(plain, table, config, state)
        }

    def merge(self, model: Transformer, table: FamilyTable) -> Transformer:
        """A model with the adapter merged into its weights; unchanged weights are shared with ``model``.

        Sums are computed in float32, or in float64 for float64 weights. Changing only one of tied embeddings and head
        unties them, as in PEFT.

        Raises CheckpointError for an unknown tensor, or one of another shape.
        """
        changes = self.changes(table)
        config, state = model.config, dict((*model.named_parameters(), *model.named_buffers()))
        embedding = table.place("embed.tokens.weight", config)[0]
        tied = {embedding, *table.copies}
        if config.tied_head:  # what also holds for the head comes first, so that it is copied with the rest
            own: list[tuple[str, Change]] = []
            for plain, change in changes:
                if change.under and (plain == embedding or not change.rows):
                    self._apply(table.copies.get(plain, plain), change, table, config, state)
                else:
                    own.append((plain, change))
            changes = own
        if config.tied_head and any(plain in tied for plain, _ in changes):
            config = config.but(tied_head=False)
            state["head.decoder.weight"] = state["embed.tokens.weight"]
        for plain, change in changes:
            self._apply(plain, change, table, config, state)
        with torch.device("meta"):
            merged = Transformer(config)
        merged.load_state_dict({name: tensor.detach() for name, tensor in state.items()}, assign=True)
        merged.mapped = model.mapped
        return merged.eval()

    def _apply(
        self, plain: str, change: Change, table: FamilyTable, config: ModelConfig, state: dict[str, Tensor]
    ) -> None:
        source = self.directory / WEIGHTS
        stored, is_product = change.stored, change.whole is None
        targets = list(_targets(plain, table, config, state))
        if not targets:
            known = [path for name in state for path, _ in table.locations(name, len(state[name]), config, (plain,))]
            raise CheckpointError(
                f"{source} changes {quoted(plain)}, which a {table.name} model has no place for",
                did_you_mean(plain, known, otherwise=self._hint),
            )
        for name, layout in targets:
            ours = layout.part_of(state[name])
            oriented = stored.T if is_product and layout.transposed else stored
            layer = layer_of(name, config)
            needed = layout.stored_shape(tuple(ours.shape), layer)
            trained = None
            if change.rows and stored.shape[1:] == needed[1:]:
                if max(change.rows) >= needed[0]:
                    raise self.fields.fault(f"there is no token {max(change.rows):,}, the model has {needed[0]:,}")
                trained = torch.zeros(needed, dtype=torch.bool)
                trained[list(change.rows)] = True
                oriented = torch.zeros(needed, dtype=stored.dtype)
                oriented[list(change.rows)] = stored
            if tuple(oriented.shape) != needed:
                sizes = f"of shape {tuple(oriented.shape)}, but the model's has shape {needed}"
                raise CheckpointError(f"{source}: {quoted(plain)} is for a tensor {sizes}", self._hint)
            if is_product:
                sum_dtype = torch.promote_types(ours.dtype, torch.float32)
                linear = replace(layout, offset=0.0)
                values = linear.read(oriented.to(ours.device, sum_dtype), layer)
                values = ours.detach().to(sum_dtype) + values
                if change.magnitude is not None:
                    magnitudes = change.spread(layout.transposed).to(ours.device, sum_dtype)
                    outputs_in = 0 if change.embedding else 1
                    if values.dim() != 2 or layout.axis or values.shape[outputs_in] != stored.shape[outputs_in]:
                        raise CheckpointError(f"{source}: DoRA of a part of {quoted(plain)} is not implemented")
                    norms = values.norm(dim=outputs_in, keepdim=True)
                    values = linear.read(magnitudes, layer) * values / norms
                values = values.to(ours.dtype)
            else:
                values = layout.read(oriented.to(ours.device, ours.dtype), layer)
                if trained is not None:
                    changed = replace(layout, offset=0.0).read(trained.to(ours.device, ours.dtype), layer) != 0
                    values = torch.where(changed, values, ours.detach())
            if layout.expert is None:
                state[name] = values
            else:
                state[name] = state[name].detach().clone()
                layout.part_of(state[name]).copy_(values)

    @property
    def _hint(self) -> str:
        return f"it was trained on {quoted(self.base)}" if self.base else "it was trained on another model"


def _targets(
    plain: str, table: FamilyTable, config: ModelConfig, state: Mapping[str, Tensor]
) -> Iterator[tuple[str, Stored]]:
    """Our parameters that are stored, in whole or in part, in the tensor named ``plain``, with their layouts."""
    for name, tensor in state.items():
        for stored, layout in table.locations(name, len(tensor), config, (plain,)):
            if stored == plain:
                yield name, layout
