"""Blocks beside the stream: what they compute of it and of the embeddings, the layer above reads (Zamba, 2024)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinytf.errors import ConfigError
from tinytf.parts.norm import beside, make_norm
from tinytf.parts.part import COUNT, Part, choice, leaf, listed
from tinytf.parts.recurrence import project
from tinytf.parts.row import HEADS, KV, RESIDUAL, VALUES, WIDE, Config, Predicate, Step

if TYPE_CHECKING:
    from types import ModuleType


@dataclass(frozen=True, kw_only=True)
class Memory(Part):
    """A layer that ``gives`` adds nothing to the stream; the layer above ``takes`` what it computes.

    Its attention reads the stream and the embeddings side by side, its feed-forward what attention gives. A matrix of
    the layer's own projects the result, and the layer above adds this to what its mixer reads, but not to the stream.
    The layers that give take turns with ``memory_sets`` sets of all other weights. Each may have adapters of its own,
    through ``adapter_rank`` dimensions: beside the first matrices of the feed-forward, and with ``adapted_attention``
    beside those of queries, keys and values (Zamba2).
    """

    memory: str = choice("none", "gives", "takes", differs=True, off="none", said="a layer that {} memory")
    memory_sets: int = leaf(0, COUNT, said="{} sets of memory layers")
    adapter_rank: int = leaf(0, COUNT, said="adapters of rank {}")
    adapted_attention: bool = leaf(False, said="the adapters of attention")

    def require(self) -> None:
        if self.memory != "none" and not self.memory_sets:
            raise ConfigError(f"memory {self.memory!r} needs weights, and memory_sets is 0")
        if self.adapted_attention and not self.adapter_rank:
            raise ConfigError("adapted_attention needs adapters, and adapter_rank is 0")

    def words(self, causal: bool) -> dict[str, str]:
        if self.memory == "takes":
            return {"memory": "the mixer reads the output of the layer below too"}
        if self.memory == "none":
            return {"memory": ""}
        adapted = "q, k, v and the feed-forward" if self.adapted_attention else "the feed-forward"
        return {
            "memory": listed(
                "attention reads stream and embeddings",
                "a feed-forward its output",
                "the layer above the result",
                f"{self.memory_sets} sets of weights in turn" if self.memory_sets > 1 else "one set of weights",
                bool(self.adapter_rank) and f"adapters of rank {self.adapter_rank} on {adapted}",
            )
        }


def takes(c: Config) -> bool:
    """Whether the layer reads what the layer below gives."""
    return bool(c.memory == "takes")


def adapts_attention(c: Config) -> bool:
    """Whether the queries, keys and values of a layer have adapters of its own."""
    return beside(c) and bool(c.adapted_attention)


def adapts_ffn(c: Config) -> bool:
    """Whether the first matrices of a feed-forward have adapters of the layer's own."""
    return beside(c) and c.adapter_rank > 0 and not c.experts


def _adapts_gate(c: Config) -> bool:
    return adapts_ffn(c) and bool(c.gated)


def _add(o: "ModuleType", _: Config) -> Any:
    return o.Add()


_NOT_BESIDE = "this layer adds to the stream, and reads nothing else"
_NOT_ADAPTED = "the matrices of this layer have no adapters"
_JOINED, _HIDDEN = ("token", "d_memory"), ("token", "d_ff")

READ: tuple[Step, ...] = (
    Step("memory.embedded", "embeddings", "{0}", WIDE, ("<embedded>",), "embed", symbol="x₀", when=beside,
         absent=_NOT_BESIDE, make=lambda o, _: o.Same()),
    Step("memory.in", "stream and embeddings, side by side", "[{0} | {1}]", _JOINED, ("in", "memory.embedded"),
         when=beside, absent=_NOT_BESIDE, make=lambda o, _: o.Append()),
    Step("norm1", "norm of stream and embeddings", "n = {norm}({0})", _JOINED, ("memory.in",), symbol="n", when=beside,
         make=make_norm, module="memory.norm", matrix="gain"),
    Step("memory.out", "output of the layer below", "{0} of the layer below", WIDE, ("memory.out",),
         recorded=True, when=takes, make=lambda o, _: o.Same(), below=True),
    Step("memory.sum", "stream and output of the layer below", "{inputs}", WIDE, ("in", "memory.out"), when=takes,
         absent=_NOT_BESIDE, make=_add),
)  # fmt: skip
"""From the residual stream to the input of the norm before the mixer, or of attention in a layer that gives."""
GIVEN: tuple[Step, ...] = (
    Step("memory.out", "what the layer above takes", "{0}·W_M", WIDE, ("ffn",), "ffn", recorded=True, when=beside,
         absent=_NOT_BESIDE, make=project, module="memory.out", matrix="W_M", own=True),
)  # fmt: skip
"""After the feed-forward of a layer that gives."""


def _adapter(
    name: str, title: str, axes: tuple[str, ...], low: str, letter: str, module: str, when: Predicate
) -> tuple[Step, ...]:
    """What the adapter of one matrix adds, from its ``low`` dimensions, and the sum."""
    role, matrix = "ffn" if name.startswith("ffn") else name, f"B_{letter}"
    return (
        Step(f"{name}_adapter", f"{title}, what the adapter adds", f"{{0}}·{matrix}", axes, (low,),
             role, when=when, absent=_NOT_ADAPTED, make=project, module=f"{module}_adapter", matrix=matrix, own=True),
        Step(f"{name}_adapted", f"{title}, with what the adapter adds", "{inputs}", axes, (name, f"{name}_adapter"),
             role, when=when, absent=_NOT_ADAPTED, make=_add),
    )  # fmt: skip


def _compress(name: str, title: str, matrix: str, read: str, role: str, module: str, when: Predicate) -> Step:
    """The first matrix of an adapter."""
    return Step(name, f"{title}, compressed for the adapter", f"{{0}}·{matrix}", ("token", "adapter_rank"), (read,),
                role, when=when, absent=_NOT_ADAPTED, make=project, module=module, matrix=matrix, own=True)  # fmt: skip


ADAPTED_ATTENTION: tuple[Step, ...] = tuple(
    step
    for name, title, axes in (("q", "queries", HEADS), ("k", "keys", KV), ("v", "values", VALUES))
    for low, letter, path in ((f"{name}_low", name.upper(), f"attention.{name}"),)
    for step in (
        _compress(low, title, f"A_{letter}", "norm1", name, f"{path}_low", adapts_attention),
        *_adapter(name, title, axes, low, letter, path, adapts_attention),
    )
)
"""After queries, keys and values."""
ADAPTED_FFN: tuple[Step, ...] = (
    _compress("ffn.low", "input of the feed-forward", "A", RESIDUAL, "ffn", "ffn.low", adapts_ffn),
    *_adapter("ffn.hidden", "feed-forward, expanded", _HIDDEN, "ffn.low", "up", "ffn.up", adapts_ffn),
    *_adapter("ffn.gate", "feed-forward, gate", _HIDDEN, "ffn.low", "gate", "ffn.gate", _adapts_gate),
)
"""After the hidden units and the gate of a feed-forward."""


def inputs(c: Config) -> dict[str, tuple[str, ...]]:
    """The steps that each placeholder among the inputs of these rows and of those that read them stands for."""
    return {"<into mixer>": ("norm1",) if beside(c) else (RESIDUAL,)}
