"""A sparse coder: an autoencoder or transcoder that writes a step as a sum of a few of many directions.

Shapes: C width of the step that is read, O of the step that is written (for an autoencoder the same step), F features.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.files import to_json
from tinytf.kept import SAE_CONFIG, SAE_LENS
from tinytf.outputs import filling, write_output
from tinytf.short_repr import ShortRepr
from tinytf.tables import Array
from tinytf.tensor_file import safetensors

_EPS = 1e-5  # of the layer norm that SAELens puts before an autoencoder
CONFIG, WEIGHTS = SAE_CONFIG, SAE_LENS
"""The files of SAELens' layout."""


@dataclass(frozen=True, eq=False)
class SparseCoder(ShortRepr):
    """An opened sparse autoencoder, or a transcoder, which reads one step and writes another.

    ``architecture`` names its activation. ``reads`` and ``writes`` are the names of its steps as its file has them;
    empty where it names none. ``trained_on`` is the model that it names, ``notes`` what was assumed.

    ``encoder`` is (C, F) and ``decoder`` (F, O): a row is the direction that an activation of 1 adds. ``bias`` and
    ``threshold`` are (F,), ``output_bias`` (O,). Of a gated encoder, ``bias`` belongs to the gate, and the magnitude is
    ReLU(e^scale · pre + magnitude_bias). ``skip`` (O, C) is added to a transcoder's output. Scales of a file are folded
    in, so that activations are those of its own program.
    """

    name: str
    layout: str
    architecture: str
    encoder: Tensor
    bias: Tensor
    decoder: Tensor
    output_bias: Tensor
    reads: str = ""
    writes: str = ""
    k: int = 0
    threshold: Tensor | None = None
    magnitude_scale: Tensor | None = None
    magnitude_bias: Tensor | None = None
    skip: Tensor | None = None
    subtracts_bias: bool = True
    normalisation: str = "none"
    is_transcoder: bool = False
    trained_on: str = ""
    notes: tuple[str, ...] = ()

    @property
    def n_features(self) -> int:
        return self.encoder.shape[1]

    @property
    def width(self) -> int:
        """The width of the step that is read."""
        return self.encoder.shape[0]

    @property
    def output_width(self) -> int:
        """The width of the step that is written."""
        return self.decoder.shape[1]

    def __repr__(self) -> str:
        kind = "transcoder" if self.is_transcoder else "autoencoder"
        return f"SparseCoder({self.name!r}, {self.architecture} {kind}, {self.width} → {self.n_features:,} features)"

    def to_dict(self) -> dict[str, Any]:
        """A description as plain JSON data."""
        names = ("name", "layout", "architecture", "n_features", "width", "output_width", "k", "reads", "writes",
                 "is_transcoder", "normalisation", "trained_on")  # fmt: skip
        return {**{name: getattr(self, name) for name in names}, "notes": list(self.notes)}

    def encode(self, x: Tensor) -> Tensor:
        """The activations (…, F) of the features on values (…, C) of the step that is read."""
        shift, scale = self._normaliser(x.to(self.encoder))
        x = (x.to(self.encoder) - shift) / scale
        centred = x - self.output_bias if self.subtracts_bias else x
        return ACTIVATIONS[self.architecture](self, centred @ self.encoder)

    @property
    def affine(self) -> tuple[Tensor, Tensor]:
        """The matrix (C, F) and bias (F,) that give the activation of each feature where it is active.

        Of what is read, unless that is normalised first.
        """
        if self.magnitude_scale is not None and self.magnitude_bias is not None:
            return self.encoder * self.magnitude_scale.exp(), self.magnitude_bias
        return self.encoder, self.bias

    def decode(self, activations: Tensor, x: Tensor | None = None) -> Tensor:
        """The reconstruction (…, O) of the step that is written.

        ``x`` is the value that was read: a normalised autoencoder and a skip connection need it.
        """
        output = activations.to(self.decoder) @ self.decoder + self.output_bias
        if self.skip is not None:
            output = output + self._required(x) @ self.skip.T
        if self.normalisation == "none" or self.is_transcoder:
            return output
        x = self._required(x)
        shift, _ = self._normaliser(x)
        return output * self.output_scale(x) + shift

    def reconstruct(self, x: Tensor) -> Tensor:
        """``decode`` of ``encode``."""
        return self.decode(self.encode(x), x)

    def output_scale(self, x: Tensor) -> Tensor:
        """By how much a direction is multiplied in the output of each token, (…, 1)."""
        if self.is_transcoder:
            return x.new_ones(*x.shape[:-1], 1)
        scale = self._normaliser(x)[1]
        return scale - _EPS if self.normalisation == "layer_norm" else scale  # SAELens adds it on the way in alone

    def to(self, device: torch.device) -> "SparseCoder":
        """This coder with its tensors on another device."""
        moved = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return SparseCoder(**{**vars(self), **moved})

    def save(self, folder: Path | str, metadata: Mapping[str, Any] | None = None) -> None:
        """Write a top-k autoencoder to a new or empty folder, in the layout of SAELens 6.

        Raises UsageError for a folder with files, TinytfError if it cannot be written.
        """
        with filling(Path(folder)):
            self.write_into(Path(folder), metadata or {})

    def write_into(self, folder: Path, metadata: Mapping[str, Any]) -> None:
        """Like ``save``, into a folder that is there. Raises OSError."""
        config = {
            "architecture": "topk", "d_in": self.width, "d_sae": self.n_features, "k": self.k, "dtype": "float32",
            "device": "cpu", "apply_b_dec_to_input": True, "normalize_activations": "none",
            "reshape_activations": "hook_z" if self.reads.endswith("hook_z") else "none",
            "rescale_acts_by_decoder_norm": False,
            "metadata": {"sae_lens_version": "6.0.0", "hook_name": self.reads, **metadata},
        }  # fmt: skip
        write_output(folder / CONFIG, to_json(config))
        write_output(folder / WEIGHTS, safetensors(self.arrays(), {"format": "pt"}))

    def arrays(self) -> list[Array]:
        """The four tensors of an autoencoder under SAELens' names."""
        tensors = {"W_enc": self.encoder, "b_enc": self.bias, "W_dec": self.decoder, "b_dec": self.output_bias}
        axes = {"W_enc": ["width", "feature"], "b_enc": ["feature"], "W_dec": ["feature", "width"], "b_dec": ["width"]}
        return [Array.of(name, axes[name], tensor.float()) for name, tensor in tensors.items()]

    def _normaliser(self, x: Tensor) -> tuple[Tensor | float, Tensor]:
        """What is subtracted from each token before encoding, and what it is then divided by, (…, 1)."""
        if self.normalisation == "layer_norm":
            return x.mean(-1, keepdim=True), x.std(-1, keepdim=True) + _EPS
        if self.normalisation == "constant_norm_rescale":
            return 0.0, x.norm(dim=-1, keepdim=True) / x.shape[-1] ** 0.5
        return 0.0, x.new_ones(*x.shape[:-1], 1)

    def _required(self, x: Tensor | None) -> Tensor:
        if x is None:
            raise UsageError("this coder decodes with the value that was read", "call decode(activations, x)")
        return x.to(self.decoder)


def _relu(coder: SparseCoder, projected: Tensor) -> Tensor:
    return (projected + coder.bias).relu()


def _jump(coder: SparseCoder, projected: Tensor) -> Tensor:
    """z · 1[z > threshold] of positive z (Rajamanoharan et al. 2024b)."""
    assert coder.threshold is not None
    pre = projected + coder.bias
    return pre.relu() * (pre > coder.threshold)


def _top(coder: SparseCoder, projected: Tensor) -> Tensor:
    """The k largest, if positive (Gao et al. 2024)."""
    values, indices = (projected + coder.bias).topk(min(coder.k, coder.n_features), sorted=False)
    return torch.zeros_like(projected).scatter_(-1, indices, values.relu())


def _gated(coder: SparseCoder, projected: Tensor) -> Tensor:
    """A gate and a magnitude that share their directions (Rajamanoharan et al. 2024a)."""
    assert coder.magnitude_scale is not None
    assert coder.magnitude_bias is not None
    magnitude = (projected * coder.magnitude_scale.exp() + coder.magnitude_bias).relu()
    return magnitude * (projected + coder.bias > 0)


ACTIVATIONS: Mapping[str, Callable[[SparseCoder, Tensor], Tensor]] = {
    "standard": _relu, "gated": _gated, "jumprelu": _jump, "topk": _top,
    "batchtopk": _jump,  # with the threshold that training found (Bussmann et al. 2024)
}  # fmt: skip
