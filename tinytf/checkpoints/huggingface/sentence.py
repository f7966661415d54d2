"""Folders of sentence-transformers: modules.json, which lists what follows the transformer, read and written."""

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor

from tinytf.checkpoints.huggingface.late import colbert_reads, is_colbert, pylate_reads, read_colbert, reads
from tinytf.checkpoints.huggingface.reranker import pair_template, read_logit_score
from tinytf.checkpoints.huggingface.table import Family
from tinytf.checkpoints.load import Checkpoint, Shapes, WeightFiles
from tinytf.checkpoints.table import Skip, Stored
from tinytf.checkpoints.weights import Mapped, Weights
from tinytf.config import FIELDS, ModelConfig
from tinytf.errors import CheckpointError, UsageError
from tinytf.fields import Fields, quoted
from tinytf.files import read_json, read_json_list, to_json
from tinytf.parts.part import leaves
from tinytf.parts.pooling import TOKENS, UNREAD, Pooling
from tinytf.text.late import LateInteraction
from tinytf.text.pair import PairTemplate
from tinytf.text.prompts import Prompts

_MODULES, _PROMPTS = "modules.json", "config_sentence_transformers.json"
_TOKENIZER = "tokenizer_config.json"
_TRANSFORMERS = tuple(f"sentence_{kind}_config.json" for kind in ("bert", "roberta", "distilbert", "camembert",
                                                                  "albert", "xlm-roberta", "xlnet"))  # fmt: skip
"""The files of settings of the transformer, of which the first that is there counts."""
_POOLING = {
    "mean": "mean",
    "mean_sqrt_len_tokens": "sqrt",
    "weightedmean": "weighted",
    "cls": "first",
    "lasttoken": "last",
    "max": "max",
}
"""Our words for the ways of pooling."""
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""The keys of older folders, which are true for the ways that are used."""
_ACTIVATIONS = {
    "Identity": "none",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
}
"""Our words for the activations of dense layers, by their classes in torch."""
_DENSE = ("pooling.dense", "pooling.dense2")
"""Our modules of the dense layers, in order."""


class _Unread(Exception):
    """A module, or a setting of one, that is not implemented."""


def read_sentence_modules(checkpoint: Checkpoint, directory: Path) -> Checkpoint:
    """The checkpoint of a transformers directory with the modules that sentence-transformers puts after it.

    A folder with modules that are not implemented is read without any of them, with a note that names the first.
    """
    if is_colbert(directory):
        return without_pooler(read_colbert(checkpoint))
    if not (directory / _MODULES).exists():
        return checkpoint
    try:
        if score := _logit_score(directory):
            read = read_logit_score(checkpoint, score)
            if isinstance(read, Checkpoint):
                return read
            raise _Unread(read)
        fields, folders = _settings(directory)
    except _Unread as reason:
        return replace(checkpoint, notes=(*checkpoint.notes, f"{UNREAD}: {reason}"))
    if folders and checkpoint.config.pooled_dense:
        return replace(
            checkpoint, notes=(*checkpoint.notes, f"{UNREAD}: {_MODULES} has dense layers beside the model's own")
        )
    if checkpoint.config.pooler and "pooling" in fields:
        fields["pooler"] = False
        checkpoint = without_pooler(checkpoint)
    family = checkpoint.table
    assert isinstance(family, Family)
    stored = {module: Stored(f"{module}.linear") for module in _DENSE[: len(folders)]}
    family = replace(family, stored={**family.stored, **stored}, outside=(*family.outside, "pooling."))
    weights: WeightFiles = _WithDense(checkpoint.weights, folders) if folders else checkpoint.weights
    return replace(checkpoint, table=family, config=checkpoint.config.but(**fields), weights=weights)


def without_pooler(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint, whose stored pooler is skipped with a note."""
    family = checkpoint.table
    assert isinstance(family, Family)
    skip = Skip(r"pooler\..*", "the pooler, which sentence-transformers does not use", noted=True)
    return replace(checkpoint, table=replace(family, skipped=(*family.skipped, skip)))


def _logit_score(directory: Path) -> Fields | None:
    """The settings of a module that reads a score off the logits, if it alone follows the transformer."""
    path = directory / _MODULES
    modules = [Fields(entry, path) for entry in read_json_list(path)]
    if [module.text("type").rpartition(".")[2] for module in modules] != ["Transformer", "LogitScore"]:
        return None
    return _config(_inside(directory, modules[1].text("path", ""), path))


def _settings(directory: Path) -> tuple[dict[str, Any], tuple[Path, ...]]:
    """Our fields, and the folders of the dense layers."""
    path = directory / _MODULES
    modules = [Fields(entry, path) for entry in read_json_list(path)]
    kinds = [module.text("type").rpartition(".")[2] for module in modules]
    fields: dict[str, Any] = {"pooling": TOKENS} if _is_late(directory, kinds) else {}
    dense: list[tuple[Path, Fields]] = []
    for kind, module in zip(kinds, modules, strict=True):
        folder = _inside(directory, module.text("path", ""), path)
        if kind == "MultiVectorMask":
            continue
        if kind == "Pooling":
            fields["pooling"] = _pooling(_config(folder))
        elif kind == "Dense" and "pooling" in fields:
            dense.append((folder, _config(folder)))
            fields |= {"unit_embedding": True} if fields["pooling"] == TOKENS else {}
        elif kind == "Normalize" and "pooling" in fields:
            fields["unit_embedding"] = True
        elif kind not in ("Transformer", "Dropout"):
            raise _Unread(f"{_MODULES} has the module {quoted(kind)}, which is not implemented")
    order = [kind for kind in kinds if kind not in ("Dropout", "MultiVectorMask")]
    pooled = "pooling" in fields and fields["pooling"] != TOKENS
    if order != ["Transformer", *["Pooling"] * pooled, *["Dense"] * len(dense),
                 *["Normalize"] * ("Normalize" in kinds)]:  # fmt: skip
        raise _Unread(f"{_MODULES} has {', '.join(order) or 'no module'}, and that order is not implemented")
    settings = _transformer(directory)
    if settings.flag("do_lower_case", False):
        raise _Unread(f"do_lower_case in {settings.source} is not implemented")
    of = "token_embeddings" if fields.get("pooling") == TOKENS else "sentence_embedding"
    return {**fields, **_dense(dense, of)}, tuple(folder for folder, _ in dense)


def _inside(directory: Path, name: str, source: Path) -> Path:
    """A folder named in a file of the directory, which must lie inside it."""
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts:
        raise CheckpointError(f"{source}: the path {quoted(name)} leads out of the folder")
    return directory / parts


def _config(folder: Path) -> Fields:
    path = folder / "config.json"
    return Fields(read_json(path), path)


def _optional(path: Path) -> Fields:
    return Fields(read_json(path) if path.exists() else {}, path)


def _pooling(keys: Fields) -> str:
    """Our word for the pooling of a Pooling module."""
    several = isinstance(keys.data.get("pooling_mode"), list)
    modes = keys.array("pooling_mode", str) if several else [keys.text("pooling_mode", "")]
    if modes == [""]:
        modes = [mode for key, mode in _FLAGS.items() if keys.flag(key, False)] or ["mean"]
    if len(modes) != 1:
        raise _Unread(f"several kinds of pooling side by side ({', '.join(modes)}) are not implemented")
    if modes[0] not in _POOLING:
        raise _Unread(f"pooling by {quoted(modes[0])} is not implemented")
    if not keys.flag("include_prompt", True):
        raise _Unread("pooling without the tokens of the prompt (include_prompt false) is not implemented")
    return _POOLING[modes[0]]


def _is_late(directory: Path, kinds: list[str]) -> bool:
    """Whether the folder compares texts token by token: PyLate's, or one with a MultiVectorMask."""
    return "MultiVectorMask" in kinds or _optional(directory / _PROMPTS).data.get("model_type") == "ColBERT"


def read_late(directory: Path) -> LateInteraction | None:
    """How a folder of late interaction reads queries and documents; None for any other folder."""
    if is_colbert(directory):
        return colbert_reads(directory)
    if not (directory / _MODULES).exists():
        return None
    path = directory / _MODULES
    modules = [Fields(entry, path) for entry in read_json_list(path)]
    kinds = [module.text("type").rpartition(".")[2] for module in modules]
    if not _is_late(directory, kinds):
        return None
    prompts = read_prompts(directory).named
    if "MultiVectorMask" not in kinds:
        return pylate_reads(_optional(directory / _PROMPTS), prompts)
    mask = _inside(directory, modules[kinds.index("MultiVectorMask")].text("path", ""), path)
    return reads(_transformer(directory), _config(mask), prompts)


def _dense(layers: list[tuple[Path, Fields]], of: str) -> dict[str, Any]:
    """Our fields of the dense layers, on the vectors ``of`` the text or of its tokens."""
    if not layers:
        return {}
    if len(layers) > len(_DENSE):
        raise _Unread(f"{len(layers)} dense layers are not implemented, only {len(_DENSE)}")
    for _, keys in layers:
        if keys.flag("use_residual", False):
            raise _Unread("a dense layer that its input is added to (use_residual) is not implemented")
        if keys.text("module_input_name", of) != of:
            raise _Unread(f"a dense layer on something else than {of} is not implemented")
    names = {keys.text("activation_function", "Tanh").rpartition(".")[2] for _, keys in layers}
    biases = {keys.flag("bias", True) for _, keys in layers}
    if len(names) > 1 or len(biases) > 1:
        raise _Unread("dense layers of which only one has a bias, or another activation, are not implemented")
    if not names <= _ACTIVATIONS.keys():
        raise _Unread(f"the activation {quoted(names.pop())} of a dense layer is not implemented")
    return {
        "pooled_dense": tuple(keys.whole("out_features", least=1) for _, keys in layers),
        "pooled_bias": biases.pop(),
        "pooled_activation": _ACTIVATIONS[names.pop()],
    }


class _WithDense:
    """The weights of a transformer, and those of the dense layers after it, each in a folder of its own."""

    def __init__(self, main: WeightFiles, folders: tuple[Path, ...]) -> None:
        self.main = main
        self.dense = dict(zip(_DENSE, map(Weights, folders), strict=False))
        self.shapes: Shapes = dict(main.shapes)
        for module, weights in self.dense.items():
            self.shapes |= {f"{module}.{name}": shape for name, shape in weights.shapes.items()}

    @property
    def mapped(self) -> tuple[Mapped, ...]:
        return tuple(file for weights in (self.main, *self.dense.values()) for file in getattr(weights, "mapped", ()))

    def stored(self, name: str) -> Tensor:
        for module, weights in self.dense.items():
            if name.startswith(f"{module}."):
                return weights.stored(name.removeprefix(f"{module}."))
        return self.main.stored(name)

    def takes(self, dtype: torch.dtype) -> int:
        return self.main.takes(dtype) + sum(weights.takes(dtype) for weights in self.dense.values())

    def tensors(self, dtype: torch.dtype, pieces: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
        yield from self.main.tensors(dtype, pieces)
        for module, weights in self.dense.items():
            yield from ((f"{module}.{name}", tensor) for name, tensor in weights.tensors(dtype))


def _transformer(directory: Path) -> Fields:
    """The settings of the module before pooling."""
    paths = [directory / name for name in _TRANSFORMERS]
    return _optional(next((path for path in paths if path.exists()), paths[0]))


def read_cut(directory: Path, context: int) -> int:
    """The number of tokens at which the folder cuts a text, at most the ``context``; 0 without modules.json.

    That is max_seq_length, or else the tokenizer's model_max_length, as in sentence-transformers.
    """
    if not (directory / _MODULES).exists():
        return 0
    longest = _optional(directory / _TOKENIZER).data.get("model_max_length")  # often 10³⁰: none
    most = _transformer(directory).whole("max_seq_length", 0) or longest
    return min(context, most) if isinstance(most, int) and most > 0 else context


def read_pair_template(directory: Path) -> PairTemplate | None:
    """How the folder renders a pair of texts; None where the tokenizer joins them."""
    if not (directory / _MODULES).exists():
        return None
    return pair_template(_transformer(directory), read_prompts(directory).of())


def read_prompts(directory: Path) -> Prompts:
    """What the folder says to put before a text; empty where it says nothing."""
    keys = _optional(directory / _PROMPTS)
    stored = keys.object("prompts")
    prompts = {} if stored is None else {name: stored.text(name, "") for name in stored.data}
    default = keys.data.get("default_prompt_name")
    if default is not None and keys.text("default_prompt_name") not in prompts:
        raise keys.fault(f"default_prompt_name {quoted(str(default))} is none of the prompts")
    return Prompts(prompts, default)


def without_modules(config: ModelConfig) -> ModelConfig:
    """The configuration of the transformer alone."""
    return config.but(**{name: FIELDS[name].default for name in leaves(Pooling)})


def written_modules(config: ModelConfig, state: Mapping[str, Tensor], prompts: Prompts) -> dict[str, bytes]:
    """The files that say how a text becomes one vector, by their paths in the folder; empty without pooling."""
    if config.pooling == "none":
        return {}
    if config.pooling == TOKENS:
        raise UsageError("a model of late interaction is not written", "copy its folder")
    kind = next(theirs for theirs, ours in _POOLING.items() if ours == config.pooling)
    flags = {key: mode == kind for key, mode in _FLAGS.items()}
    files = {"1_Pooling/config.json": to_json({"word_embedding_dimension": config.d_model, **flags})}
    folders, width = ["", "1_Pooling"], config.d_model
    activation = next(theirs for theirs, ours in _ACTIVATIONS.items() if ours == config.pooled_activation)
    for module, out in zip(_DENSE, config.pooled_dense, strict=False):
        folder = f"{len(folders)}_Dense"
        place = "linear" if activation == "Identity" else "activation"
        layer = {"in_features": width, "out_features": out, "bias": config.pooled_bias}
        files[f"{folder}/config.json"] = to_json(
            {**layer, "activation_function": f"torch.nn.modules.{place}.{activation}"}
        )
        own = {f"linear.{leaf}": state[f"{module}.{leaf}"] for leaf in ("weight", "bias")[: 1 + config.pooled_bias]}
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in own.items()}
        files[f"{folder}/model.safetensors"] = save_tensors(tensors, metadata={"format": "pt"})
        folders, width = [*folders, folder], out
    folders += [f"{len(folders)}_Normalize"] * config.unit_embedding
    kinds = [folder.partition("_")[2] or "Transformer" for folder in folders]
    modules = [
        {"idx": number, "name": str(number), "path": folder, "type": f"sentence_transformers.models.{kind}"}
        for number, (folder, kind) in enumerate(zip(folders, kinds, strict=True))
    ]
    said = {"prompts": dict(prompts.named), "default_prompt_name": prompts.default}
    return {**files, _PROMPTS: to_json(said), _MODULES: to_json(modules)}
