"""Embeddings for each layer: what a layer adds after its feed-forward, from the token alone and from its embedding."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinytf.parts.norm import has_altup, make_norm
from tinytf.parts.part import COUNT, Part, leaf, listed
from tinytf.parts.row import RESIDUAL, WIDE, Config, Step

if TYPE_CHECKING:
    from types import ModuleType


@dataclass(frozen=True, kw_only=True)
class LayerInputs(Part):
    """Each layer has a table of vectors of tokens, ``d_layer_input`` wide, scaled by √d_layer_input (Gemma 4).

    The vector is averaged with a normed projection of the token's embedding, or without ``layer_tokens`` is that
    projection (EmbeddingGemma 2). After the feed-forward a gate, computed from the stream, multiplies it; the product
    is projected to the stream, normed and added. A table may have only ``layer_vocab`` rows; later tokens then have its
    first (Gemma 3n).
    """

    d_layer_input: int = leaf(0, COUNT, said="inputs of layers {} wide")
    layer_tokens: bool = leaf(True, said="the token embeddings of layers")
    layer_vocab: int = leaf(0, COUNT, zero="vocab_size", said="{} rows of the inputs of layers")

    def words(self, causal: bool) -> dict[str, str]:
        rows = f"{self.layer_vocab:,} tokens" if self.layer_vocab else ""
        wide = f"{self.d_layer_input} wide" if self.d_layer_input else ""
        made = "" if self.layer_tokens else "from the token's embedding alone"
        return {"embeddings of layers": listed(wide, bool(wide) and rows, bool(wide) and made)}


def _has(c: Config) -> bool:
    return bool(c.d_layer_input > 0)


def _has_table(c: Config) -> bool:
    return _has(c) and c.layer_tokens


def _project(o: "ModuleType", _: Config) -> Any:
    return o.Linear(False)


_NONE = "the layers of this model have no embeddings of their own"
_NARROW = ("token", "d_layer_input")

ROWS: tuple[Step, ...] = (
    Step("ple.tokens", "the layer's token embeddings", "E_L[{0}] · √{d_layer_input}", _NARROW, ("ids",), "embed",
         when=_has_table, absent="{no_table}", module="ple.tokens",
         make=lambda o, c: o.Lookup(scale=c.d_layer_input**0.5 or 1.0, rows=c.layer_vocab),
         matrix="E_L", late=True),
    Step("ple.context", "embeddings, projected for the layer", "{0}·W_LE", _NARROW, ("<embedded>",), "embed",
         when=_has, absent=_NONE, make=_project, module="ple.context", matrix="W_LE", late=True),
    Step("ple.scaled", "embeddings, projected and scaled", "{0} / √{d_model}", _NARROW, ("ple.context",), "embed",
         when=_has, absent=_NONE, make=lambda o, c: o.Multiply(c.d_model**-0.5)),
    Step("ple.norm", "embeddings, projected and normed", "{norm}({0})", _NARROW, ("ple.scaled",), "embed",
         when=_has, absent=_NONE, make=make_norm, module="ple.norm", matrix="gain", shared=True, late=True),
    Step("ple.sum", "both embeddings of the layer", "{inputs}", _NARROW, ("ple.norm", "ple.tokens"), "embed",
         when=_has_table, absent="{no_table}", make=lambda o, _: o.Add()),
    Step("ple.in", "input of the layer", "{0} / √2", _NARROW, ("ple.sum",), "embed", when=_has_table,
         absent="{no_table}", make=lambda o, _: o.Multiply(2**-0.5)),
    Step("ple.gate", "gate of the layer's input", "{0}·W_LG", _NARROW, (RESIDUAL,), "ffn", when=_has,
         absent=_NONE, make=_project, module="ple.gate", matrix="W_LG", late=True),
    Step("ple.act", "the layer's input, gated", "{activation}({0}) ⊙ {1}", _NARROW, ("ple.gate", "<layer input>"),
         "ffn", when=_has, absent=_NONE, make=lambda o, c: o.Activate(c.activation)),
    Step("ple.out", "what the layer's input adds", "{0}·W_LO", WIDE, ("ple.act",), "ffn", recorded=True, when=_has,
         absent=_NONE, make=_project, module="ple.out", matrix="W_LO", late=True),
    Step("ple.out_norm", "what the layer's input adds, normed", "{norm}({0})", WIDE, ("ple.out",), "ffn", when=_has,
         absent=_NONE, make=make_norm, module="ple.out_norm", matrix="gain", late=True),
    Step("ple.added", "residual after the layer's input", "{inputs}", WIDE, ("sum", "ple.out_norm"),
         when=lambda c: _has(c) and not has_altup(c), absent="{not_added}", make=lambda o, _: o.Add()),
)  # fmt: skip
"""From the residual stream after the feed-forward to the stream before the layer's scale."""


def formulas(c: Config) -> dict[str, str]:
    """The words that fill each placeholder in the formulas of these rows."""
    return {
        "d_layer_input": str(c.d_layer_input),
        "d_model": str(c.d_model),
        "no_table": "the input of a layer is the projected embedding in this model; see ple.norm" if _has(c) else _NONE,
        "not_added": "the input of the layer is added to all streams but the first, as out" if has_altup(c) else _NONE,
    }


def inputs(c: Config) -> dict[str, tuple[str, ...]]:
    """The steps that each placeholder among the inputs of these rows stands for."""
    return {"<embedded>": ("embed.out",), "<layer input>": ("ple.in",) if c.layer_tokens else ("ple.norm",)}
