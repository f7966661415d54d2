"""Where a forward pass can be changed: the output of a head, of attention, of a feed-forward, the residual stream."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tinytf.errors import AddressError
from tinytf.steps.table import StepTable
from tinytf.trace.address import parse_address
from tinytf.trace.trace import Trace

_EXAMPLES = "a head is L3H5, a part of a layer L3.attn or L3.ffn, both of them L3, the residual stream L3.in or L3.out"


@dataclass(frozen=True)
class Site:
    """One step of one layer: ``heads`` of one ``head``, ``attn``, ``ffn``, ``in``, or the block's output, ``out``."""

    step: str
    layer: int
    head: int | None = None

    def __str__(self) -> str:
        return f"L{self.layer}.{self.step}" if self.head is None else f"L{self.layer}H{self.head}"

    def value(self, trace: Trace) -> Tensor:
        """What a trace has there: (T, D) of a head, else (T, C)."""
        if self.head is not None:
            return trace.step("head_out", self.layer, (self.head,))[0]
        return trace.step(trace.steps.synonym(self.step) or self.step, self.layer)


def parse_sites(text: str, table: StepTable) -> tuple[Site, ...]:
    """The sites of an address, of several where it is a set: ``L3`` is both contributions of a layer.

    Raises AddressError for what is no address of this model, and for a step that cannot be exchanged.
    """
    where = parse_address(text, table)
    name = None if where.step is None else where.step.name
    if where.cell:
        raise AddressError(f"{text!r} is a cell, and a step is exchanged whole", "name the step alone, such as L0.attn")
    layers = where.layers or ()
    if name == "head_out" or (name is None and where.heads is not None):
        heads = range(table.config.n_heads) if where.heads is None else where.heads
        return tuple(Site("head_out", layer, head) for layer in layers for head in heads)
    if name is None:
        return tuple(Site(step, layer) for layer in layers for step in ("attn", "ffn"))
    if name == table.output:
        name = "out"
    if name not in ("attn", "ffn", "in", "out"):
        raise AddressError(f"{text!r} is no step that can be exchanged", _EXAMPLES)
    return tuple(Site(name, layer) for layer in layers)


def sites_of(addresses: Sequence[str], table: StepTable) -> tuple[Site, ...]:
    """The sites of several addresses, each once, in the order in which the forward pass comes to them."""
    found = dict.fromkeys(site for address in addresses for site in parse_sites(address, table))
    order = ("in", "head_out", "attn", "ffn", "out")
    return tuple(sorted(found, key=lambda site: (site.layer, order.index(site.step), site.head or 0)))
