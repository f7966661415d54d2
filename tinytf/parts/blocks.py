"""Blocks of tokens, each compressed to one key that is its own value, beside a window (DeepSeek-V4, 2026)."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinytf.parts.part import COUNT, Part, leaf, listed
from tinytf.parts.row import KV, MAP, OF_HEADS, PAIRS, RESIDUAL, Config, Q, Step, V

if TYPE_CHECKING:
    from types import ModuleType


@dataclass(frozen=True, kw_only=True)
class Blocks(Part):
    """Queries also see earlier blocks of ``block_size`` tokens, whole ones; 0 for none.

    A block is a sum of its tokens' numbers, weighted by a softmax for each of them. ``block_overlap`` adds other
    numbers of the tokens of the block before it. An indexer then chooses blocks rather than tokens.
    """

    block_size: int = leaf(0, COUNT, differs=True, off=0, said="blocks of {} tokens", usual=(4, 128))
    block_overlap: bool = leaf(False, differs=True, said="blocks that overlap")

    def idle(self) -> Collection[str]:
        return () if self.block_size else ("block_overlap",)

    def words(self, causal: bool) -> dict[str, str]:
        if not self.block_size:
            return {}
        blocks = f"and compressed blocks of {self.block_size:,} tokens before"
        return {"window": listed(blocks, self.block_overlap and "each with the tokens of the one before it")}


def has_blocks(c: Config) -> bool:
    """Whether a layer compresses blocks."""
    return bool(c.block_size > 0)


def _chooses(c: Config) -> bool:
    return has_blocks(c) and c.index_keys > 0


def _linear(o: "ModuleType", _: Config) -> Any:
    return o.Linear(False)


def _norm(o: "ModuleType", c: Config) -> Any:
    return o.Norm(False, c.norm_eps, ("gain",))


def _rotate(o: "ModuleType", c: Config, heads: bool) -> Any:
    return o.RotateBlocks(c.rope, behind=c.block_size - 1, heads=heads, still=c.positions != "rotary")


def _sight(o: "ModuleType", c: Config) -> Any:
    return o.Sight(True, chosen=c.index_keys, every=c.block_size)


def _scale(o: "ModuleType", c: Config) -> Any:
    return o.Scale(c.score_divisor, "√d_head", c.score_divisor_words)


_NONE = "this layer has no compressed blocks: a query looks at single tokens"
_NO_CHOICE = "no indexer chooses blocks in this layer"


def _compressed(at: str, axis: str, wide: str, module: str, when: Any, absent: str, **where: Any) -> tuple[Step, ...]:
    """From the input of attention to compressed blocks, normed."""
    letter, of = ("I", " of the indexer") if at == "index" else ("", "")
    return (
        Step(f"{at}.content", f"numbers of each token for its block{of}", f"{{0}}·W_{letter}BC", ("token", wide),
             (RESIDUAL,), "k", when=when, absent=absent, make=_linear, module=f"{module}_content",
             matrix=f"W_{letter}BC", late=True, **where),
        Step(f"{at}.gate", f"scores of each token in its block{of}", f"{{0}}·W_{letter}BG", ("token", wide),
             (RESIDUAL,), "k", when=when, absent=absent, make=_linear, module=f"{module}_gate",
             matrix=f"W_{letter}BG", late=True, **where),
        Step(f"{at}.sum", f"blocks{of}, each at its last token", "Σ softmax({1} + b) ⊙ {0} over {block_words}",
             ("token", axis), (f"{at}.content", f"{at}.gate"), "k", when=when, absent=absent,
             make=lambda o, c: (o.CompressIndex if letter else o.Compress)(c.block_size, c.block_overlap),
             module=f"{module}_sum", matrix="", late=True, **where),
        Step(f"{at}.norm", f"blocks{of}, normed", "RMSNorm({0})", ("token", axis), (f"{at}.sum",), "k", when=when,
             absent=absent, make=_norm, module=f"{module}_norm", matrix="gain", late=True, **where),
    )  # fmt: skip


INDEX: tuple[Step, ...] = (
    *_compressed("index", "index_width", "d_index_block", "attention.index", _chooses, _NO_CHOICE, to_loss=False),
    Step("index.k_rot", "blocks of the indexer, rotated", "{0} turned by the position of its first token",
         ("token", "index_width"), ("index.norm",), "k", when=_chooses, to_loss=False,
         make=lambda o, c: _rotate(o, c, heads=False)),
)  # fmt: skip
"""From the input of attention to the blocks that an indexer scores."""
ROWS: tuple[Step, ...] = (
    *_compressed("block", "d_head", "d_block", "attention.block", has_blocks, _NONE),
    Step("block.k", "blocks, rotated: their keys", "{0} turned by the position of its first token", KV,
         ("block.norm",), "attention", recorded=True, when=has_blocks, absent=_NONE,
         make=lambda o, c: _rotate(o, c, heads=True)),
    Step("block.scores", "scores of blocks", "{0}·{1}ᵀ", MAP, (Q, "block.k"), "attention", core=True,
         when=has_blocks, absent=_NONE, make=lambda o, _: o.CrossScores()),
    Step("block.scaled", "scores of blocks, scaled", "{0} / {block_divisor}", MAP, ("block.scores",), "attention",
         core=True, when=has_blocks, absent=_NONE, make=_scale),
    Step("block.masked", "scores of blocks, masked", "{0}, −∞ where {block_masked}", MAP,
         ("block.scaled", "<chosen blocks>"), "attention", core=True, when=has_blocks, absent=_NONE,
         make=lambda o, c: o.Mask(_sight(o, c))),
)  # fmt: skip
"""From the input of attention to the scores of blocks."""
MIXED: tuple[Step, ...] = (
    Step("window.out", "weighted values of tokens", "{0}·{1}", OF_HEADS, ("weights", V), "v", core=True,
         when=has_blocks, absent=_NONE, make=lambda o, _: o.Mix()),
    Step("block.sink", "share of the sink and of tokens", "(e^s + Σ e^{1}) / (e^s + Σ e^{1} + Σ e^{0})",
         ("head", "query", "sink"), ("block.masked", "masked"), "attention", core=True, when=has_blocks, absent=_NONE,
         make=lambda o, _: o.Sink(), module="attention.sink", matrix="sink.logit", at="attention.block_sink",
         late=True),
    Step("block.weights", "attention weights of blocks", "softmax({0})·(1 − {1})", MAP,
         ("block.masked", "block.sink"), "attention", core=True, when=has_blocks, absent=_NONE,
         make=lambda o, _: o.SunkSoftmax()),
    Step("block.v", "blocks as values", "{0}", KV, ("block.k",), "attention", when=has_blocks, absent=_NONE,
         make=lambda o, _: o.Same()),
    Step("block.out", "weighted values of blocks", "{0}·{1}", OF_HEADS, ("block.weights", "block.v"), "v", core=True,
         when=has_blocks, absent=_NONE, make=lambda o, _: o.CrossMix()),
    Step("head_out", "weighted values of tokens and of blocks", "{inputs}", OF_HEADS, ("window.out", "block.out"),
         "v", recorded=True, core=True, when=has_blocks, make=lambda o, _: o.Add()),
)  # fmt: skip
"""From the weights of tokens to what a head gives."""
CHOSEN = Step("index.chosen", "blocks that the indexer chooses, at their last tokens",
              "1 for the {index_keys} largest of {0} where visible, else 0", PAIRS, ("index.scores",), "attention",
              recorded=True, when=_chooses, make=lambda o, c: o.ChooseKeys(_sight(o, c)), to_loss=False)  # fmt: skip


def formulas(c: Config) -> dict[str, str]:
    """The words that fill each placeholder in the formulas of these rows."""
    ends = f"key + 1 is no multiple of {c.block_size:,}"
    return {
        "block_words": f"{c.block_size:,} tokens" + " and as many before" * c.block_overlap,
        "block_divisor": c.score_divisor_words,
        "block_masked": "{1} is 0" if _chooses(c) else f"key > query or {ends}",
    }


def inputs(c: Config) -> dict[str, tuple[str, ...]]:
    """The steps that each placeholder among the inputs of these rows stands for."""
    return {
        "<chosen blocks>": ("index.chosen",) if _chooses(c) else (),
        "<beside>": ("block.masked",) if has_blocks(c) else (),
    }
