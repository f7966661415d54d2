"""The embeddings: the first vector of every token."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinytf.errors import ConfigError
from tinytf.parts.norm import make_norm
from tinytf.parts.part import ABOVE_ZERO, COUNT, POSITIVE, SHARE, Part, leaf, listed
from tinytf.parts.row import EMBEDDED, SUMMED, WIDE, Config, Step

if TYPE_CHECKING:
    from types import ModuleType


@dataclass(frozen=True, kw_only=True)
class Embedding(Part):
    """Token embeddings, and the position and type embeddings that are added to them.

    ``embed_scale`` multiplies token embeddings (√d_model in the paper). ``masked_share`` is the share of masks in
    training: embeddings of ``mask_id`` become 0, the others are multiplied by (1 − ``masked_share``) / (1 − the share
    of masks in the text) (ESM). Token embeddings ``d_embed`` wide (0: d_model) are projected to d_model, with an
    optional ``projection_bias``; with ``embed_norm`` positions and types are as narrow, and the projection follows the
    norm. A language-model head then projects hidden states to ``d_embed`` before it unembeds them. With
    ``positions_unnormed`` the norm is that of the token embeddings alone (BlenderbotSmall). The first token has
    row ``position_offset`` of the position table (2 in RoBERTa). Tables in files have ``padding_rows`` more than there
    are tokens (Inkling).
    """

    vocab_size: int = leaf(limits=POSITIVE, said="a vocabulary of {} tokens")
    n_token_types: int = leaf(0, COUNT, said="{} token types")
    position_offset: int = leaf(0, COUNT, usual=(2,), said="an offset of {} rows of positions")
    d_embed: int = leaf(0, COUNT, said="embeddings {} wide", zero="d_model")
    projection_bias: bool = leaf(False, said="the bias of the projection of the embeddings")
    embed_scale: float = leaf(1.0, ABOVE_ZERO, said="embeddings times {}")
    padding_rows: int = leaf(0, COUNT, said="{} stored rows that are no token")
    masked_share: float = leaf(0.0, SHARE, said="a share of {} of masked tokens")
    mask_id: int = leaf(0, COUNT, said="id {} for masked tokens", zero="0")
    embed_norm: bool = leaf(False, said="the norm of the embeddings")
    positions_unnormed: bool = leaf(False, said="positions added after the norm of the embeddings")

    def words(self, causal: bool) -> dict[str, str]:
        bias = " with a bias" if self.projection_bias else ""
        return {
            "embeddings": listed(
                bool(self.d_embed) and f"{self.d_embed} wide and projected to d_model{bias}",
                self.embed_scale != 1 and f"times {self.embed_scale:.4g}",
                bool(self.padding_rows) and f"{self.padding_rows:,} rows of files are no tokens",
                bool(self.n_token_types) and f"{self.n_token_types:,} token type{'s' * (self.n_token_types > 1)}",
                self.embed_norm and ("normed before positions" if self.positions_unnormed else "normed"),
                bool(self.masked_share)
                and f"0 for the mask (token {self.mask_id}) and the others scaled to {1 - self.masked_share:g}",
            ),
            "positions": f"the first at row {self.position_offset}" if self.position_offset else "",
        }

    def require(self) -> None:
        if self.positions_unnormed and (not self.embed_norm or self.d_embed):
            raise ConfigError("positions_unnormed needs embed_norm, and embeddings as wide as the stream")

    def fit(self, d_model: int, causal: bool) -> None:
        if self.masked_share and (causal or self.d_embed or self.mask_id >= self.vocab_size):
            raise ConfigError(
                f"masked_share {self.masked_share:g} needs an encoder with embeddings as wide as the stream, "
                f"and a mask_id below {self.vocab_size:,}"
            )


def make_widening(o: "ModuleType", c: Config) -> Any:
    """The projection between narrow embeddings and the stream."""
    return o.Linear(c.projection_bias)


def _tokens_widened(c: Config) -> bool:
    return c.d_embed > 0 and not c.embed_norm


def _sum_normed(c: Config) -> bool:
    return c.embed_norm and not c.positions_unnormed


def _sum_widened(c: Config) -> bool:
    return c.d_embed > 0 and _sum_normed(c)


def _drops_masks(c: Config) -> bool:
    return c.masked_share > 0


def _adds_positions(c: Config) -> bool:
    return c.positions.startswith(("learned", "sinusoidal"))


def _halves(c: Config) -> int:
    """With i/this, the exponents of fixed waves whose sines come before all cosines; 0 where they alternate."""
    return {"sinusoidal_halves": c.summed_width // 2 - 1, "sinusoidal_concat": c.summed_width // 2}.get(c.positions, 0)


def _tokens(c: Config) -> str:
    return "embed.kept" if _drops_masks(c) else "embed.projected" if _tokens_widened(c) else "embed.tokens"


def _summands(c: Config) -> tuple[str, ...]:
    """The steps that are summed: token vectors, positions and types."""
    tokens = "embed.norm" if c.positions_unnormed else _tokens(c)
    return (tokens, *("embed.positions",) * _adds_positions(c), *("embed.types",) * (c.n_token_types > 0))


ROWS: tuple[Step, ...] = (
    Step("tokens", "tokens", "text → pieces", (), role="embed", in_layer=False, recorded=True),
    Step("ids", "token ids", "each of {0} → its id", (), ("tokens",), role="embed", in_layer=False, recorded=True),
    Step("embed.tokens", "token embeddings", "E[{0}]{embed_scale}", EMBEDDED, ("ids",), "embed", False, True,
         make=lambda o, c: o.Lookup(scale=c.embed_scale), module="embed.tokens", matrix="E"),
    Step("embed.projected", "token embeddings, projected", "{0}·W_in{projection_bias}", WIDE, ("embed.tokens",),
         "embed", False, when=_tokens_widened, absent="{not_widened}",
         make=make_widening, module="embed.projection", matrix="W_in", late=True),
    Step("embed.kept", "token embeddings, but for masks", "{0} · (1 − {masked_share}) / (1 − masks / T), 0 at masks",
         EMBEDDED, ("embed.tokens",), "embed", False, when=_drops_masks,
         absent="masks have embeddings like other tokens in this model",
         make=lambda o, c: o.Keep(c.masked_share, c.mask_id)),
    Step("embed.positions", "positions", "{position_formula}", SUMMED, (), "embed", False, True,
         when=_adds_positions,
         absent="{no_added_positions}",
         make=lambda o, c: o.Positions(c.positions == "learned", c.position_offset, _halves(c)),
         module="embed.positions", matrix="P"),
    Step("embed.types", "token types", "S[type]", SUMMED, (), "embed", False, True,
         when=lambda c: c.n_token_types > 0, absent="this model has no token types",
         make=lambda o, _: o.Lookup(types=True), module="embed.types", matrix="S"),
    Step("embed.sum", "embeddings, summed", "{inputs}", SUMMED, ("<embeddings>",), "embed", False,
         when=_sum_normed, absent="the sum of the embeddings is not normed in this model; it is embed.out",
         make=lambda o, _: o.Add()),
    Step("embed.norm", "embedding norm", "{norm}({0})", SUMMED, ("<to norm>",), "residual", False, True,
         when=lambda c: c.embed_norm, absent="embeddings are not normed in this model",
         make=make_norm, module="embed.norm", matrix="gain"),
    Step("embed.out", "embeddings, projected", "x₀ = {0}·W_in{projection_bias}", WIDE, ("embed.norm",),
         "residual", False, True, symbol="x₀", when=_sum_widened, absent="{not_widened}",
         make=make_widening, module="embed.projection", matrix="W_in", late=True),
    Step("embed.out", "embeddings", "x₀ = {inputs}", WIDE, ("<embeddings>",), "residual", False, True,
         symbol="x₀",
         when=lambda c: not _sum_normed(c), make=lambda o, _: o.Add()),
)  # fmt: skip
"""From the text to the residual stream."""


def formulas(c: Config) -> dict[str, str]:
    """The words that fill each placeholder in the formulas of these rows."""
    offset = c.position_offset
    by_kind = {
        "learned": f"P[{offset}…T+{offset - 1}], learned" if offset else "P[0…T−1], learned",
        "sinusoidal": f"sin | cos(pos / 10000^(2i/{c.d_model}))",
    }
    row = f"(pos + {offset})" if offset else "pos"
    halves = f"[sin | cos]({row} / 10000^(i/{_halves(c)}))"
    projected = "the sum of the embeddings is projected in this model, as embed.out"
    return {
        "position_formula": by_kind.get(c.positions, halves),
        "embed_scale": "" if c.embed_scale == 1.0 else f" · {c.embed_scale:.4g}",
        "masked_share": f"{c.masked_share:g}",
        "projection_bias": " + b" if c.projection_bias else "",
        "not_widened": projected
        if _sum_widened(c)
        else "token embeddings are as wide as the residual stream in this model",
    }


def inputs(c: Config) -> dict[str, tuple[str, ...]]:
    """The steps that each placeholder among the inputs of these rows stands for."""
    return {"<embeddings>": _summands(c), "<to norm>": ("embed.sum",) if _sum_normed(c) else (_tokens(c),)}
