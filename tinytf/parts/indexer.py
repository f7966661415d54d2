"""A lightning indexer: it scores earlier tokens, and attention sees only the best (DeepSeek-V3.2, 2025)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinytf.errors import ConfigError
from tinytf.parts.norm import make_norm
from tinytf.parts.part import ABOVE_ZERO, COUNT, Part, leaf
from tinytf.parts.row import PAIRS, RESIDUAL, Config, Step

if TYPE_CHECKING:
    from types import ModuleType


@dataclass(frozen=True, kw_only=True)
class Indexer(Part):
    """An indexer that chooses the ``index_keys`` earlier tokens that a query may look at; 0 for none.

    It scores them by ``index_heads`` queries ``index_width`` wide against one key for each token, normed with
    ``index_eps``. It only chooses, so
    that no gradient of the loss reaches it. With ``shares_index`` a layer takes the choice of the last layer below with
    its own (GLM-5). With an ``index_block`` it chooses blocks of so many keys, each by the mean of its keys, which is
    normed and turned by the position of its first; the heads have no weights, and their queries are normed. Keys after
    the last whole block are always seen (Qwen4-Exp).
    """

    index_keys: int = leaf(0, COUNT, said="{} keys that an indexer chooses", usual=(2_048,))
    index_heads: int = leaf(0, COUNT, said="{} heads of the indexer")
    index_width: int = leaf(0, COUNT, said="heads of the indexer {} wide")
    index_eps: float = leaf(1e-6, ABOVE_ZERO, said="eps {} of the indexer's norm")
    index_block: int = leaf(0, COUNT, said="blocks of {} keys that an indexer chooses", usual=(16,))
    shares_index: bool = leaf(False, differs=True, said="the choice of an earlier layer's indexer")

    def require(self) -> None:
        if bool(self.index_keys) != bool(self.index_heads) or bool(self.index_keys) != bool(self.index_width):
            raise ConfigError("index_keys, index_heads and index_width need each other")
        if self.shares_index and not self.index_keys:
            raise ConfigError("shares_index needs index_keys")

        if self.index_block and (not self.index_keys or self.index_keys % self.index_block):
            raise ConfigError(
                f"index_keys {self.index_keys} are not whole blocks of {self.index_block}, the index_block"
            )

    def words(self, causal: bool) -> dict[str, str]:
        if not self.index_keys:
            return {}
        by = f"{self.index_heads} index heads of {self.index_width} choose"
        in_blocks = f" in blocks of {self.index_block}" * (self.index_block > 0)
        chosen = f"the {self.index_keys:,} keys{in_blocks} that {'an earlier layer chose' if self.shares_index else by}"
        return {"window": chosen}


def _indexed(c: Config) -> bool:
    return c.index_keys > 0 and not c.shares_index


def _each(c: Config) -> bool:
    return _indexed(c) and not c.index_block


def _in_blocks(c: Config) -> bool:
    return _indexed(c) and c.index_block > 0


def _turned(c: Config) -> bool:
    return _indexed(c) and c.positions == "rotary"


def _head_norm(o: "ModuleType", c: Config) -> Any:
    return o.PartNorm(c.norm == "layernorm", c.norm_eps, c.norm_parameters, "index_width", shared=True)


def _linear(o: "ModuleType", _: Config) -> Any:
    return o.Linear(False)


_NO_INDEX = "{no_index}"
_NOT_TURNED = "nothing of an indexer is rotated in this layer"
_NO_BLOCKS = "no indexer chooses blocks of keys in this layer"
_QUERIES, _KEY = ("token", "index_heads·index_width"), ("token", "index_width")

ROWS: tuple[Step, ...] = (
    Step("index.q", "queries of the indexer", "{0}·W_IQ", _QUERIES, ("<into q>",), "q", when=_indexed,
         absent=_NO_INDEX, make=_linear, module="attention.index_q", matrix="W_IQ", late=True, to_loss=False),
    Step("index.q_norm", "queries of the indexer, normed", "{norm}({0}) in each head", _QUERIES, ("index.q",), "q",
         when=_in_blocks, absent=_NO_BLOCKS, make=_head_norm, module="attention.index_q_norm", matrix="gain", late=True,
         to_loss=False),
    Step("index.q_rot", "queries of the indexer, rotated", "{0}, each head turned by its position", _QUERIES,
         ("<index q in>",), "q", when=_turned, absent=_NOT_TURNED, to_loss=False,
         make=lambda o, c: o.RotateEach(c.rope, c.index_width)),
    Step("index.k", "keys of the indexer", "{0}·W_IK", _KEY, (RESIDUAL,), "k", when=_indexed, absent=_NO_INDEX,
         make=_linear, module="attention.index_k", matrix="W_IK", late=True, to_loss=False),
    Step("index.k_mean", "mean of the keys of a block", "mean of {0} over blocks of {index_block}", _KEY, ("index.k",),
         "k", when=_in_blocks, absent=_NO_BLOCKS, make=lambda o, c: o.MeanOfBlock(c.index_block or 1), to_loss=False),
    Step("index.k_norm", "mean of the keys of a block, normed", "{norm}({0})", _KEY, ("index.k_mean",), "k",
         when=_in_blocks, make=make_norm, module="attention.index_k_norm", matrix="gain", late=True, to_loss=False),
    Step("index.k_norm", "keys of the indexer, normed", "LayerNorm({0})", _KEY, ("index.k",), "k", when=_each,
         absent=_NO_INDEX, make=lambda o, c: o.Norm(True, c.index_eps, ("gain", "bias")),
         module="attention.index_k_norm", matrix="gain", late=True, to_loss=False),
    Step("index.k_rot", "keys of the indexer, rotated", "{0} turned by its position", _KEY, ("index.k_norm",), "k",
         when=lambda c: _turned(c) and _each(c), absent=_NOT_TURNED, make=lambda o, c: o.Rotate(c.rope), to_loss=False),
    Step("index.k_rot", "mean of the keys of a block, rotated", "{0} turned by the position of the block's first key",
         _KEY, ("index.k_norm",), "k", when=lambda c: _turned(c) and _in_blocks(c),
         make=lambda o, c: o.RotateBlocks(c.rope, c.index_block or 1), to_loss=False),
    Step("index.weights", "weights of the heads of the indexer", "{0}·W_IW", ("token", "index_head"), (RESIDUAL,),
         "attention", when=_each, absent=_NO_INDEX, make=_linear, module="attention.index_weights", matrix="W_IW",
         late=True, to_loss=False),
    Step("index.scores", "scores of the indexer",
         "Σ over heads of {2} / √{index_heads} · max(0, {0}·{1}ᵀ / √{index_width})", PAIRS,
         ("<index q>", "<index k>", "index.weights"), "attention", when=_each, absent=_NO_INDEX,
         make=lambda o, _: o.IndexScores(), to_loss=False),
    Step("index.scores", "scores of the indexer, one for each block",
         "Σ over heads of max(0, {0}·{1}ᵀ / √{index_width})", PAIRS, ("<index q>", "<index k>"), "attention",
         when=_in_blocks, make=lambda o, _: o.BlockScores(), to_loss=False),
    Step("index.chosen", "keys that the indexer chooses", "1 for the {index_keys} largest of {0} where visible, else 0",
         PAIRS, ("index.scores",), "attention", recorded=True, when=_each, absent=_NO_INDEX,
         make=lambda o, c: o.ChooseKeys(o.Sight.of(c)), to_loss=False),
    Step("index.chosen", "keys of the blocks that the indexer chooses",
         "1 for the best {index_blocks} whole blocks by {0} and for later keys, where visible, else 0", PAIRS,
         ("index.scores",), "attention", recorded=True, when=_in_blocks,
         make=lambda o, c: o.ChooseBlocks(o.Sight.of(c), c.index_block or 1), to_loss=False),
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
        "no_index": "the indexer of an earlier layer chooses the keys"
        if c.shares_index
        else "no indexer chooses keys in this model: a query may look at all that the mask shows",
    }


def inputs(c: Config) -> dict[str, tuple[str, ...]]:
    """The steps that each placeholder among the inputs of these rows stands for."""
    turned, q = _turned(c), "index.q_norm" if c.index_block else "index.q"
    return {
        "<index q in>": (q,),
        "<index q>": ("index.q_rot" if turned else q,),
        "<index k>": ("index.k_rot" if turned else "index.k_norm",),
        "<chosen>": ("index.chosen",) if c.index_keys else (),
    }
