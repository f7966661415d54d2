"""Export: one of our models as a directory that transformers opens, with the same logits to the last bit."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor

from tinytf.checkpoints.huggingface.load import FAMILIES, TABLES
from tinytf.checkpoints.huggingface.sentence import without_modules, written_modules
from tinytf.checkpoints.huggingface.table import Family
from tinytf.checkpoints.table import Stored, layer_of
from tinytf.config import ModelConfig
from tinytf.errors import TinytfError, UsageError
from tinytf.fields import Fields
from tinytf.files import to_json
from tinytf.model.transformer import ENCODER, Transformer
from tinytf.outputs import filling, make_folder, write_state
from tinytf.report import Report
from tinytf.steps.operations.positions import sinusoidal_table
from tinytf.text.huggingface import load_tokenizer_directory
from tinytf.text.prompts import NO_PROMPTS, Prompts
from tinytf.text.tokenizer import Tokenizer

_ROLES = {
    "bos_token": ("<s>", "<|begin_of_text|>", "<bos>"),
    "unk_token": ("[UNK]", "<unk>"),
    "sep_token": ("[SEP]",),
    "pad_token": ("[PAD]", "<pad>"),
    "cls_token": ("[CLS]",),
    "mask_token": ("[MASK]", "<mask>"),
}

_UNCHANGED_CLASS = "PreTrainedTokenizerFast"


@dataclass(frozen=True)
class Exported(Report):
    """An exported model: its family, its class in transformers, and its files with their sizes in bytes.

    ``model`` is the name of the model, which ``Model.export`` fills in.
    """

    KIND = "export"

    family: str
    architecture: str
    directory: Path
    files: tuple[tuple[Path, int], ...]
    model: str = ""

    def fields(self) -> dict[str, Any]:
        return {
            **self.members("model", "family", "architecture"),
            "files": [{"path": str(path), "bytes": size} for path, size in self.files],
        }


def export(model: Transformer, tokenizer: Tokenizer, directory: Path, prompts: Prompts = NO_PROMPTS) -> Exported:
    """Write ``model`` and its tokenizer as transformers would, each file atomically, the configuration last.

    With pooling, the folder also has the modules of sentence-transformers, and the ``prompts``.

    Sines and cosines that no family computes are written as learned positions. An embedding scale that no family has is
    multiplied into the embeddings, and a tied head becomes a separate one with the unscaled weights. If transformers
    would rebuild the tokenizer because of the family, zero biases are added to the model so that another family fits.

    Raises UsageError for an architecture that no family has, listing the settings that differ, and for a directory that
    is not empty.
    """
    config = model.config.but(dropout=0.0)
    state: Mapping[str, Tensor] = dict((*model.named_parameters(), *model.named_buffers()))  # shared weights, once
    if _pools_itself(config):
        modules = written_modules(config.but(pooled_dense=()), state, prompts)
        config = config.but(unit_embedding=False)
    else:
        modules = written_modules(config, state, prompts)
        config = without_modules(config)
        state = {name: tensor for name, tensor in state.items() if not name.startswith("pooling.")}
    family, keys, written = writable(config)
    state = _with_learned_positions(config, written, state)
    if written.embed_scale != config.embed_scale:
        state = _fold_embed_scale(config, state)
    config = written
    if not tokenizer.files and _is_rebuilt(family, tokenizer):
        config, state = _with_output_biases(config, state)
        family, keys = family_for(config)
    with filling(directory):
        contents = {**modules, **_contents(family, keys, config, state, tokenizer)}
        for name, data in contents.items():
            make_folder((directory / name).parent)
            write_state(directory / name, data)
    files = tuple((directory / name, len(data)) for name, data in contents.items())
    return Exported(family.name, keys["architectures"][0], directory, files)


def _pools_itself(config: ModelConfig) -> bool:
    """Whether a family has the dense layers after pooling in the model itself."""
    families = [family for family in FAMILIES.values() if family.has("pooling.dense.weight")]
    return any(family.write(config.but(unit_embedding=False)) for family in families)


def _contents(
    family: Family, keys: Mapping[str, Any], config: ModelConfig, state: Mapping[str, Tensor], tokenizer: Tokenizer
) -> dict[str, bytes]:
    """The contents of the files by name, in writing order."""
    special_tokens = _special_tokens(tokenizer)
    # null for a token that the tokenizer lacks: without the key, the family's default would apply
    ids: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    ids |= {
        name: tokenizer.special_id(special_tokens[role])
        for name in ids
        if (role := name.removesuffix("_id")) in special_tokens
    }
    if len(tokenizer.end_ids) > 1:
        ids["eos_token_id"] = list(tokenizer.end_ids)
    dtype = str(next(iter(state.values())).dtype).removeprefix("torch.")
    config_json = {"model_type": family.model_type, **ids, **keys, "dtype": dtype}
    tokenizer_config = {"tokenizer_class": _UNCHANGED_CLASS, "model_max_length": config.context, **special_tokens}
    if tokenizer.chat is not None:
        tokenizer_config = {**tokenizer.chat.names, **tokenizer_config, "chat_template": tokenizer.chat.stored}
    of_tokenizer = tokenizer.files or {
        "tokenizer.json": tokenizer.to_json().encode("utf-8"), "tokenizer_config.json": to_json(tokenizer_config),
    }  # fmt: skip
    return {
        "model.safetensors": save_tensors(dict(_stored_tensors(family, config, state)), metadata={"format": "pt"}),
        **of_tokenizer,
        "config.json": to_json(config_json),
    }


def _with_learned_positions(
    config: ModelConfig, written: ModelConfig, state: Mapping[str, Tensor], stack: str = ""
) -> Mapping[str, Tensor]:
    """The weights with the sines and cosines of each stack that is ``written`` with learned positions."""
    if config.encoder is not None and written.encoder is not None:
        state = _with_learned_positions(config.encoder, written.encoder, state, ENCODER)
    if config.positions == written.positions:
        return state
    weight = state["embed.tokens.weight"]
    table = sinusoidal_table(config.context, config.d_model, weight.device, weight.dtype)
    return {**state, f"{stack}embed.positions.weight": table}


def _fold_embed_scale(config: ModelConfig, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The weights with the embedding scale multiplied into the embeddings."""
    state, table = dict(state), state["embed.tokens.weight"]
    state["embed.tokens.weight"] = table * config.embed_scale
    if config.tied_head and config.head.kind != "none":
        state["head.decoder.weight"] = table
    return state


def _is_rebuilt(family: Family, tokenizer: Tokenizer) -> bool:
    """Whether transformers would rebuild parts of the tokenizer because of the family."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tokenizer.json").write_text(tokenizer.to_json(), "utf-8")
        (folder / "tokenizer_config.json").write_bytes(to_json({"tokenizer_class": _UNCHANGED_CLASS}))
        (folder / "config.json").write_bytes(to_json({"model_type": family.model_type}))
        return bool(load_tokenizer_directory(folder).note)


def _with_output_biases(config: ModelConfig, state: Mapping[str, Tensor]) -> tuple[ModelConfig, Mapping[str, Tensor]]:
    """An equivalent model with zero biases on the attention outputs."""
    zeros = {
        f"blocks.{n}.attention.o.bias": torch.zeros_like(state[f"blocks.{n}.norm1.weight"])
        for n in range(config.n_layers)
    }
    return config.but(o_bias=True), {**zeros, **state}


def writable(config: ModelConfig) -> tuple[Family, dict[str, Any], ModelConfig]:
    """The family of a configuration, its keys of config.json, and the configuration as it is written.

    That has no dropout, and if only so a family has it, tables of sines and cosines as learned positions, and no
    embedding scale. Raises UsageError like ``family_for``.
    """
    config = config.but(dropout=0.0)
    with suppress(UsageError):
        return *family_for(config), config
    config = _learned(config)
    if config.encoder is None and config.embed_scale != 1.0:  # two stacks share their table
        config = config.but(embed_scale=1.0, tied_head=config.head.kind == "none")
    return *family_for(config), config


def _learned(config: ModelConfig) -> ModelConfig:
    """A configuration whose sines and cosines are learned positions, in both stacks."""
    if config.encoder is not None:
        config = config.but(encoder=_learned(config.encoder).to_dict())
    return config.but(positions="learned") if config.positions == "sinusoidal" else config


def family_for(config: ModelConfig) -> tuple[Family, dict[str, Any]]:
    """The family that can write this configuration and read it back unchanged, with its keys of config.json."""
    nearest: tuple[Family, list[str], tuple[bool, int]] | None = None  # of as many stacks first
    with torch.device("meta"):
        parameters = [name for name, _ in Transformer(config).named_parameters()]
    for family in TABLES:
        keys = family.write(config)
        if keys is None:
            continue
        family = family.with_head(config)
        tensors = {family.place(name, config)[0]: name for name in parameters if family.has(name)}
        try:
            reread = family.read(Fields(keys, Path("config.json")), tensors)
        except TinytfError:  # a field without a key, such as a head width, takes a default that does not fit the rest
            continue
        differences = config.differences(reread)
        if not differences:
            return family, keys
        descriptions = [f"{name} {ours!r}, not {theirs!r}" for name, (ours, theirs) in differences.items()]
        if nearest is None or ("encoder" in differences, len(descriptions)) < nearest[2]:
            nearest = family, descriptions, ("encoder" in differences, len(descriptions))
    raise UsageError(
        f"this architecture is none of the {len(FAMILIES)} that can be written",
        f"the nearest is {nearest[0].name}; it differs in {'; '.join(nearest[1])}"
        if nearest
        else "no family is near it",
    )


def _stored_tensors(family: Family, config: ModelConfig, state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors under their names in transformers, with joint matrices joined."""
    parts: dict[str, list[tuple[Stored, Tensor]]] = {}
    layers: dict[str, ModelConfig] = {}
    for name, tensor in state.items():
        for plain, layout in family.locations(name, len(tensor), config):
            parts.setdefault(plain, []).append((layout, layout.part_of(tensor).detach().cpu()))
            layers[plain] = layer_of(name, config)
            for constant, value, *sizes in layout.beside:
                shape = [size if isinstance(size, int) else getattr(config, size) for size in sizes]
                numbers = (
                    torch.tensor(value(layers[plain]))
                    if callable(value)
                    else torch.full(shape, value, dtype=tensor.dtype)
                )
                yield family.prefixed(constant.replace("{n}", name.split(".")[1])), numbers
    for plain, pieces in parts.items():
        pieces.sort(key=lambda piece: piece[0].part)
        joined = pieces[0][0].write([layout.laid(tensor, layers[plain]) for layout, tensor in pieces], layers[plain])
        yield family.written_name(plain, config), joined
        for copy in (copy for copy, original in family.copies.items() if original == plain and copy.endswith("bias")):
            yield family.prefixed(copy), joined.clone()


def _special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    tokens = {}
    for role, names in _ROLES.items():
        name = next((name for name in names if tokenizer.special_id(name) is not None), None)
        if name is not None:
            tokens[role] = name
    end = tokenizer.library.id_to_token(tokenizer.end_ids[0]) if tokenizer.end_ids else None
    return tokens | ({"eos_token": end} if end else {})
