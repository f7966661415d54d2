"""Where a sparse coder reads and writes: a step of one layer with one vector a token.

Shapes: T tokens of a text, N own tokens of several windows, C width of the step.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from tinytf.bulk.passes import Passes, targets_of
from tinytf.bulk.windows import BATCH, Window
from tinytf.cause.interventions.edits import require_edit
from tinytf.config import ModelConfig
from tinytf.errors import AddressError, UsageError
from tinytf.features.coder import SparseCoder
from tinytf.model.transformer import Transformer
from tinytf.steps.operations.norm import Norm
from tinytf.steps.table import StepTable, table_of
from tinytf.text.tokenizer import Encoding
from tinytf.trace.address import Address, parse_tensor
from tinytf.trace.lens_names import known_names
from tinytf.trace.trace import Trace

_HEADS = re.compile(r"(?:blocks\.|L)(\d+)\.(?:attn\.)?hook_z")
_NORMALISED = "normalized"


@dataclass(frozen=True)
class Place:
    """A step of one layer, by its ``address``; before gain and bias where the address is TransformerLens' of that."""

    address: Address
    layer: int

    def __str__(self) -> str:
        return str(self.address)

    @property
    def name(self) -> str:
        """The short name of the step."""
        assert self.address.step is not None
        return self.address.step.name

    @property
    def before_gain(self) -> bool:
        return self.address.lens is not None

    def width(self, config: ModelConfig) -> int:
        assert self.address.step is not None
        return config.at(self.layer).sizes[self.address.step.axes[-1]]

    def value(self, trace: Trace) -> Tensor:
        """The value in a trace, (T, C)."""
        return trace[self.address]

    def source(self, config: ModelConfig) -> str:
        """The address of the step that the value is read from: the input of the norm where it is before the gain."""
        name, layer = self.source_key(config)
        return table_of(config).at(name, layer).full_name(layer) if self.before_gain else str(self)

    def source_key(self, config: ModelConfig) -> tuple[str, int | None]:
        """The name and layer of that step."""
        table = table_of(config)
        if not self.before_gain:
            return self.name, self.layer
        return table.sources(table.at(self.name, self.layer), self.layer)[0]

    def of_source(self, rows: Tensor, config: ModelConfig) -> Tensor:
        """The value (…, C) from that of its ``source``."""
        if not self.before_gain:
            return rows
        norm = table_of(config).at(self.name, self.layer).operation
        assert isinstance(norm, Norm)
        return norm.normed(rows)[0]


def place_at(text: str, table: StepTable, *, written: bool = False) -> Place:
    """The step that an address or a name of TransformerLens names; ``hook_z`` is ``concat``.

    Raises AddressError for anything but one vector a token in one layer, and for a step that is to be ``written`` and
    cannot be edited.
    """
    match = _HEADS.fullmatch(text)
    address = parse_tensor(f"L{match[1]}.concat" if match else text, table)
    if address.lens is not None and address.lens.part != _NORMALISED:
        address = address.plain(table)
    if address.step is None or address.cell or address.layers is None or len(address.layers) != 1:
        raise AddressError(f"{text!r} is not one step of one layer", "such as L2.out, L2.ffn or L2.attn")
    if len(address.step.axes) != 2 or address.step.axes[0] != "token":
        raise AddressError(f"{text!r} is not one vector a token", f"its axes are {', '.join(address.step.axes)}")
    if written:
        address.plain(table)  # raises for one before gain and bias
        require_edit(address, table)
    return Place(address, address.layers[0])


def places_of(coder: SparseCoder, table: StepTable, at: str | None, into: str | None) -> tuple[Place, Place]:
    """Where the coder reads and writes, by ``at`` and ``into`` or by its own names.

    Raises UsageError if its file names none, if an autoencoder is to write elsewhere, and for another width;
    AddressError as ``place_at`` does.
    """
    if into is not None and not coder.is_transcoder:
        raise UsageError("an autoencoder writes the step that it reads, so it takes no --into", "leave it out")
    read = at or coder.reads
    if not read:
        raise UsageError(f"the file of {coder.name} does not name the step that it reads", "name it, as --at L2.out")
    write = into or (read if not coder.is_transcoder else coder.writes)
    if not write:
        raise UsageError(f"the file of {coder.name} does not name the step that it writes", "name it: --into L2.ffn")
    places = place_at(read, table), place_at(write, table, written=True)
    for place, does, width in zip(places, ("reads", "writes"), (coder.width, coder.output_width), strict=True):
        if width != (own := place.width(table.config)):
            raise UsageError(
                f"{coder.name} {does} vectors of {width:,} numbers, and {place} of this model has {own:,}",
                "it belongs to another model, or to another step: --at names one",
            )
    return places


def lens_name(place: Place, table: StepTable) -> str:
    """The name of a place in TransformerLens, which SAELens writes; our own where there is none."""
    if place.name == "concat":
        return f"blocks.{place.layer}.attn.hook_z"
    for name, lens in known_names(table, place.layer).items():
        if not isinstance(lens, str) and not lens.part:
            full = f"blocks.{place.layer}.{name}"
            if str(parse_tensor(full, table).plain(table)) == str(place):
                return full
    return str(place)


def own_positions(encoding: Encoding) -> list[int]:
    """The positions of a text's own tokens, without those that the tokenizer added; of all, if there are no others."""
    own = [index for index, token in enumerate(encoding.tokens) if not token.is_added]
    return own or list(range(len(encoding.tokens)))


def own_values(model: Transformer, windows: Iterable[Window], place: Place) -> Iterator[Tensor]:
    """The values (N, C) of the texts' own tokens, some windows at a time.

    Raises TinytfError for values that are not finite.
    """
    remaining, device = iter(windows), next(model.parameters()).device
    passes = Passes(model, targets_of([str(place)], model.config), torch.float32, every_token=True)
    while batch := list(islice(remaining, BATCH)):
        with passes:  # which takes no gradient, unlike what happens between two batches
            rows = passes(batch)[str(place)]
        yield rows.flatten(1).to(device)
