"""One cell of a trace: the number at an address, and the cells of the steps that it was computed from."""

from dataclasses import dataclass

from torch import Tensor

from tinytf.errors import AddressError
from tinytf.parts.row import Step
from tinytf.text.words import is_selection
from tinytf.trace.address import Address
from tinytf.trace.site import Site
from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class Cell:
    """One number of ``step``, at ``index``; ``head`` is its query head if the step has heads.

    ``stack`` is ``enc.`` for a step of the stack that the text's own one reads.
    """

    trace: Trace
    step: Step
    layer: int | None
    head: int | None
    index: tuple[int, ...]
    stack: str = ""

    def __str__(self) -> str:
        return self.name()

    def name(self, n_words: int = 2) -> str:
        """The canonical address with its stack."""
        return f"{self.stack}{self.address(n_words)}"

    def address(self, n_words: int = 2) -> Address:
        """The canonical address, by numbers; with fewer words ``n_words`` than axes, the address of the row."""
        layers = None if self.layer is None else (self.layer,)
        heads = None if self.head is None else (self.head,)
        return Address(self.step, layers, heads, tuple(map(str, self.index[:n_words])))

    @property
    def value(self) -> float:
        return float(self.trace[self.address()])

    @property
    def site(self) -> Site:
        """The step as a whole."""
        return Site(self.trace, self.step, self.layer)

    def token(self, position: int) -> str:
        """The printable form of the token at a position."""
        crosses = self.step.of_source or any(step.of_source for step in self.site.source_steps)
        return self.trace.tokens_on("source" if crosses else "token")[position].shown

    def source(self, number: int, *index: int, head: int | None = None) -> "Cell":
        """A cell of the step's input ``number``, of this head (or of ``head``) if that step has heads."""
        name, layer = self.site.sources[number]
        step = self.trace.steps.at(name, layer)
        source_head = self.head if head is None else head
        return Cell(self.trace, step, layer, source_head if step.is_split else None, index, self.stack)

    def read(self) -> "Cell | None":
        """The cell of the other stack's last hidden states with this index; None where its text was not recorded."""
        if (trace := self.trace.source) is None:
            return None
        step = trace.steps.by_name[trace.steps.final]
        return Cell(trace, step, trace.config.n_layers - 1 if step.in_layer else None, None, self.index, "enc.")

    def row(self) -> Tensor:
        """The row of this cell, in float64."""
        return self.trace[self.address(len(self.step.axes[-2:]) - 1)].cpu().double()

    def column(self) -> Tensor:
        """The column of this cell, in float64."""
        return self.trace[self.address(0)][:, self.index[1]].cpu().double()


def find_cell(trace: Trace, address: str | Address) -> tuple[Cell, str]:
    """The one cell that an address names, and a note about the address.

    The second word of a cell of ``logits`` or ``probs`` may be a token (``logits[sat,·on]``).
    Raises AddressError for a step without numbers, and for anything but one cell.
    """
    where = trace.address(address) if isinstance(address, str) else address
    step = where.step
    if step is not None and not step.is_tensor:
        reason = "it is read off probs" if step.name == "next" else "it is looked up in the vocabulary"
        raise AddressError(f"{step.name} has no arithmetic: {reason}", "explain a number, such as probs[0,0]")
    if step is None:
        raise AddressError(
            f"{where} names no step", f"for example {_example(trace, where, trace.steps.by_name['scores'])}"
        )
    problem = _why_not_one_cell(where, step)
    if problem:
        message = f"{where} {problem}, and one number is explained at a time"
        raise AddressError(message, f"for example {_example(trace, where, step)}")
    axes = step.axes[-2:]
    layer = None if where.layers is None else where.layers[0]
    sizes = _sizes(trace, step, layer)
    index = tuple(trace.index(word, axis, size) for word, axis, size in zip(where.cell, axes, sizes, strict=True))
    return Cell(
        trace, trace.steps.at(step.name, layer), layer, where.heads[0] if where.heads else None, index
    ), where.note


def _why_not_one_cell(where: Address, step: Step) -> str:
    """Why an address is not one cell; empty if it is."""
    for numbers, noun in ((where.layers, "layer"), (where.heads, "head")):
        if numbers is not None and len(numbers) > 1:
            return f"is of {len(numbers)} {noun}s"
    if step.is_split and where.heads is None:
        return f"names no {'expert' if step.of_experts else 'head'}"
    if len(where.cell) < len(step.axes[-2:]):
        return "is a row" if where.cell else "is all of a step"
    if any(map(is_selection, where.cell)):
        return "is several cells"
    return ""


def _example(trace: Trace, where: Address, step: Step) -> str:
    """The first cell of those that an address names."""
    layers = None if where.layers is None else where.layers[:1]
    heads = (where.heads or (0,))[:1] if step.is_split else None
    axes, places = step.axes[-2:], trace.places(where)
    words = zip(axes, (*where.cell, *[""] * len(axes)), strict=False)
    cell = tuple(word if word and not is_selection(word) else str(places.get(axis, (0,))[0]) for axis, word in words)
    return str(Address(step, layers, heads, cell))


def _sizes(trace: Trace, step: Step, layer: int | None) -> tuple[int, ...]:
    sizes = {**trace.lengths, **trace.config.at(layer).sizes}
    return tuple(sizes[axis] for axis in step.axes[-2:])
