"""A trained crosscoder between two models, opened from the file that ``tinytf train-sae --versus`` writes.

Shapes: T tokens, C width of the step, F features; the first of 2 models is the one that the second is compared with.
"""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from tinytf.errors import CheckpointError, UsageError
from tinytf.features.coder import SparseCoder
from tinytf.features.layouts import crosscoder_metadata, safe, tensors_in
from tinytf.features.place import place_at
from tinytf.nearest import near_path
from tinytf.short_repr import ShortRepr
from tinytf.steps.table import table_of
from tinytf.text_model import TextModel
from tinytf.trace.trace import Trace

_SHAPES = {"encoder": "2CF", "bias": "F", "decoder": "F2C", "output_bias": "2C"}


@dataclass(frozen=True, eq=False)
class Crosscoder(ShortRepr):
    """A crosscoder of the step ``reads`` of two models, named ``versus`` (the first) and ``trained_on``.

    Its activations are f = ReLU(Σ_m (a^m − output_bias^m) · encoder^m + bias), of both models' values a^m (T, C).
    ``encoder`` is (2, C, F), ``bias`` (F,), ``decoder`` (F, 2, C) and ``output_bias`` (2, C).
    """

    name: str
    encoder: Tensor
    bias: Tensor
    decoder: Tensor
    output_bias: Tensor
    reads: str = ""
    versus: str = ""
    trained_on: str = ""

    @property
    def n_features(self) -> int:
        return self.encoder.shape[2]

    def __repr__(self) -> str:
        return f"Crosscoder({self.name!r}, {self.reads} of 2 models, {self.n_features:,} features)"

    def beside(self, versus: TextModel, trace: Trace, *, at: str | None = None) -> SparseCoder:
        """The coder of the second model's step in the text of its ``trace``, with the first model's values put in.

        ``versus`` is the first model; the trace gives only the text. ``at`` is the step, by default the one that the
        file names. The coder fits this text alone: its bias (T, F) holds the first model's part of each activation.

        Raises UsageError for a first model of another vocabulary or width of the step, and where no step is named;
        AddressError for a step without one vector a token.
        """
        step = at or self.reads
        if not step:
            raise UsageError(f"the file of {self.name} does not name its step", "name it, as --at L2.out")
        place, width = place_at(step, table_of(versus.config)), self.encoder.shape[1]
        if (own := place.width(versus.config)) != width:
            raise UsageError(
                f"{self.name} reads vectors of {width:,} numbers, and {place} of {versus.name} has {own:,}",
                "take the model that it was trained beside",
            )
        value = place.value(versus.trace(ids=trace.encoding.ids)).to(self.encoder)
        bias = (value - self.output_bias[0]) @ self.encoder[0] + self.bias
        return SparseCoder(
            self.name, "tinytf crosscoder", "standard", self.encoder[1], bias, self.decoder[:, 1].contiguous(),
            self.output_bias[1], reads=step, writes=step, trained_on=self.trained_on,
            notes=(f"active by the values of {safe(versus.name)} too; directions and fidelity are this model's",),
        )  # fmt: skip


def open_crosscoder(path: str | Path) -> Crosscoder:
    """Open the file of tensors that ``tinytf train-sae --versus MODEL -o FILE.safetensors`` writes.

    Raises CheckpointError for a file that is missing, damaged or no crosscoder, for a wrong shape, and for numbers that
    are not finite.
    """
    path = Path(path)
    metadata, hint = crosscoder_metadata(path), "tinytf train-sae --versus MODEL -o FILE.safetensors makes one"
    if not path.exists():
        raise CheckpointError(f"there is no {path}", near_path(path) or hint)
    if metadata is None:
        raise CheckpointError(f"{path} is no crosscoder", hint)
    tensors, sizes = tensors_in(path), dict[str, int]({"2": 2})
    for name, axes in _SHAPES.items():
        shape = tuple(tensors[name].shape) if name in tensors else ()
        if len(shape) != len(axes) or any(sizes.setdefault(axis, n) != n for axis, n in zip(axes, shape, strict=True)):
            found = " × ".join(map(str, shape)) or "missing"
            raise CheckpointError(f"{path}: {name} is {found}, and does not fit the others", "write it again")
    model = metadata.get("model")
    return Crosscoder(
        safe(path.name),
        tensors["encoder"],
        tensors["bias"],
        tensors["decoder"],
        tensors["output_bias"],
        reads=safe(str(metadata.get("at") or "")),
        versus=safe(str(metadata.get("versus") or "")),
        trained_on=safe(str(model.get("name") or "")) if isinstance(model, dict) else "",
    )
