"""The parameters of a model by formula, from its configuration alone (no weights), and its size as a report."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from tinytf.config import ModelConfig
from tinytf.report import Data, Report
from tinytf.steps.table import wide_norms
from tinytf.steps.work import Work, cache_bytes_per_token, work_per_token


@dataclass(frozen=True)
class Component(Data):
    """One component: how many parameters each copy has, how many copies there are, and the formula."""

    LESS: ClassVar = ("name",)
    ALSO: ClassVar = ("total",)

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
    gains = len(config.norm_parameters)
    norm_words = ("0", "d_model", "2·d_model")[gains]
    parts = [Component("token embeddings", f"V·d_model = {v:,}·{c:,}", v * c)]
    if config.positions == "learned":
        rows = config.context + config.position_offset
        words = "(context + offset)" if config.position_offset else "context"
        parts.append(Component("positions, learned", f"{words}·d_model = {rows:,}·{c:,}", rows * c))
    if config.n_token_types:
        types = config.n_token_types
        parts.append(Component("token types", f"types·d_model = {types}·{c:,}", types * c))
    if config.embed_norm:
        parts.append(Component("embedding norm", norm_words, gains * c))

    def linear(name: str, words: str, inside: int, outside: int, bias: bool) -> Component:
        more = " + b" if bias else ""
        formula = f"{words}{more} = {inside:,}·{outside:,}{more}"
        return Component(name, formula, inside * outside + outside * bias, layers)

    parts += [
        linear("attention, W_Q", "d_model·H·d_head", c, q, config.qkv_bias),
        linear("attention, W_K", "d_model·G·d_head", c, kv, config.qkv_bias),
        linear("attention, W_V", "d_model·G·d_head", c, kv, config.qkv_bias),
        linear("attention, W_O", "H·d_head·d_model", q, c, config.o_bias),
    ]
    if config.qk_norm:
        parts.append(Component("attention, q and k norm", "2·d_head each", 2 * gains * config.d_head, layers))
    if config.gated:
        parts.append(linear("feed-forward, W_gate", "d_model·d_ff", c, f, config.ffn_bias))
    up, down = ("W_up", "W_down") if config.gated else ("W₁", "W₂")
    parts += [
        linear(f"feed-forward, {up}", "d_model·d_ff", c, f, config.ffn_bias),
        linear(f"feed-forward, {down}", "d_ff·d_model", f, c, config.ffn_bias),
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
        words = "tied to embeddings" if config.tied_head else "d_model·V"
        parts.append(Component("head, unembedding", words + (" + V" if config.head_bias else ""), each))
    return parts


def parameter_count(config: ModelConfig) -> int:
    """All parameters; tied weights count once."""
    return sum(part.total for part in parameter_parts(config))


@dataclass(frozen=True)
class Info(Report):
    """``family`` is the kind of the files, ``counted`` the parameters of the opened model, ``notes`` what is worth
    knowing of its files, ``card`` the model card of a built-in model.
    """

    KIND = "info"
    EVENTS: ClassVar = {"parameters": "component"}

    name: str
    config: ModelConfig
    family: str = "preset"
    counted: int | None = None
    notes: tuple[str, ...] = ()
    card: Mapping[str, Any] | None = None

    @cached_property
    def parts(self) -> list[Component]:
        return parameter_parts(self.config)

    @cached_property
    def total(self) -> int:
        return parameter_count(self.config)

    @property
    def holds(self) -> bool:
        """Whether the opened model has as many parameters as its configuration says."""
        return self.counted in (None, self.total)

    @cached_property
    def work(self) -> Work:
        """What one token costs at the full context."""
        return work_per_token(self.config, self.config.context)

    @property
    def memory_bytes(self) -> dict[str, int]:
        return {"fp32": 4 * self.total, "bf16": 2 * self.total}

    @property
    def cache_bytes(self) -> dict[str, int]:
        """Of the key-value cache, for one token; 0 in an encoder, which has none."""
        sizes = {"fp32": 4, "bf16": 2}
        return {name: cache_bytes_per_token(self.config, size) * self.config.causal for name, size in sizes.items()}

    def fields(self) -> dict[str, Any]:
        return {
            "model": self.name,
            **self.members("family", "notes"),
            **self.members("config"),
            "parameters": [{"component": part.name, **part.to_dict()} for part in self.parts],
            "total_parameters": self.total,
            "counted_parameters": self.counted,
            **self.members("memory_bytes"),
            "flops_per_token": {**vars(self.work), "total": self.work.total},
            "kv_cache_bytes_per_token": self.cache_bytes,
            "card": self.card,
        }
