"""The parameters of a model by formula, from its configuration alone (no weights)."""

from dataclasses import dataclass

from tinytf.config import ModelConfig
from tinytf.steps.table import wide_norms


@dataclass(frozen=True)
class Component:
    """One component: how many parameters each copy has, how many copies there are, and the formula."""

    name: str
    formula: str
    each: int
    copies: int = 1

    @property
    def total(self) -> int:
        return self.each * self.copies


def parameter_parts(config: ModelConfig) -> list[Component]:
    """The parameters of every component; their totals add up to the model's parameter count."""
    c, f, v, layers = config.d_model, config.d_ff, config.vocab_size, config.n_layers
    q, kv = config.n_heads * config.d_head, config.n_kv_heads * config.d_head
    norms = wide_norms(config)
    gains = 2 if config.norm == "layernorm" else 1
    norm_words = "2·d_model" if gains == 2 else "d_model"
    qkv_bias, o_bias, ffn_bias = config.qkv_bias, config.o_bias, config.ffn_bias
    parts = [Component("token embeddings", f"V·d_model = {v:,}·{c:,}", v * c)]
    if config.positions == "learned":
        rows, words = (
            config.context + config.position_offset,
            "(context + offset)" if config.position_offset else "context",
        )
        parts.append(Component("positions, learned", f"{words}·d_model = {rows:,}·{c:,}", rows * c))
    if config.n_token_types:
        parts.append(
            Component("token types", f"types·d_model = {config.n_token_types}·{c:,}", config.n_token_types * c)
        )
    if config.embed_norm:
        parts.append(Component("embedding norm", norm_words, gains * c))
    parts += [
        Component("attention, W_Q", _words("d_model·H·d_head", f"{c:,}·{q:,}", qkv_bias), c * q + q * qkv_bias, layers),
        Component(
            "attention, W_K", _words("d_model·G·d_head", f"{c:,}·{kv:,}", qkv_bias), c * kv + kv * qkv_bias, layers
        ),
        Component(
            "attention, W_V", _words("d_model·G·d_head", f"{c:,}·{kv:,}", qkv_bias), c * kv + kv * qkv_bias, layers
        ),
        Component("attention, W_O", _words("H·d_head·d_model", f"{q:,}·{c:,}", o_bias), q * c + c * o_bias, layers),
    ]
    if config.qk_norm:
        parts.append(Component("attention, q and k norm", "2·d_head each", 2 * gains * config.d_head, layers))
    wide = c * f + f * ffn_bias
    if config.gated:
        parts.append(Component("feed-forward, W_gate", _words("d_model·d_ff", f"{c:,}·{f:,}", ffn_bias), wide, layers))
    up, down = ("W_up", "W_down") if config.gated else ("W₁", "W₂")
    parts += [
        Component(f"feed-forward, {up}", _words("d_model·d_ff", f"{c:,}·{f:,}", ffn_bias), wide, layers),
        Component(
            f"feed-forward, {down}", _words("d_ff·d_model", f"{f:,}·{c:,}", ffn_bias), f * c + c * ffn_bias, layers
        ),
        Component("norms", f"{norms} × {norm_words}", norms * gains * c, layers),
    ]
    if config.final_norm:
        parts.append(Component("final norm", norm_words, gains * c))
    if config.pooler:
        parts.append(Component("pooler", "d_model² + d_model", c * c + c))
    if config.head == "mlm":
        parts.append(Component("head, dense and norm", f"d_model² + d_model + {norm_words}", c * c + c + gains * c))
    if config.head != "none":
        each = (0 if config.tied_head else v * c) + v * config.head_bias
        words = "tied to the token embeddings" if config.tied_head else "d_model·V"
        parts.append(Component("head, unembedding", words + (" + V" if config.head_bias else ""), each))
    return parts


def _words(formula: str, numbers: str, bias: bool) -> str:
    return f"{formula}{' + b' if bias else ''} = {numbers}{' + b' if bias else ''}"


def parameter_count(config: ModelConfig) -> int:
    """All parameters; tied weights count once."""
    return sum(part.total for part in parameter_parts(config))
