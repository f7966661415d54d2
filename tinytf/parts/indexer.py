"""A lightning indexer: it scores earlier tokens, and attention sees only the best (DeepSeek-V3.2, 2025)."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinytf.errors import ConfigError
from tinytf.parts import blocks
from tinytf.parts.blocks import has_blocks
from tinytf.parts.norm import make_norm
from tinytf.parts.part import ABOVE_ZERO, COUNT, Part, leaf
from tinytf.parts.row import KV_PAIRS, PAIRS, RESIDUAL, WIDE, Config, Step

if TYPE_CHECKING:
    from types import ModuleType


@dataclass(frozen=True, kw_only=True)
class Indexer(Part):
    """An indexer that chooses the ``index_keys`` earlier tokens that a query may look at; 0 for none.

    It scores them by ``index_heads`` queries ``index_width`` wide against one key for each token, normed with
    ``index_eps``. It only chooses, so that no gradient of the loss reaches it. With ``shares_index`` a layer takes the
    choice of the last layer below with its own (GLM-5). With ``index_norm`` its queries are made of its input, normed
    once more (Mistral Large 4).

    With an ``index_block`` it chooses blocks of so many keys, each by the mean of its keys, which is normed and turned
    by the position of its first; the heads have no weights, and their queries are normed. Keys after the last whole
    block are always seen, unless ``index_tail`` is off (Qwen4-Exp). With ``index_pooled`` the key of a block is instead
    a sum of its normed keys, weighted by a softmax for each dimension; the heads have weights, and queries are not
    normed (GLM-5.3). With ``index_by_head`` there is an index head for each key head, which chooses for its query heads
    the blocks with the largest score of a key; the query's own block and those right before it, ``index_near`` in all,
    are always among them (MiniMax M3).
    """

    index_keys: int = leaf(0, COUNT, differs=True, off=0, said="{} keys that an indexer chooses", usual=(2_048,))
    index_heads: int = leaf(0, COUNT, off=0, said="{} heads of the indexer")
    index_width: int = leaf(0, COUNT, off=0, said="heads of the indexer {} wide")
    index_eps: float = leaf(1e-6, ABOVE_ZERO, said="eps {} of the indexer's norm")
    index_norm: bool = leaf(False, off=False, said="the norm before the queries of the indexer")
    index_block: int = leaf(0, COUNT, off=0, said="blocks of {} keys that an indexer chooses", usual=(16, 128))
    index_pooled: bool = leaf(False, off=False, said="weighted sums as the keys of blocks")
    index_tail: bool = leaf(True, said="the keys after the last whole block")
    index_by_head: bool = leaf(False, off=False, said="a choice of blocks for each key head")
    index_near: int = leaf(0, COUNT, off=0, said="{} blocks before a query that an indexer always chooses")
    shares_index: bool = leaf(False, differs=True, said="the choice of an earlier layer's indexer")

    def idle(self) -> Collection[str]:
        of_choice = ("index_heads", "index_width", "index_norm", "shares_index")
        of_blocks = ("index_block", "index_pooled", "index_tail", "index_by_head", "index_near")
        return () if self.index_keys else (*of_choice, *of_blocks)

    def require(self) -> None:
        if self.index_keys and not (self.index_heads and self.index_width):
            raise ConfigError("index_keys need index_heads and an index_width")
        if self.shares_index and not self.index_keys:
            raise ConfigError("shares_index needs index_keys")
        if self.index_block and self.index_keys % self.index_block:
            raise ConfigError(
                f"index_keys {self.index_keys} are not whole blocks of {self.index_block}, the index_block"
            )
        for name, value in (("index_pooled", self.index_pooled), ("index_tail false", not self.index_tail)):
            if value and (not self.index_block or self.index_by_head):
                raise ConfigError(f"{name} needs an index_block, and no index_by_head")
        if self.index_by_head and not self.index_block:
            raise ConfigError("index_by_head needs an index_block")
        if self.index_near and (not self.index_by_head or self.index_near * self.index_block > self.index_keys):
            raise ConfigError(f"index_near {self.index_near} blocks do not fit index_keys {self.index_keys}")

    def words(self, causal: bool) -> dict[str, str]:
        if not self.index_keys:
            return {}
        by = f"{self.index_heads} index heads of {self.index_width} choose by keys normed with ε {self.index_eps:g}"
        if self.index_by_head:
            by = f"an index head of {self.index_width} chooses for each key head"
            by += f", with the {self.index_near} nearest blocks" * (self.index_near > 0)
        by += ", by queries of their own" * self.index_norm
        in_blocks = f" in {'pooled ' * self.index_pooled}blocks of {self.index_block}" * (self.index_block > 0)
        in_blocks += ", whole ones alone," * (not self.index_tail)
        chosen = f"the {self.index_keys:,} keys{in_blocks} that {'an earlier layer chose' if self.shares_index else by}"
        return {"window": chosen}


def _indexed(c: Config) -> bool:
    return c.index_keys > 0 and not c.shares_index


def _each(c: Config) -> bool:
    return _indexed(c) and not c.index_block


def _by_token(c: Config) -> bool:
    return _each(c) and not has_blocks(c)


def _in_blocks(c: Config) -> bool:
    return _indexed(c) and c.index_block > 0 and not c.index_by_head


def _of_means(c: Config) -> bool:
    return _in_blocks(c) and not c.index_pooled


def _pooled(c: Config) -> bool:
    return _in_blocks(c) and c.index_pooled


def _weighed(c: Config) -> bool:
    return _each(c) or _pooled(c)


def _by_head(c: Config) -> bool:
    return _indexed(c) and c.index_by_head


def _side_by_side(c: Config) -> bool:
    return _indexed(c) and not c.index_by_head


def _turned(c: Config) -> bool:
    return _indexed(c) and c.positions == "rotary"


def _grown(c: Config) -> bool:
    return _side_by_side(c) and c.head_growth


def _linear(o: "ModuleType", _: Config) -> Any:
    return o.Linear(False)


def _norm(o: "ModuleType", c: Config) -> Any:
    return o.Norm(True, c.index_eps, ("gain", "bias"))


def _head_norm(o: "ModuleType", c: Config) -> Any:
    return o.PartNorm(c.norm == "layernorm", c.norm_eps, c.norm_parameters, "index_width", shared=True)


_NO_INDEX = "{no_index}"
_NOT_TURNED = "nothing of an indexer is rotated in this layer"
_NO_BLOCKS = "no indexer chooses blocks of keys in this layer"
_NOT_NORMED = "queries of an indexer are not normed in this layer"
_NO_MEANS = "no indexer chooses blocks by the means of their keys in this layer"
_QUERIES, _KEY = ("token", "index_heads·index_width"), ("token", "index_width")
_OF_HEADS = ("kv head", "token", "index_width")

ROWS: tuple[Step, ...] = (
    Step("index.q_in", "input of the queries of the indexer, normed", "LayerNorm({0})", WIDE, (RESIDUAL,), "q",
         when=lambda c: _indexed(c) and c.index_norm, absent="the queries of an indexer are made of those of attention",
         make=_norm, module="attention.index_q_in", matrix="gain", late=True, to_loss=False),
    Step("index.q", "queries of the indexer", "{0}·W_IQ", _QUERIES, ("<into index q>",), "q", when=_side_by_side,
         absent=_NO_INDEX, make=_linear, module="attention.index_q", matrix="W_IQ", late=True, to_loss=False),
    Step("index.q", "queries of the indexer, one for each key head", "{0}·W_IQ", _OF_HEADS, (RESIDUAL,), "q",
         when=_by_head, make=_linear, module="attention.index_q", matrix="W_IQ", late=True, to_loss=False),
    Step("index.q_scaled", "queries of the indexer, scaled by position", "{0} · (s·ln(1 + position) + b) in each head",
         _QUERIES, ("index.q",), "q", when=_grown, absent="queries of an indexer are not scaled by their position",
         make=lambda o, c: o.GrowHeads(c.index_width), module="attention.index_q_growth", matrix="", late=True,
         to_loss=False),
    Step("index.q_norm", "queries of the indexer, normed", "{norm}({0}) in each head", _QUERIES, ("index.q",), "q",
         when=_of_means, absent=_NOT_NORMED, make=_head_norm, module="attention.index_q_norm", matrix="gain", late=True,
         to_loss=False),
    Step("index.q_norm", "queries of the indexer, normed", "{norm}({0})", _OF_HEADS, ("index.q",), "q", when=_by_head,
         make=make_norm, module="attention.index_q_norm", matrix="gain", late=True, to_loss=False),
    Step("index.q_rot", "queries of the indexer, rotated", "{0}, each head turned by its position", _QUERIES,
         ("<index q made>",), "q", when=lambda c: _side_by_side(c) and _turned(c), absent=_NOT_TURNED, to_loss=False,
         make=lambda o, c: o.RotateEach(c.rope, width=c.index_width)),
    Step("index.q_rot", "queries of the indexer, rotated", "{0} turned by its position", _OF_HEADS, ("index.q_norm",),
         "q", when=lambda c: _by_head(c) and _turned(c), make=lambda o, c: o.Rotate(c.rope), to_loss=False),
    Step("index.k", "keys of the indexer", "{0}·W_IK", _KEY, (RESIDUAL,), "k",
         when=lambda c: _indexed(c) and not has_blocks(c), absent=_NO_INDEX,
         make=_linear, module="attention.index_k", matrix="W_IK", late=True, to_loss=False),
    Step("index.k_mean", "mean of the keys of a block", "mean of {0} over blocks of {index_block}", _KEY, ("index.k",),
         "k", when=_of_means, absent=_NO_MEANS, make=lambda o, c: o.MeanOfBlock(c.index_block or 1), to_loss=False),
    Step("index.k_norm", "mean of the keys of a block, normed", "{norm}({0})", _KEY, ("index.k_mean",), "k",
         when=_of_means, make=make_norm, module="attention.index_k_norm", matrix="gain", late=True, to_loss=False),
    Step("index.k_norm", "keys of the indexer, normed", "{norm}({0})", _KEY, ("index.k",), "k", when=_by_head,
         make=make_norm, module="attention.index_k_norm", matrix="gain", late=True, to_loss=False),
    Step("index.k_norm", "keys of the indexer, normed", "LayerNorm({0})", _KEY, ("index.k",), "k",
         when=lambda c: _by_token(c) or _pooled(c), absent=_NO_INDEX, make=_norm, module="attention.index_k_norm",
         matrix="gain", late=True, to_loss=False),
    Step("index.k_rot", "keys of the indexer, rotated", "{0} turned by its position", _KEY, ("index.k_norm",), "k",
         when=lambda c: _turned(c) and (_by_token(c) or _by_head(c)), absent=_NOT_TURNED,
         make=lambda o, c: o.Rotate(c.rope), to_loss=False),
    Step("index.k_rot", "mean of the keys of a block, rotated", "{0} turned by the position of the block's first key",
         _KEY, ("index.k_norm",), "k", when=lambda c: _turned(c) and _of_means(c),
         make=lambda o, c: o.RotateMeans(c.rope, size=c.index_block or 1), to_loss=False),
    Step("index.gate", "scores of each key in its block", "{0}·W_IBG", _KEY, (RESIDUAL,), "k", when=_pooled,
         make=_linear, module="attention.index_gate", matrix="W_IBG", late=True, to_loss=False),
    Step("index.sum", "keys of blocks, each at its last token", "Σ softmax({1} + b) ⊙ {0} over blocks of {index_block}",
         _KEY, ("index.k_norm", "index.gate"), "k", when=_pooled,
         make=lambda o, c: o.CompressIndex(c.index_block or 1, False), module="attention.index_sum", matrix="",
         late=True, to_loss=False),
    *blocks.INDEX,
    Step("index.weights", "weights of the heads of the indexer", "{0}·W_IW", ("token", "index_head"), (RESIDUAL,),
         "attention", when=_weighed, absent=_NO_INDEX, make=_linear, module="attention.index_weights", matrix="W_IW",
         late=True, to_loss=False),
    Step("index.scores", "scores of the indexer",
         "Σ over heads of {2} / √{index_heads} · max(0, {0}·{1}ᵀ / √{index_width})", PAIRS,
         ("<index q>", "<index k>", "index.weights"), "attention", when=_weighed, absent=_NO_INDEX,
         make=lambda o, c: o.BlockIndexScores() if has_blocks(c) or c.index_block else o.IndexScores(), to_loss=False),
    Step("index.scores", "scores of the indexer, one for each block",
         "Σ over heads of max(0, {0}·{1}ᵀ / √{index_width})", PAIRS, ("<index q>", "<index k>"), "attention",
         when=_of_means, make=lambda o, _: o.BlockScores(), to_loss=False),
    Step("index.scores", "scores of the indexer for each key head", "{0}·{1}ᵀ", KV_PAIRS,
         ("<index q>", "<index k>"), "attention", when=_by_head, make=lambda o, _: o.IndexScores(), to_loss=False),
    Step("index.chosen", "keys that the indexer chooses", "1 for the {index_keys} largest of {0} where visible, else 0",
         PAIRS, ("index.scores",), "attention", recorded=True, when=_by_token, absent=_NO_INDEX,
         make=lambda o, c: o.ChooseKeys(o.Sight.of(c)), to_loss=False),
    blocks.CHOSEN,
    Step("index.chosen", "keys of the blocks that the indexer chooses",
         "1 for the best {index_blocks} whole blocks by {0}{index_tail}, where visible, else 0", PAIRS,
         ("index.scores",), "attention", recorded=True, when=_in_blocks,
         make=lambda o, c: o.ChooseBlocks(o.Sight.of(c)), to_loss=False),
    Step("index.chosen", "keys of the blocks that the indexer chooses for each key head",
         "1 in the {index_blocks} blocks of {index_block} keys with the largest {0}{index_near}, where visible, else 0",
         KV_PAIRS, ("index.scores",), "attention", recorded=True, when=_by_head,
         make=lambda o, c: o.ChooseByHead(o.Sight.of(c)), to_loss=False),
    Step("index.chosen", "keys that an earlier layer chose", "as in the last layer below with an indexer", PAIRS, (),
         "attention", recorded=True, when=lambda c: c.shares_index, make=lambda o, _: o.Same(), lent="masked",
         to_loss=False),
)  # fmt: skip
"""From the input of attention to the keys that it may look at."""


def formulas(c: Config) -> dict[str, str]:
    """The words that fill each placeholder in the formulas of these rows."""
    return {
        "index_heads": str(c.index_heads),
        "index_width": str(c.index_width),
        "index_keys": f"{c.index_keys:,}",
        "index_block": str(c.index_block),
        "index_blocks": f"{c.index_keys // (c.index_block or 1):,}",
        "index_tail": " and for later keys" * c.index_tail,
        "index_near": f", the nearest {c.index_near} among them" if c.index_near else "",
        "no_index": "the indexer of an earlier layer chooses the keys"
        if c.shares_index
        else "no indexer chooses keys in this model: a query may look at all that the mask shows",
    }


def inputs(c: Config) -> dict[str, tuple[str, ...]]:
    """The steps that each placeholder among the inputs of these rows stands for."""
    of_means = c.index_block and not c.index_pooled
    made = "index.q_norm" if of_means else "index.q_scaled" if _grown(c) else "index.q"
    turned = _turned(c)
    return {
        "<into index q>": ("index.q_in" if c.index_norm else "q_a_norm" if c.q_rank else "<into mixer>",),
        "<index q made>": (made,),
        "<index q>": ("index.q_rot" if turned else made,),
        "<index k>": ("index.sum" if c.index_pooled else "index.k_rot" if turned or has_blocks(c) else "index.k_norm",),
        "<chosen>": ("index.chosen",) if c.index_keys and not has_blocks(c) else (),
    }
