"""The way back: a model of ours as a directory that transformers opens, with the same logits to the last bit."""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor

from tinytf.checkpoints.huggingface.load import FAMILIES
from tinytf.checkpoints.huggingface.table import Family
from tinytf.checkpoints.table import Stored, layer_of
from tinytf.config import FIELDS, ModelConfig
from tinytf.errors import TinytfError, UsageError
from tinytf.fields import Fields
from tinytf.files import to_json
from tinytf.model.transformer import Transformer
from tinytf.outputs import filling, write_state
from tinytf.report import Report
from tinytf.text.huggingface import load_tokenizer_directory
from tinytf.text.tokenizer import Tokenizer

_ROLES = {
    "bos_token": ("<s>", "<|begin_of_text|>", "<bos>"),
    "unk_token": ("[UNK]", "<unk>"),
    "sep_token": ("[SEP]",),
    "pad_token": ("[PAD]", "<pad>"),
    "cls_token": ("[CLS]",),
    "mask_token": ("[MASK]", "<mask>"),
}

_AS_IT_STANDS = "PreTrainedTokenizerFast"


@dataclass(frozen=True)
class Exported(Report):
    """What was written: as which family, for which class of transformers, and the files with their sizes in bytes.

    ``model`` is the name of the model, as ``Model.export`` fills it in.
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


def export(model: Transformer, tokenizer: Tokenizer, directory: Path) -> Exported:
    """Write ``model`` and its tokenizer as transformers would, each file whole, the configuration last.

    A scale on the embeddings that no family has is multiplied into them, and the head that was tied to them keeps the
    unscaled ones. For some families transformers rebuilds the tokenizer in its own way; a model with another tokenizer
    is written as a family with one bias more, of zeros.

    Raises UsageError for an architecture that no family has, with the settings that differ, and for a directory that is
    not empty.
    """
    config = model.config.but(dropout=0.0)
    state: Mapping[str, Tensor] = dict((*model.named_parameters(), *model.named_buffers()))  # what layers share, once
    try:
        family, written = family_for(config)
    except UsageError:
        config, state = _unscaled(config, state)
        family, written = family_for(config)
    if _rebuilt(family, tokenizer):
        config, state = _with_output_biases(config, state)
        family, written = family_for(config)
    with filling(directory):
        contents = _contents(family, written, config, state, tokenizer)
        for name, data in contents.items():
            write_state(directory / name, data)
    files = tuple((directory / name, len(data)) for name, data in contents.items())
    return Exported(family.name, written["architectures"][0], directory, files)


def _contents(
    family: Family, written: Mapping[str, Any], config: ModelConfig, state: Mapping[str, Tensor], tokenizer: Tokenizer
) -> dict[str, bytes]:
    """The files by name, in the order in which they are written."""
    special = _special_tokens(tokenizer)
    # null where the tokenizer has none: left out, the family's own default would take its place
    ids: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    ids |= {name: tokenizer.special_id(special[role]) for name in ids if (role := name.removesuffix("_id")) in special}
    if len(tokenizer.end_ids) > 1:
        ids["eos_token_id"] = list(tokenizer.end_ids)
    dtype = str(next(iter(state.values())).dtype).removeprefix("torch.")
    settings = {"model_type": family.model_type, **ids, **written, "dtype": dtype}
    words = {"tokenizer_class": _AS_IT_STANDS, "model_max_length": config.context, **special}
    if tokenizer.chat is not None:
        words = {**tokenizer.chat.names, **words, "chat_template": tokenizer.chat.stored}
    return {
        "model.safetensors": save_tensors(dict(_stored(family, config, state)), metadata={"format": "pt"}),
        "tokenizer.json": tokenizer.to_json().encode("utf-8"),
        "tokenizer_config.json": to_json(words),
        "config.json": to_json(settings),
    }


def _unscaled(config: ModelConfig, state: Mapping[str, Tensor]) -> tuple[ModelConfig, Mapping[str, Tensor]]:
    """A model that computes what this one does, without a scale on its embeddings."""
    if config.embed_scale == 1.0:
        return config, state
    state, table = dict(state), state["embed.tokens.weight"]
    state["embed.tokens.weight"] = table * config.embed_scale
    if config.tied_head and config.head.kind != "none":
        state["head.decoder.weight"] = table
    return config.but(embed_scale=1.0, tied_head=config.head.kind == "none"), state


def _rebuilt(family: Family, tokenizer: Tokenizer) -> bool:
    """Whether transformers would replace parts of the tokenizer because of the family."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tokenizer.json").write_text(tokenizer.to_json(), "utf-8")
        (folder / "tokenizer_config.json").write_bytes(to_json({"tokenizer_class": _AS_IT_STANDS}))
        (folder / "config.json").write_bytes(to_json({"model_type": family.model_type}))
        return bool(load_tokenizer_directory(folder).note)


def _with_output_biases(config: ModelConfig, state: Mapping[str, Tensor]) -> tuple[ModelConfig, Mapping[str, Tensor]]:
    """A model that computes what this one does, with biases of zeros where attention writes."""
    zeros = {
        f"blocks.{n}.attention.o.bias": torch.zeros_like(state[f"blocks.{n}.norm1.weight"])
        for n in range(config.n_layers)
    }
    return config.but(o_bias=True), {**zeros, **state}


def family_for(config: ModelConfig) -> tuple[Family, dict[str, Any]]:
    """The family that writes this configuration and reads the same again."""
    nearest: tuple[Family, list[str]] | None = None
    with torch.device("meta"):
        parameters = [name for name, _ in Transformer(config).named_parameters()]
    for family in FAMILIES.values():
        written = family.write(config)
        if written is None:
            continue
        family = family.with_head(config)
        tensors = {family.place(name, config)[0]: name for name in parameters if family.has(name)}
        try:
            again = family.read(Fields(written, Path("config.json")), tensors)
        except TinytfError:  # what the family has no key for, such as a head width, does not fit the rest
            continue
        differing = [name for name in FIELDS if again.setting(name) != config.setting(name)]
        if not differing:
            return family, written
        said = [f"{name} {config.setting(name)!r}, not {again.setting(name)!r}" for name in differing]
        if nearest is None or len(said) < len(nearest[1]):
            nearest = family, said
    assert nearest is not None
    raise UsageError(
        f"this architecture is none of the {len(FAMILIES)} that can be written",
        f"the nearest is {nearest[0].name}; it differs in {'; '.join(nearest[1])}",
    )


def _stored(family: Family, config: ModelConfig, state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The tensors under the names that transformers stores, joint ones joined."""
    parts: dict[str, list[tuple[Stored, Tensor]]] = {}
    own: dict[str, ModelConfig] = {}
    for name, tensor in state.items():
        for plain, how in family.places(name, len(tensor), config):
            piece = tensor if how.expert is None else tensor[how.expert]
            parts.setdefault(plain, []).append((how, piece.detach().cpu()))
            own[plain] = layer_of(name, config)
    for plain, pieces in parts.items():
        pieces.sort(key=lambda piece: piece[0].part)
        joined = pieces[0][0].write([how.laid(tensor, own[plain]) for how, tensor in pieces], own[plain])
        yield family.prefixed(plain), joined
        for copy in (copy for copy, copied in family.copies.items() if copied == plain and copy.endswith("bias")):
            yield family.prefixed(copy), joined.clone()


def _special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    found = {}
    for role, names in _ROLES.items():
        name = next((name for name in names if tokenizer.special_id(name) is not None), None)
        if name is not None:
            found[role] = name
    end = tokenizer.library.id_to_token(tokenizer.end_ids[0]) if tokenizer.end_ids else None
    return found | ({"eos_token": end} if end else {})
