"""Transcoders of every layer: each reads the input of a feed-forward and writes its output, or those above it too.

Shapes: T tokens, C width of the step that is read, O of the one that is written, F features, L layers.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tinytf.errors import CheckpointError, UsageError
from tinytf.features.coder import SparseCoder
from tinytf.features.layouts import (
    LAYER_FILE,
    LAYOUTS,
    hook_name,
    made,
    open_sae,
    require_no_crosscoder,
    safe,
    set_activation,
    set_config,
    set_steps,
    tensors_in,
)
from tinytf.features.place import Place, places_of
from tinytf.kept import TRANSCODERS
from tinytf.nearest import near_path
from tinytf.outputs import write_output
from tinytf.short_repr import ShortRepr
from tinytf.steps.table import StepTable
from tinytf.tables import Array
from tinytf.tensor_file import safetensors

_KINDS = {"transcoder_set": False, "cross_layer_transcoder": True}
"""The kinds of circuit-tracer's configuration, and whether features write to layers above."""


@dataclass(frozen=True, eq=False)
class TranscoderSet(ShortRepr):
    """Transcoders of the feed-forwards of a model, one a layer.

    ``coders`` are those of single layers. Of a cross-layer transcoder (Ameisen et al. 2025), ``above`` holds for each
    coder the directions that its features write in the layers above it, (F, n, O).
    """

    name: str
    layout: str
    coders: tuple[SparseCoder, ...]
    above: tuple[Tensor, ...] = ()

    @property
    def crosses_layers(self) -> bool:
        return bool(self.above)

    @property
    def trained_on(self) -> str:
        return self.coders[0].trained_on

    def __repr__(self) -> str:
        kind = "cross-layer transcoders" if self.crosses_layers else "transcoders"
        return f"TranscoderSet({self.name!r}, {len(self.coders)} {kind}, {self.n_features:,} features each)"

    @property
    def n_features(self) -> int:
        """The features of a layer; the most, where layers differ."""
        return max(coder.n_features for coder in self.coders)

    def to_dict(self) -> dict[str, Any]:
        """A description as plain JSON data."""
        names = ("name", "layout", "crosses_layers", "n_features", "trained_on")
        return {**{name: getattr(self, name) for name in names}, "coders": [coder.to_dict() for coder in self.coders]}

    def directions(self, number: int) -> Tensor:
        """What an activation of 1 of each feature of a coder adds, in its own layer and those above: (F, 1 + n, O)."""
        own = self.coders[number].decoder[:, None]
        return torch.cat((own, self.above[number]), dim=1) if self.above else own

    def to(self, device: torch.device) -> "TranscoderSet":
        """This set with its tensors on another device."""
        coders = tuple(coder.to(device) for coder in self.coders)
        return replace(self, coders=coders, above=tuple(tensor.to(device) for tensor in self.above))

    def write_into(self, folder: Path, model: str) -> None:
        """Write the set into a folder that is there, as circuit-tracer caches one. Raises OSError."""
        hooks = (("feature_input_hook", self.coders[0].reads), ("feature_output_hook", self.coders[0].writes))
        words = {"model_name": model, "model_kind": next(k for k, v in _KINDS.items() if v is self.crosses_layers)}
        words |= {name: hook_name(step) for name, step in hooks}
        for number, coder in enumerate(self.coders):
            assert coder.threshold is not None
            tensors = {"W_enc": coder.encoder.T, "b_enc": coder.bias, "b_dec": coder.output_bias}
            directions = self.directions(number)
            if self.crosses_layers:
                tensors["threshold"] = coder.threshold
                files = {f"W_enc_{number}": tensors, f"W_dec_{number}": {"W_dec": directions}}
                files = {name: {f"{key}_{number}": t for key, t in of.items()} for name, of in files.items()}
            else:
                files = {f"layer_{number}": {**tensors, "W_dec": directions[:, 0],
                                             "activation_function.threshold": coder.threshold}}  # fmt: skip
            for name, of_file in files.items():
                arrays = [Array.of(key, _axes(tensor), tensor.float().contiguous()) for key, tensor in of_file.items()]
                write_output(folder / f"{name}.safetensors", safetensors(arrays, {"format": "pt"}))
        lines = "".join(f"{key}: {_quoted(word)}\n" for key, word in words.items())
        write_output(folder / TRANSCODERS, lines.encode("utf-8"))  # last: it marks a folder that is whole

    def places(self, table: StepTable) -> dict[int, tuple[Place, Place]]:
        """Where the coder of each layer reads and writes in a model: by the layer, the number of the coder's place.

        Raises UsageError for a coder of another width, for two of one layer, for one that reads what it writes or is
        not a transcoder, and for one that does more than add directions; AddressError as ``place_at`` does.
        """
        places: dict[int, tuple[Place, Place]] = {}
        for coder in self.coders:
            if not coder.is_transcoder or coder.normalisation != "none":
                what = (
                    f"normalises what it reads ({coder.normalisation})" if coder.is_transcoder else "is an autoencoder"
                )
                raise UsageError(f"{coder.name} {what}, and a feature circuit needs transcoders", "train-sae --into")
            read, write = places_of(coder, table, None, None)
            if read.layer != write.layer or write.layer in places:
                raise UsageError(f"{coder.name} reads {read} and writes {write}", "there is one transcoder a layer")
            places[write.layer] = read, write
        layers = list(places)
        if layers != sorted(layers) or (self.crosses_layers and layers != list(range(table.config.n_layers))):
            raise UsageError(
                f"{self.name} has transcoders of layers {layers}", "they are in order, and across layers, all"
            )
        return places


def _quoted(word: str) -> str:
    return '"' + re.sub(r'[\\"\n]', "", word) + '"'


def _axes(tensor: Tensor) -> list[str]:
    return ["feature", "layer", "width"][: tensor.dim()] if tensor.dim() != 2 else ["feature", "width"]


def open_transcoders(path: str | Path) -> TranscoderSet:
    """Open the transcoders in a folder: of circuit-tracer, or folders each with one that ``open_sae`` opens.

    Raises CheckpointError for a folder without any, and like ``open_sae``.
    """
    path = Path(path)
    if not path.is_dir():
        require_no_crosscoder(path)
        message = (
            f"{path} is one file, and a set of transcoders is a folder" if path.exists() else f"there is no {path}"
        )
        raise CheckpointError(message, near_path(path) or "tinytf train-sae --into 'L*.ffn' --out DIR makes one")
    if (path / TRANSCODERS).is_file():
        return _circuit_tracer(path)
    folders = sorted({file.parent for name in LAYOUTS for file in path.glob(f"*/{name}")})
    if not folders:
        raise CheckpointError(f"{path} holds no transcoders", "it has config.yaml and layer_0.safetensors, or folders")
    coders = sorted((open_sae(folder) for folder in folders), key=lambda coder: _layer_of(coder.writes))
    return TranscoderSet(safe(path.name), coders[0].layout, tuple(coders))


def _layer_of(step: str) -> int:
    match = re.search(r"\d+", step)
    return int(match[0]) if match else -1


def _circuit_tracer(path: Path) -> TranscoderSet:
    config = set_config(path)
    kind = config["model_kind"]
    if kind not in _KINDS:
        raise CheckpointError(f"{path}: the kind {kind!r} is not known", f"known: {', '.join(_KINDS)}")
    form = re.compile(r"W_enc_(\d+)\.safetensors") if _KINDS[kind] else LAYER_FILE
    files = {int(match[1]): file for file in path.iterdir() if (match := form.fullmatch(file.name))}
    if not files or (_KINDS[kind] and sorted(files) != list(range(len(files)))):
        raise CheckpointError(f"{path} lacks the weights of layers, such as {form.pattern}", "download them all")
    if not _KINDS[kind]:
        return TranscoderSet(safe(path.name), "circuit-tracer", tuple(open_sae(files[n]) for n in sorted(files)))
    layers = [_layer_across(path, config, number) for number in sorted(files)]
    for number, (_, above) in enumerate(layers):
        if above.shape[1] != (expected := len(layers) - number - 1):
            raise CheckpointError(f"{path}: layer {number} writes to {above.shape[1]} layers above, not {expected}")
    coders, directions = tuple(coder for coder, _ in layers), tuple(above for _, above in layers)
    return TranscoderSet(safe(path.name), "circuit-tracer", coders, directions)


def _layer_across(path: Path, config: Mapping[str, str], number: int) -> tuple[SparseCoder, Tensor]:
    """A layer of a cross-layer transcoder, and what its features write in the layers above."""
    tensors = dict(_unnumbered(path / f"W_enc_{number}.safetensors", number))
    tensors |= _unnumbered(path / f"W_dec_{number}.safetensors", number)
    directions = tensors.get("W_dec")
    if directions is None or directions.dim() != 3:
        raise CheckpointError(f"{path}: W_dec_{number} is missing, or not features × layers × width")
    if "W_enc" in tensors:
        tensors["W_enc"] = tensors["W_enc"].T.contiguous()
    if "W_skip" in tensors:
        tensors["W_skip"] = tensors["W_skip"].T.contiguous()  # circuit-tracer multiplies from the left here
    tensors["W_dec"] = directions[:, 0].contiguous()
    coder = made(path, "circuit-tracer", set_activation({}, tensors), tensors, 0, True, False, [])
    reads, writes = set_steps(config, number)
    name, model = f"{safe(path.name)} layer {number}", safe(config.get("model_name", ""))
    return replace(coder, name=name, reads=reads, writes=writes, trained_on=model), directions[:, 1:].contiguous()


def _unnumbered(file: Path, number: int) -> Iterator[tuple[str, Tensor]]:
    if not file.is_file():
        raise CheckpointError(f"there is no {file.name} in {file.parent}", "download it too")
    for name, tensor in tensors_in(file).items():
        yield name.removesuffix(f"_{number}"), tensor
