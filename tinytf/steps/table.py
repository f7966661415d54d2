"""The step table: every step between text and prediction, what makes it, and where the model computes it.

The one source that the model's attention, recorder, check, taps, gradients, explanation, views, addresses, JSON and
documentation read. A step is listed for a model only where its architecture has it, layer by layer, since the layers of
one model may differ; for the others the table says why it is absent. The rows are free of torch, so that names can be
completed without it; those of a model have operations, which are not.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from tinytf.config import LATENT_EPS, ModelConfig

if TYPE_CHECKING:
    from types import ModuleType

    from tinytf.steps.operations import Operation, Parameter

Predicate = Callable[[ModelConfig], bool]
Make = Callable[["ModuleType", ModelConfig], "Operation"]
"""Makes an operation of a configuration, from the module of operations, which imports torch."""
Place = tuple[str, int | None]
"""A step of the table by its short name, and the layer where it is inside one."""

_NORM = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
_ACROSS = {"head": "in each head", "heads": "in each head, by its own gain", "all": "over all heads at once"}
ACTIVATION_NAMES = {
    "relu": "ReLU", "relu2": "ReLU²", "gelu": "GELU", "gelu_tanh": "GELU(tanh)", "silu": "SiLU", "tanh": "tanh",
}  # fmt: skip
"""What each activation of a configuration is called."""


@dataclass(frozen=True)
class Seen:
    """Where a step passes in the running model: what the module at ``path`` gives, or its input ``argument``.

    The path is from the block where the step is inside a layer (empty: the block itself), else from the model.
    """

    path: str
    argument: int | None = None


@dataclass(frozen=True)
class Step:
    """One row of the step table.

    ``name`` is short (``scores``); in a layer the full name is ``L0.scores``. ``inputs`` are short names too; one in
    <…> stands for the nearest row above with that role and axes (``CHAINS``). ``operation`` makes the step of them,
    with the parameters of ``module`` (a path as in ``Seen``), whose matrix or table is called ``matrix``, empty where
    a module has none. ``role`` is the accent that it has in every view. ``recorded`` steps are taken during the forward
    pass, where they are ``seen``; the others are derived from them on first look. A ``core`` step is one of the
    attention core, which runs the rows themselves; ``in_experts`` are those that a mixture of experts runs itself. A
    ``from_stream`` step is the residual stream after the layer before. ``to_loss`` is false where no loss depends on a
    step. A ``shared`` step has the same parameters in every layer.
    """

    name: str
    title: str
    formula: str
    axes: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    role: str = "residual"
    in_layer: bool = True
    recorded: bool = False
    when: Predicate = lambda _: True
    absent: str = ""
    make: "Make | None" = None
    module: str = ""
    matrix: str = "W"
    seen: Seen | None = None
    core: bool = False
    in_experts: bool = False
    from_stream: bool = False
    to_loss: bool = True
    shared: bool = False
    operation: "Operation | None" = None
    reads: str = ""

    def __reduce__(self) -> "tuple[Callable[..., Step], tuple[int, dict[str, object]]]":
        """Pickled by the number of its row in STEPS, whose functions have no names, and what is its own."""
        own = (self.name, self.when, self.make)
        number = next(i for i, row in enumerate(STEPS) if (row.name, row.when, row.make) == own)
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return _of_row, (number, {name: one for name, one in values.items() if one is not getattr(STEPS[number], name)})

    def full_name(self, layer: int | None) -> str:
        """``L0.scores`` for a step of a layer, else the name itself."""
        return f"L{layer}.{self.name}" if self.in_layer else self.name

    @property
    def parameter(self) -> str:
        """What addresses call its matrix, table or gain, which have a letter of their own or are called after it."""
        if self.make in (_norm, _head_norm, _latent_norm):
            return f"{self.name}.gain"
        if self.matrix == "W":
            return f"{self.name}.W"
        return f"{self.name.partition('.')[0]}.{self.matrix}" if self.role == "ffn" else self.matrix

    @property
    def has_heads(self) -> bool:
        return "head" in self.axes or "kv head" in self.axes

    @property
    def of_experts(self) -> bool:
        """Whether it has a tensor for each expert."""
        return self.axes[:1] == ("expert",)

    @property
    def token_axis(self) -> int | None:
        """The number of its axis of tokens, or of queries; None where it has neither."""
        return next((number for number, axis in enumerate(self.axes) if axis in ("token", "query")), None)

    @property
    def is_split(self) -> bool:
        """Whether an address may name a part of it: a head, or an expert."""
        return self.has_heads or self.of_experts

    @property
    def letter(self) -> str:
        """What stands before the number of a part in an address: L3H5, L3E5."""
        return "E" if self.of_experts else "H"

    def parts(self, config: ModelConfig) -> int:
        """How many heads, or experts, an address may name."""
        return config.experts if self.of_experts else config.n_heads

    def part_numbers(self, config: ModelConfig) -> range:
        """The parts that have a tensor of their own; query heads that share a key head count once."""
        if self.of_experts:
            return range(config.experts)
        return range(0, config.n_heads, config.heads_per_kv if "kv head" in self.axes else 1)

    @property
    def is_tensor(self) -> bool:
        return bool(self.axes)

    @property
    def is_map(self) -> bool:
        """Whether it has a number for every query and key."""
        return self.axes[-2:] == ("query", "key")

    @property
    def is_drawn(self) -> bool:
        """Whether it is a map to look at: of queries and keys, or of tokens and experts."""
        return self.is_map or self.axes == _ROUTES

    @property
    def is_vocabulary(self) -> bool:
        """Whether it has a number for every token of the vocabulary, or for every class of the head.

        Such a step is computed only for the positions asked for.
        """
        return self.axes[-1:] in (("vocab",), ("label",))

    @property
    def is_distribution(self) -> bool:
        """Whether each of its rows holds shares of 1, all of it or what a sink leaves."""
        return self.operation is not None and self.operation.distribution

    @property
    def is_choice(self) -> bool:
        """Whether it only decides: it has no gradient, and none goes through it."""
        return self.axes == _ROUTES and not self.to_loss

    @property
    def in_stream(self) -> bool:
        """Whether it is recorded in every layer and as wide as the residual stream: the stream, or what is added."""
        return self.in_layer and self.recorded and self.axes == _WIDE

    @property
    def can_intervene(self) -> bool:
        """Whether it can be ablated and patched: the residual stream, and what heads, attention, feed-forward give."""
        return self.in_stream or (self.core and self.recorded)

    @property
    def replaceable(self) -> bool:
        """Whether a tap may replace it: not where it is only seen as the input of a module."""
        return self.core or self.in_experts or (self.seen is not None and self.seen.argument is None)


def _of_row(number: int, own: dict[str, Any]) -> Step:
    return replace(STEPS[number], **own)


def _order(*orders: str) -> Predicate:
    return lambda config: config.norm_order in orders


def _normed_input(config: ModelConfig) -> bool:
    return config.norm_order in ("pre", "both") and config.input_norm


def _rotary(config: ModelConfig) -> bool:
    return config.positions == "rotary"


def _clipped(config: ModelConfig) -> bool:
    return config.clip_qkv > 0


def _has_head(config: ModelConfig) -> bool:
    return config.head.kind != "none"


def _capped_head(config: ModelConfig) -> bool:
    return _has_head(config) and config.logit_cap > 0


def _mixed(config: ModelConfig) -> bool:
    return config.experts > 0


def _dense(config: ModelConfig) -> bool:
    return not _mixed(config)


def _shared(config: ModelConfig) -> bool:
    return _mixed(config) and config.d_shared > 0


def _classes(config: ModelConfig) -> bool:
    return bool(config.labels)


def _head_dense(config: ModelConfig) -> bool:
    return config.head.kind == "mlm" or config.head_dense


def _head_normed(config: ModelConfig) -> bool:
    return config.head.kind == "mlm" or config.head_norm


def _scaled_head(config: ModelConfig) -> bool:
    return _has_head(config) and config.logit_scale != 1


def _scaled_residual(config: ModelConfig) -> bool:
    return config.residual_scale != 1


def _sequential(config: ModelConfig) -> bool:
    return config.residual == "sequential"


def _norm(o: "ModuleType", config: ModelConfig) -> "Operation":
    return o.Norm(config.norm == "layernorm", config.norm_eps, config.norm_parameters)


def _head_norm(o: "ModuleType", config: ModelConfig) -> "Operation":
    if config.qk_norm_across == "head":
        learned = config.norm_parameters if config.qk_norm_gain else ()
        return o.Norm(config.norm == "layernorm", config.norm_eps, learned)
    joint = config.qk_norm_across == "all"
    return o.HeadNorm(config.norm == "layernorm", config.norm_eps, config.norm_parameters, joint)


def _normed_first(config: ModelConfig) -> bool:
    return config.qk_norm and not config.qk_norm_last


def _normed_last(config: ModelConfig) -> bool:
    return config.qk_norm and config.qk_norm_last


def _weighed_first(config: ModelConfig) -> bool:
    return _mixed(config) and config.routes_first


def _latent(config: ModelConfig) -> bool:
    return config.kv_rank > 0


def _latent_norm(o: "ModuleType", config: ModelConfig) -> "Operation":
    return o.Norm(False, LATENT_EPS, ("gain",))


def _qkv(o: "ModuleType", config: ModelConfig) -> "Operation":
    return o.Linear(config.qkv_bias)


def _clip(o: "ModuleType", config: ModelConfig) -> "Operation":
    return o.Clip(config.clip_qkv)


def _ffn(o: "ModuleType", config: ModelConfig) -> "Operation":
    return o.Linear(config.ffn_bias)


def _expert(o: "ModuleType", config: ModelConfig) -> "Operation":
    return o.ExpertLinear(config.ffn_bias)


def _tokens_widened(config: ModelConfig) -> bool:
    return config.d_embed > 0 and not config.embed_norm


def _drops_masks(config: ModelConfig) -> bool:
    return config.masked_share > 0


def _sum_widened(config: ModelConfig) -> bool:
    return config.d_embed > 0 and config.embed_norm


def _narrow_lm(config: ModelConfig) -> bool:
    return config.d_embed > 0 and config.head.kind == "lm"


def _project(o: "ModuleType", config: ModelConfig) -> "Operation":
    return o.Linear(config.projection_bias)


def _activate(o: "ModuleType", config: ModelConfig) -> "Operation":
    limit = config.glu_limit
    return o.ClampedGlu(config.glu_alpha, limit) if limit else o.Activate(config.activation)


def _scale_added(o: "ModuleType", config: ModelConfig) -> "Operation":
    return o.Multiply(config.residual_scale)


def _unembed(o: "ModuleType", config: ModelConfig) -> "Operation":
    return o.Unembed(config.head_bias, config.tied_head)


def _class_shares(o: "ModuleType", config: ModelConfig) -> "Operation":
    if config.head.kind == "question":
        return o.TokenSoftmax()
    return o.Sigmoid() if config.decides == "several" else o.VocabularySoftmax()


def _distant(matrices: bool, *, keys: bool) -> Predicate:
    """Whether keys, or queries, are made of the embeddings of distances, by matrices of their own or by the tokens'."""
    asked = "distance_keys" if keys else "distance_queries"
    return lambda config: getattr(config, asked) and config.distance_matrices == matrices


def _by_distance(o: "ModuleType", config: ModelConfig, of_keys: bool) -> "Operation":
    return o.ByDistance(config.distances, config.farthest, of_keys)


def _scale(o: "ModuleType", config: ModelConfig) -> "Operation":
    called = "divisor" if config.attention_divisor else "√d_head"
    return o.Scale(config.score_divisor, called, config.score_divisor_words)


_WIDE = ("token", "d_model")
_EMBEDDED, _SUMMED, _HEAD = ("token", "<embedded>"), ("token", "<summed>"), ("token", "<head>")
"""As wide as the token embeddings, and as their sum with positions and types; see ``ModelConfig.d_embed``."""
_HEADS = ("head", "token", "d_head")
_KV = ("kv head", "token", "d_head")
_VALUES = ("kv head", "token", "d_value")
_MAP = ("head", "query", "key")
_SINK = ("head", "query", "sink")
_DISTANCES = ("distance", "d_model")
_OF_DISTANCES = ("head", "distance", "d_head")
_HIDDEN = ("token", "d_ff")
_ROUTES = ("token", "expert")
_OF_EXPERTS = ("expert", "token", "d_expert")
_SHARED = ("token", "d_shared")
_VOCABULARY = ("token", "vocab")
_CLASSES = ("token", "label")
_NO_HEAD = "this model has no language-model head"
_NO_HEAD_DENSE = "the head of this model has no dense layer"
_NO_OUTPUT_NORM = "what attention and the feed-forward add is not normed in this model"
_NO_EXPERTS = "this layer has no experts: one feed-forward takes every token"
_NO_SHARED = "no expert takes every token in this model"
_NO_DENSE = "this layer has experts in the place of one feed-forward; see expert.hidden"
_NOT_SCALED = "what attention and the feed-forward add is not scaled in this model"
_NOT_LATENT = "keys and values are made of the stream directly in this model"
_NO_Q_RANK = "queries are made of the stream directly in this model"
_NO_QK_NORM = "queries and keys are not normed in this model"

_NO_DISTANCES = "scores do not depend on embeddings of distances in this model"
_NOT_CLIPPED = "queries, keys and values are not clipped in this model"

RENAMED = {"heads": "head_out"}
"""Former names, which scripts and recordings may still use, to the present ones."""

CHAINS: dict[str, tuple[str, tuple[str, ...]]] = {
    "<residual>": ("residual", _WIDE),
    "<q>": ("q", _HEADS),
    "<k>": ("k", _KV),
    "<map>": ("attention", _MAP),
    "<v>": ("v", _VALUES),
    "<attn>": ("attention", _WIDE),
    "<ffn>": ("ffn", _WIDE),
}
"""What an input in <…> stands for: the nearest row above with this role and these axes."""

STEPS: tuple[Step, ...] = (
    Step("tokens", "tokens", "text → pieces", (), role="embed", in_layer=False, recorded=True),
    Step("ids", "token ids", "piece → id", (), ("tokens",), role="embed", in_layer=False, recorded=True),
    Step("embed.tokens", "token embeddings", "E[ids]{embed_scale}", _EMBEDDED, ("ids",), "embed", False, True,
         make=lambda o, _: o.Lookup(), module="embed.tokens", matrix="E",
         seen=Seen("embed.tokens")),
    Step("embed.projected", "token embeddings, projected", "tokens·W_in{projection_bias}", _WIDE, ("embed.tokens",),
         "embed", False, when=_tokens_widened, absent="{not_widened}",
         make=_project, module="embed.projection", matrix="W_in", seen=Seen("embed.projection")),
    Step("embed.kept", "token embeddings, but for masks", "tokens · (1 − {masked_share}) / (1 − masks / T), 0 at masks",
         _EMBEDDED, ("embed.tokens",), "embed", False, when=_drops_masks,
         absent="masks have embeddings like other tokens in this model",
         make=lambda o, c: o.Keep(c.masked_share, c.mask_id), seen=Seen("embed.kept")),
    Step("embed.positions", "positions", "{position_formula}", _SUMMED, (), "embed", False, True,
         when=lambda c: c.positions.startswith(("learned", "sinusoidal")),
         absent="{no_added_positions}",
         make=lambda o, c: o.Positions(c.positions == "learned", c.position_offset, c.positions.endswith("halves")),
         module="embed.positions", matrix="P", seen=Seen("embed.positions")),
    Step("embed.types", "token types", "S[type]", _SUMMED, (), "embed", False, True,
         when=lambda c: c.n_token_types > 0, absent="this model has no token types",
         make=lambda o, _: o.Lookup(types=True), module="embed.types", matrix="S", seen=Seen("embed.types")),
    Step("embed.sum", "embeddings, summed", "{embed_sum}", _SUMMED, ("<embeddings>",), "embed", False,
         when=lambda c: c.embed_norm, absent="embeddings are not normed in this model; their sum is embed.out",
         make=lambda o, _: o.Add(), seen=Seen("embed.norm", 0)),
    Step("embed.norm", "embedding norm", "{norm}(sum)", _SUMMED, ("embed.sum",), "residual", False, True,
         when=lambda c: c.embed_norm, absent="embeddings are not normed in this model",
         make=_norm, module="embed.norm", seen=Seen("embed.norm")),
    Step("embed.out", "embeddings, projected", "x₀ = embed.norm·W_in{projection_bias}", _WIDE, ("embed.norm",),
         "residual", False, True, when=_sum_widened, absent="{not_widened}",
         make=_project, module="embed.projection", matrix="W_in", seen=Seen("embed")),
    Step("embed.out", "embeddings", "x₀ = {embed_sum}", _WIDE, ("<embeddings>",), "residual", False, True,
         when=lambda c: not c.embed_norm, make=lambda o, _: o.Add(), seen=Seen("embed")),
    Step("in", "block input", "x", _WIDE, (), recorded=True, make=lambda o, _: o.Add(),
         seen=Seen("", 0), from_stream=True),
    Step("norm1", "norm before attention", "n = {norm}(x)", _WIDE, ("in",), when=_normed_input,
         make=_norm, module="norm1", seen=Seen("norm1")),
    Step("q_a", "queries, compressed", "{attn_in}·W_QA", ("token", "q_rank"), ("<residual>",), "q", absent=_NO_Q_RANK,
         when=lambda c: c.q_rank > 0, make=_qkv, module="attention.q_a", matrix="W_QA", seen=Seen("attention.q_a")),
    Step("q_a_norm", "queries, compressed and normed", "RMSNorm(q_a)", ("token", "q_rank"), ("q_a",), "q",
         when=lambda c: c.q_rank > 0, absent=_NO_Q_RANK, make=_latent_norm, module="attention.q_a_norm",
         seen=Seen("attention.q_a_norm")),
    Step("q", "queries", "{q_in}·W_Q{qkv_bias}", _HEADS, ("<into q>",), "q", recorded=True,
         make=_qkv, module="attention.q", matrix="W_Q", seen=Seen("attention.q")),
    Step("kv_a", "keys and values, compressed", "{attn_in}·W_KVA", ("token", "kv_rank"), ("<residual>",), "k",
         when=_latent, absent=_NOT_LATENT, make=_qkv, module="attention.kv_a", matrix="W_KVA",
         seen=Seen("attention.kv_a")),
    Step("kv_a_norm", "keys and values, compressed and normed", "RMSNorm(kv_a)", ("token", "kv_rank"), ("kv_a",), "k",
         when=_latent, absent=_NOT_LATENT, make=_latent_norm, module="attention.kv_a_norm",
         seen=Seen("attention.kv_a_norm")),
    Step("k_shared", "keys, the part of all heads", "{attn_in}·W_KR", ("token", "d_shared_key"), ("<residual>",), "k",
         when=_latent, absent=_NOT_LATENT, make=_qkv, module="attention.k_shared", matrix="W_KR",
         seen=Seen("attention.k_shared")),
    Step("k_own", "keys, the part of each head", "kv_a_norm·W_K", ("kv head", "token", "d_own"), ("kv_a_norm",), "k",
         when=_latent, absent=_NOT_LATENT, make=_qkv, module="attention.k", matrix="W_K", seen=Seen("attention.k")),
    Step("k", "keys, both parts", "[k_shared | k_own]", _KV, ("k_shared", "k_own"), "k", recorded=True, when=_latent,
         make=lambda o, _: o.Join(), seen=Seen("attention.join")),
    Step("k", "keys", "{attn_in}·W_K{qkv_bias}", _KV, ("<residual>",), "k", recorded=True,
         when=lambda c: not _latent(c), make=_qkv, module="attention.k", matrix="W_K", seen=Seen("attention.k")),
    Step("v", "values", "{v_in}·W_V{qkv_bias}", _VALUES, ("<into v>",), "v", recorded=True,
         make=_qkv, module="attention.v", matrix="W_V", seen=Seen("attention.v")),
    Step("q_norm", "queries, normed", "{norm}(q) {across}", _HEADS, ("<q>",), "q", when=_normed_first,
         absent=_NO_QK_NORM, make=_head_norm, module="attention.q_norm", seen=Seen("attention.q_norm")),
    Step("k_norm", "keys, normed", "{norm}(k) {across}", _KV, ("<k>",), "k", when=_normed_first,
         absent=_NO_QK_NORM, make=_head_norm, module="attention.k_norm", seen=Seen("attention.k_norm")),
    Step("q_clip", "queries, clipped", "q within ±{clip_qkv}", _HEADS, ("<q>",), "q", when=_clipped,
         absent=_NOT_CLIPPED, make=_clip, seen=Seen("attention.q_clip")),
    Step("k_clip", "keys, clipped", "k within ±{clip_qkv}", _KV, ("<k>",), "k", when=_clipped,
         absent=_NOT_CLIPPED, make=_clip, seen=Seen("attention.k_clip")),
    Step("v_clip", "values, clipped", "v within ±{clip_qkv}", _VALUES, ("<v>",), "v", when=_clipped,
         absent=_NOT_CLIPPED, make=_clip, seen=Seen("attention.v_clip")),
    Step("q_rot", "queries, rotated", "q turned by its position", _HEADS, ("<q>",), "q", when=_rotary,
         absent="{no_rotary}", make=lambda o, c: o.Rotate(c.rope),
         seen=Seen("attention.q_turned", 0)),
    Step("k_rot", "keys, rotated", "k turned by its position", _KV, ("<k>",), "k", when=_rotary,
         absent="{no_rotary}", make=lambda o, c: o.Rotate(c.rope),
         seen=Seen("attention.k_turned", 0)),
    Step("q_norm", "queries, normed last", "{norm}({inputs}) {across}", _HEADS, ("<q>",), "q", when=_normed_last,
         make=_head_norm, module="attention.q_norm", seen=Seen("attention.q_norm")),
    Step("k_norm", "keys, normed last", "{norm}({inputs}) {across}", _KV, ("<k>",), "k", when=_normed_last,
         make=_head_norm, module="attention.k_norm", seen=Seen("attention.k_norm")),
    Step("q_scaled", "queries, scaled by position", "{inputs} · (1 + {query_scale})", _HEADS, ("<q>",), "q",
         when=lambda c: c.query_scale > 0, absent="queries are not scaled by their position in this layer",
         make=lambda o, c: o.Grow(c.query_scale, c.query_scale_every, c.query_scale_first),
         seen=Seen("attention.core", 0)),
    Step("distances", "embeddings of distances", "R", _DISTANCES, (), "embed", when=lambda c: c.distances > 0,
         absent=_NO_DISTANCES, make=lambda o, _: o.Table(), module="attention.distances", matrix="R",
         seen=Seen("attention.distances"), shared=True),
    Step("distances_norm", "embeddings of distances, normed", "n = {norm}(R)", _DISTANCES, ("distances",), "embed",
         when=lambda c: c.distance_norm, absent="{no_distance_norm}", make=_norm, module="attention.distances_norm",
         seen=Seen("attention.distances_norm"), shared=True),
    Step("pos_k", "keys of distances, as of tokens", "{distances}·W_K{qkv_bias}", _OF_DISTANCES, ("<distances>",), "k",
         when=_distant(False, keys=True), make=_qkv, module="attention.k", matrix="W_K", seen=Seen("attention.pos_k")),
    Step("pos_k", "keys of distances", "{distances}·W_KD{qkv_bias}", _OF_DISTANCES, ("<distances>",), "k",
         when=_distant(True, keys=True), absent="{no_distance_keys}", make=_qkv, module="attention.pos_k",
         matrix="W_KD", seen=Seen("attention.pos_k")),
    Step("pos_q", "queries of distances, as of tokens", "{distances}·W_Q{qkv_bias}", _OF_DISTANCES, ("<distances>",),
         "q", when=_distant(False, keys=False), make=_qkv, module="attention.q", matrix="W_Q",
         seen=Seen("attention.pos_q")),
    Step("pos_q", "queries of distances", "{distances}·W_QD{qkv_bias}", _OF_DISTANCES, ("<distances>",), "q",
         when=_distant(True, keys=False), absent="{no_distance_queries}", make=_qkv, module="attention.pos_q",
         matrix="W_QD", seen=Seen("attention.pos_q")),
    Step("scores", "attention scores", "q·kᵀ", _MAP, ("<q>", "<k>"), "attention", core=True,
         make=lambda o, _: o.Scores()),
    Step("c2p", "scores, with content to position", "{map} + q·pos_k[query − key]", _MAP, ("<map>", "<q>", "pos_k"),
         "attention", core=True, when=lambda c: c.distance_keys, absent="queries score no distances in this model",
         make=lambda o, c: _by_distance(o, c, of_keys=False)),
    Step("p2c", "scores, with position to content", "{map} + k·pos_q[query − key]", _MAP, ("<map>", "<k>", "pos_q"),
         "attention", core=True, when=lambda c: c.distance_queries, absent="keys score no distances in this model",
         make=lambda o, c: _by_distance(o, c, of_keys=True)),
    Step("scaled", "scaled scores", "{scale}", _MAP, ("<map>",), "attention", core=True, make=_scale,
         when=lambda c: c.score_divisor != 1, absent="attention scores are not scaled in this model"),
    Step("capped", "scores, capped", "{attention_cap}·tanh({map} / {attention_cap})", _MAP, ("<map>",), "attention",
         core=True, when=lambda c: c.attention_cap > 0, absent="attention scores are not capped in this model",
         make=lambda o, c: o.Cap(c.attention_cap)),
    Step("relative", "scores, with a bias of distance", "{map} + B[bucket(key − query)]", _MAP, ("<map>",), "attention",
         core=True, when=lambda c: c.relative_buckets > 0, absent="scores have no learned bias in this model",
         make=lambda o, c: o.RelativeBias(c.relative_buckets), module="attention.relative", matrix="B", shared=True),
    Step("biased", "scores, less by distance", "{map} − slope·(query − key){alibi_scale}", _MAP, ("<map>",),
         "attention", core=True, when=lambda c: c.positions == "alibi",
         absent="attention scores do not fall with distance in this model",
         make=lambda o, c: o.Alibi(c.n_heads, c.alibi_max_bias, c.alibi_scale, c.alibi_rounded)),
    Step("masked", "masked scores", "{map}, −∞ where {hidden}", _MAP, ("<map>",), "attention", core=True,
         when=lambda c: not c.looks_ahead or c.window > 0,
         absent="this model looks both ways and the text has no padding, so nothing is masked",
         make=lambda o, c: o.Mask(o.Sight.of(c))),
    Step("sink", "share of the sink", "e^s / (e^s + Σ e^{map})", _SINK, ("<map>",), "attention", core=True,
         when=lambda c: c.attention_sinks, absent="attention has no sinks in this model: keys share all of it",
         make=lambda o, _: o.Sink(), module="attention.sink", matrix="sink.logit"),
    Step("weights", "attention weights", "softmax({map}), each row sums to 1", _MAP, ("<map>",), "attention",
         when=lambda c: not c.attention_sinks, make=lambda o, _: o.Softmax(), core=True),
    Step("weights", "attention weights beside the sink", "softmax({map})·(1 − sink), each row sums to 1 − sink", _MAP,
         ("<map>", "sink"), "attention", when=lambda c: c.attention_sinks,
         make=lambda o, _: o.SunkSoftmax(), core=True),
    Step("head_out", "weighted values", "weights·{values}", ("head", "token", "d_value"), ("weights", "<v>"), "v",
         recorded=True, make=lambda o, _: o.Mix(), seen=Seen("attention.core"), core=True),
    Step("concat", "heads side by side", "[head 0 | … | head {last_head}]", ("token", "n_heads·d_value"), ("head_out",),
         "v", make=lambda o, _: o.Concat(), seen=Seen("attention.o", 0)),
    Step("attn", "attention output", "concat·W_O{o_bias}", _WIDE, ("concat",), "attention", recorded=True,
         make=lambda o, c: o.Linear(c.o_bias), module="attention.o", matrix="W_O",
         seen=Seen("attention")),
    Step("attn_norm", "attention output, normed", "{norm}(attn)", _WIDE, ("attn",), "attention",
         when=_order("both", "output"), absent=_NO_OUTPUT_NORM,
         make=_norm, module="attn_norm", seen=Seen("attn_norm")),
    Step("attn_scaled", "attention output, scaled", "{inputs} · {residual_scale}", _WIDE, ("<attn>",), "attention",
         when=_scaled_residual, absent=_NOT_SCALED, make=_scale_added, seen=Seen("attn_scale")),
    Step("mid", "residual after attention", "{inputs}", _WIDE, ("in", "<attn>"),
         when=_sequential, absent="attention and feed-forward read the same stream in this model, side by side",
         make=lambda o, _: o.Add(), seen=Seen("<mid>", 0)),
    Step("norm1", "norm after attention", "n = {norm}(mid)", _WIDE, ("mid",), when=_order("post"),
         absent="what goes into attention and the feed-forward is not normed in this model",
         make=_norm, module="norm1", seen=Seen("norm1")),
    Step("norm2", "norm before feed-forward", "n = {norm}({ffn_stream})", _WIDE, ("<read>",),
         when=lambda c: c.norm_order in ("pre", "both") and not c.shared_norm, absent="{no_norm2}",
         make=_norm, module="norm2", seen=Seen("norm2")),
    Step("ffn.hidden", "feed-forward, expanded", "{ffn_in}·{w_up}{ffn_bias_1}", _HIDDEN, ("<residual>",), "ffn",
         recorded=True, when=_dense, absent=_NO_DENSE, make=_ffn, module="ffn.up",
         matrix="{w_up}", seen=Seen("ffn.up")),
    Step("ffn.gate", "feed-forward, gate", "{ffn_in}·W_gate{ffn_bias_g}", _HIDDEN, ("<residual>",), "ffn",
         recorded=True, when=lambda c: _dense(c) and c.gated, absent="{no_gate}",
         make=_ffn, module="ffn.gate", matrix="W_gate", seen=Seen("ffn.gate")),
    Step("ffn.act", "feed-forward, activated", "{act}", _HIDDEN, ("<activated>",), "ffn",
         when=_dense, absent=_NO_DENSE, make=_activate, seen=Seen("ffn.down", 0)),
    Step("ffn", "feed-forward output", "act·{w_down}{ffn_bias_2}", _WIDE, ("ffn.act",), "ffn", recorded=True,
         when=_dense, absent=_NO_DENSE, make=_ffn, module="ffn.down", matrix="{w_down}",
         seen=Seen("ffn")),
    Step("ffn.router", "router", "{ffn_in}·W_router{router_bias}", _ROUTES, ("<residual>",), "ffn", recorded=True,
         when=_mixed, absent=_NO_EXPERTS, make=lambda o, c: o.Linear(c.router_bias), module="ffn.router",
         matrix="W_router", seen=Seen("ffn.router")),
    Step("ffn.preference", "preference among experts", "{score}(router) + b", _ROUTES, ("ffn.router",), "ffn",
         when=lambda c: _mixed(c) and c.choice_bias, absent="experts are chosen by the router alone in this model",
         make=lambda o, c: o.Prefer(c.router), module="ffn.preference", matrix="", in_experts=True, to_loss=False),
    Step("ffn.chosen", "chosen experts", "1 for the {per_token} largest of {decides}, else 0", _ROUTES, ("<decides>",),
         "ffn", when=_mixed, absent=_NO_EXPERTS, make=lambda o, c: o.Choose(c.experts_per_token), in_experts=True,
         to_loss=False),
    Step("ffn.routes", "weights of the chosen experts", "{routes}", _ROUTES, ("ffn.router", "ffn.chosen"), "ffn",
         when=_mixed, absent=_NO_EXPERTS, in_experts=True,
         make=lambda o, c: o.Route(c.router, c.routes_renormed, c.routed_scale)),
    Step("expert.in", "what an expert takes", "routes ⊙ {ffn_in}", ("expert", *_WIDE), ("<residual>", "ffn.routes"),
         "ffn", when=_weighed_first, absent="{no_expert_in}", make=lambda o, _: o.Weigh(), in_experts=True),
    Step("expert.hidden", "expert, expanded", "{expert_in}·{w_up}{ffn_bias_1} where chosen, else 0", _OF_EXPERTS,
         ("<into expert>", "ffn.chosen"), "ffn", when=_mixed, absent=_NO_EXPERTS, make=_expert, module="ffn.experts.up",
         matrix="{w_up}", in_experts=True),
    Step("expert.gate", "expert, gate", "{expert_in}·W_gate{ffn_bias_g} where chosen, else 0", _OF_EXPERTS,
         ("<into expert>", "ffn.chosen"), "ffn", when=lambda c: _mixed(c) and c.gated, absent=_NO_EXPERTS, make=_expert,
         module="ffn.experts.gate", matrix="W_gate", in_experts=True),
    Step("expert.act", "expert, activated", "{act}", _OF_EXPERTS, ("<of expert>",), "ffn", when=_mixed,
         absent=_NO_EXPERTS, make=_activate, in_experts=True),
    Step("expert.out", "expert output", "act·{w_down}{ffn_bias_2} where chosen, else 0", ("expert", *_WIDE),
         ("expert.act", "ffn.chosen"), "ffn", when=_mixed, absent=_NO_EXPERTS, make=_expert, module="ffn.experts.down",
         matrix="{w_down}", in_experts=True),
    Step("expert.added", "what an expert adds", "routes ⊙ out", ("expert", *_WIDE), ("expert.out", "ffn.routes"), "ffn",
         when=lambda c: _mixed(c) and not c.routes_first, absent="{no_expert_added}", make=lambda o, _: o.Weigh(),
         in_experts=True),
    Step("ffn", "experts, summed", "Σ {inputs}", _WIDE, ("<of experts>",), "ffn", recorded=True,
         when=lambda c: _mixed(c) and not _shared(c), make=lambda o, _: o.SumExperts(),
         seen=Seen("ffn")),
    Step("ffn.mixed", "experts, summed", "Σ {inputs}", _WIDE, ("<of experts>",), "ffn", when=_shared,
         absent=_NO_SHARED, make=lambda o, _: o.SumExperts(), in_experts=True),
    Step("shared.hidden", "shared expert, expanded", "{ffn_in}·{w_up}{ffn_bias_1}", _SHARED, ("<residual>",), "ffn",
         recorded=True, when=_shared, absent=_NO_SHARED, make=_ffn, module="ffn.shared.up", matrix="{w_up}",
         seen=Seen("ffn.shared.up")),
    Step("shared.gate", "shared expert, gate", "{ffn_in}·W_gate{ffn_bias_g}", _SHARED, ("<residual>",), "ffn",
         recorded=True, when=lambda c: _shared(c) and c.gated, absent=_NO_SHARED, make=_ffn, module="ffn.shared.gate",
         matrix="W_gate", seen=Seen("ffn.shared.gate")),
    Step("shared.act", "shared expert, activated", "{act}", _SHARED, ("<of shared>",), "ffn", when=_shared,
         absent=_NO_SHARED, make=_activate, seen=Seen("ffn.shared.down", 0)),
    Step("shared.out", "shared expert output", "act·{w_down}{ffn_bias_2}", _WIDE, ("shared.act",), "ffn", when=_shared,
         absent=_NO_SHARED, make=_ffn, module="ffn.shared.down", matrix="{w_down}", seen=Seen("ffn.shared")),
    Step("shared.score", "score of the shared expert", "{ffn_in}·W_score", ("token", "switch"), ("<residual>",), "ffn",
         when=lambda c: _shared(c) and c.shared_gate, absent=_NO_SHARED, make=lambda o, _: o.Linear(False),
         module="ffn.shared_score", matrix="W_score", seen=Seen("ffn.shared_score")),
    Step("shared.added", "what the shared expert adds", "σ(score) ⊙ out", _WIDE, ("shared.out", "shared.score"), "ffn",
         when=lambda c: _shared(c) and c.shared_gate, absent=_NO_SHARED, make=lambda o, _: o.Switch(),
         seen=Seen("ffn.switch")),
    Step("ffn", "experts and shared expert", "{inputs}", _WIDE, ("ffn.mixed", "<shared>"), "ffn", recorded=True,
         when=_shared, make=lambda o, _: o.Add(), seen=Seen("ffn")),
    Step("ffn_norm", "feed-forward output, normed", "{norm}(ffn)", _WIDE, ("ffn",), "ffn",
         when=_order("both", "output"), absent=_NO_OUTPUT_NORM,
         make=_norm, module="ffn_norm", seen=Seen("ffn_norm")),
    Step("ffn_scaled", "feed-forward output, scaled", "{inputs} · {residual_scale}", _WIDE, ("<ffn>",), "ffn",
         when=_scaled_residual, absent=_NOT_SCALED, make=_scale_added, seen=Seen("ffn_scale")),
    Step("out", "block output", "{inputs}", _WIDE, ("<added>",), recorded=True, when=_order("pre", "both", "output"),
         make=lambda o, _: o.Add(), seen=Seen("")),
    Step("sum", "residual after feed-forward", "{inputs}", _WIDE, ("norm1", "<ffn>"), when=_order("post"), absent=
         "this model norms before each part; the sum is out", make=lambda o, _: o.Add(), seen=Seen("norm2", 0)),
    Step("norm2", "norm after feed-forward, the block's output", "{norm}(sum)", _WIDE, ("sum",), recorded=True,
         when=_order("post"), make=_norm, module="norm2", seen=Seen("")),
    Step("final.norm", "final norm", "{norm}(x)", _WIDE, (), "residual", False, True, when=lambda c: c.final_norm,
         absent="norms come after the residual sums in this model, so the last block's norm2 is the last",
         make=_norm, module="final_norm", seen=Seen("final_norm"),
         from_stream=True),
    Step("pooled", "pooled first token", "tanh(W·x[0] + b)", ("d_model",), ("<final>",), "output", False,
         when=lambda c: c.pooler, absent="this model has no pooler", make=lambda o, _: o.Pooled(True), module="pooler",
         to_loss=False),
    Step("head.projected", "hidden state, projected", "x·W_out{projection_bias}", _EMBEDDED, ("<final>",), "output",
         False, when=_narrow_lm, absent="the hidden state is as wide as the embeddings in this model",
         make=_project, module="head.projection", matrix="W_out", seen=Seen("head.projection")),
    Step("head.dense", "head, dense", "x·W{dense_bias}", _HEAD, ("<final>",), "output", False, when=_head_dense,
         absent=_NO_HEAD_DENSE, make=lambda o, c: o.Linear(c.head_dense_bias), module="head.dense",
         seen=Seen("head.dense")),
    Step("head.act", "head, activated", "{head_act}(dense)", _HEAD, ("head.dense",), "output", False, when=_head_dense,
         absent=_NO_HEAD_DENSE, make=lambda o, c: o.Activate(c.head_activation), seen=Seen("<acted>", 0)),
    Step("head.norm", "head, norm", "{norm}(act)", _HEAD, ("<acted>",), "output", False, when=_head_normed,
         absent="the head of this model has no norm", make=_norm, module="head.norm", seen=Seen("head.norm")),
    Step("head.logits", "logits before the cap", "{logits_in}·{unembed}{head_bias}", _VOCABULARY, ("<logits>",),
         "output", False, when=_capped_head,
         make=_unembed, module="head.decoder", matrix="{matrix}", seen=Seen("head.decoder")),
    Step("logits", "logits, capped", "{logit_cap}·tanh(head.logits / {logit_cap})", _VOCABULARY, ("head.logits",),
         "output", False, True, when=_capped_head, make=lambda o, c: o.Cap(c.logit_cap), seen=Seen("head")),
    Step("head.logits", "logits before the scale", "{logits_in}·{unembed}{head_bias}", _VOCABULARY, ("<logits>",),
         "output", False, when=_scaled_head, absent="logits are neither capped nor scaled in this model",
         make=_unembed, module="head.decoder", matrix="{matrix}", seen=Seen("head.decoder")),
    Step("logits", "logits, scaled", "{logit_scale} · head.logits", _VOCABULARY, ("head.logits",), "output", False,
         True, when=_scaled_head, make=lambda o, c: o.Multiply(c.logit_scale), seen=Seen("head")),
    Step("logits", "logits", "{logits_in}·{unembed}{head_bias}", _VOCABULARY, ("<logits>",), "output", False, True,
         when=lambda c: c.predicts_tokens and not (_capped_head(c) or _scaled_head(c)), absent=_NO_HEAD,
         make=_unembed, module="head.decoder", matrix="{matrix}", seen=Seen("head")),
    Step("logits", "logits of the classes", "{logits_in}·W_U{head_bias}", _CLASSES, ("<logits>",), "output", False,
         True, when=_classes, make=_unembed, module="head.decoder", matrix="W_U", seen=Seen("head")),
    Step("probs", "probabilities", "softmax(logits)", _VOCABULARY, ("logits",), "output", False,
         when=lambda c: c.predicts_tokens, absent="{no_probs}", make=lambda o, _: o.VocabularySoftmax(), to_loss=False),
    Step("probs", "probabilities of the classes", "{class_shares}", _CLASSES, ("logits",), "output", False,
         when=lambda c: _classes(c) and c.decides != "number", make=_class_shares, to_loss=False),
    Step("next", "prediction", "{prediction}", (), ("<shares>",), "output", False, when=_has_head, absent=_NO_HEAD,
         to_loss=False),
)  # fmt: skip


def _words(config: ModelConfig) -> dict[str, str]:
    """The words that the formulas of the table have for this model."""
    bias, offset, parallel = config.ffn_bias, config.position_offset, not _sequential(config)
    added = [name.partition(".")[2] for name in _embeddings(config)]
    unplaced = {
        "none": "it has no positions",
        "alibi": "this model has ALiBi, by which scores fall with distance; see biased",
    }.get(config.positions, "")
    attn_in = "n" if _normed_input(config) else "x"
    return {
        "norm": _NORM[config.norm],
        "across": _ACROSS[config.qk_norm_across],
        "no_rotary": unplaced or f"positions are {config.positions}, added to the embeddings, so nothing is rotated",
        "no_added_positions": unplaced
        or "positions are rotary: RoPE turns q and k in every layer; see q_rot and k_rot",
        "position_formula": (f"P[{offset}…T+{offset - 1}], learned" if offset else "P[0…T−1], learned")
        if config.positions == "learned"
        else f"sin | cos(pos / 10000^(2i/{config.d_model}))"
        if config.positions == "sinusoidal"
        else f"[sin | cos]((pos + {offset}) / 10000^(i/{config.d_model // 2 - 1}))",
        "embed_scale": "" if config.embed_scale == 1.0 else f" · {config.embed_scale:.4g}",
        "masked_share": f"{config.masked_share:g}",
        "embed_sum": " + ".join(added),
        "attn_in": attn_in,
        "q_in": "q_a_norm" if config.q_rank else attn_in,
        "v_in": "kv_a_norm" if _latent(config) else attn_in,
        "qkv_bias": " + b" if config.qkv_bias else "",
        "o_bias": " + b" if config.o_bias else "",
        "scale": f"{_scored(config)} / {config.score_divisor_words}"
        + ("" if config.attention_divisor else f" = {_scored(config)} / {config.score_divisor:.4g}"),
        "distances": "n" if config.distance_norm else "R",
        "no_distance_norm": "embeddings of distances are not normed in this model"
        if config.distances
        else _NO_DISTANCES,
        "no_distance_keys": _no_matrix(config, config.distance_keys, "keys", "W_K"),
        "no_distance_queries": _no_matrix(config, config.distance_queries, "queries", "W_Q"),
        "query_scale": _query_scale(config),
        "attention_cap": f"{config.attention_cap:g}",
        "residual_scale": f"{config.residual_scale:g}",
        "logit_cap": f"{config.logit_cap:g}",
        "logit_scale": f"{config.logit_scale:.4g}",
        "no_norm2": "attention and the feed-forward share norm1 in this model"
        if config.shared_norm
        else "what goes into attention and the feed-forward is not normed in this model",
        "ffn_stream": "x" if parallel else "mid",
        "ffn_in": "mid" if config.norm_order == "output" else "n",
        "expert_in": "in" if config.routes_first else "mid" if config.norm_order == "output" else "n",
        "no_expert_in": "experts take what the router reads in this model; see ffn.router"
        if _mixed(config)
        else _NO_EXPERTS,
        "no_expert_added": "the weights multiply what experts take in this model; see expert.in"
        if _mixed(config)
        else _NO_EXPERTS,
        "w_up": "W_up" if config.gated else "W₁",
        "w_down": "W_down" if config.gated else "W₂",
        "ffn_bias_1": " + b₁" if bias else "",
        "ffn_bias_g": " + b" if bias else "",
        "ffn_bias_2": " + b₂" if bias else "",
        "act": _act_words(config),
        "no_gate": _NO_DENSE if _mixed(config) else "the feed-forward of this model has no gate",
        "per_token": str(config.experts_per_token),
        "decides": "preference" if config.choice_bias else "router",
        "score": "softmax" if config.router == "softmax" else "σ",
        "router_bias": " + b" if config.router_bias else "",
        "routes": _routes_words(config),
        "hidden": _hidden(config),
        "head_act": ACTIVATION_NAMES[config.head_activation],
        "alibi_scale": "" if config.alibi_scale == 1 else f"·{config.alibi_scale:.4g}",
        "clip_qkv": f"{config.clip_qkv:g}",
        "values": "v_clip" if config.clip_qkv else "v",
        "last_head": str(config.n_heads - 1),
        "projection_bias": " + b" if config.projection_bias else "",
        "not_widened": "the sum of the embeddings is projected in this model, as embed.out"
        if _sum_widened(config)
        else "token embeddings are as wide as the residual stream in this model",
        "logits_in": _unembedded(config).replace("head.act", "act") or "x",
        "unembed": "Eᵀ" if config.tied_head else "W_U",
        "matrix": "E" if config.tied_head else "W_U",
        "dense_bias": " + b" if config.head_dense_bias else "",
        "head_bias": " + b" if config.head_bias else "",
        "prediction": _PREDICTIONS.get(
            "mlm" if config.head.kind == "lm" and not config.causal else config.head.kind, ""
        ),
        "class_shares": "softmax(logits) over the tokens"
        if config.head.kind == "question"
        else "σ(logits)"
        if config.decides == "several"
        else "softmax(logits)",
        "no_probs": "the head of this model gives a number" if config.decides == "number" else _NO_HEAD,
    }


def _query_scale(config: ModelConfig) -> str:
    """How the query at position t grows."""
    place = f"(t + {config.query_scale_first})" if config.query_scale_first else "t"
    return f"{config.query_scale:g}·ln(1 + ⌊{place} / {config.query_scale_every:,}⌋)"


def _scored(config: ModelConfig) -> str:
    """What is divided by the divisor of scores."""
    return "p2c" if config.distance_queries else "c2p" if config.distance_keys else "scores"


def _no_matrix(config: ModelConfig, made: bool, what: str, matrix: str) -> str:
    """Why there is no matrix by which ``what`` are made of the embeddings of distances."""
    if made:
        return f"{what} of distances are made by {matrix} in this model, as those of tokens"
    return f"no {what} are made of distances in this model" if config.distances else _NO_DISTANCES


def _act_words(config: ModelConfig) -> str:
    """What is made of gate and hidden units."""
    act = ACTIVATION_NAMES[config.activation]
    if config.glu_limit:
        return f"(hidden + 1) ⊙ gate·σ({config.glu_alpha:g}·gate), both up to {config.glu_limit:g}"
    return f"{act}(gate) ⊙ hidden" if config.gated else f"{act}(hidden)"


def _routes_words(config: ModelConfig) -> str:
    """What weighs the chosen experts: a softmax over them, say, times a scale."""
    times = "" if config.routed_scale == 1.0 else f"{config.routed_scale:g}·"
    score = "softmax" if config.router == "softmax" else "σ"
    if not config.routes_renormed:
        return f"{times}{score}(router) of the chosen, else 0"
    if config.router == "softmax":
        return f"{times}softmax(router of the chosen), else 0"
    return f"{times}σ(router) / Σ σ(router) of the chosen, else 0"


_PREDICTIONS = {
    "lm": "most probable next tokens",
    "mlm": "most probable fill of each mask",
    "sequence": "classes of the text",
    "token": "classes of each token",
    "question": "where the answer starts and ends",
}


def _hidden(config: ModelConfig) -> str:
    """Which keys a query may not look at."""
    ahead = "key > query" if not config.looks_ahead else f"key ≥ query + {config.window:,}"
    if config.chunk:
        return f"{ahead} or in another chunk of {config.chunk:,}"
    return f"{ahead} or key ≤ query − {config.window:,}" if config.window else ahead


def _inputs(config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """The steps that a placeholder among the inputs stands for in this model, unless it is a chain."""
    parallel = not _sequential(config)
    final = ("final.norm",) if config.final_norm else ("norm2",)
    acted = ("head.act",) if _head_dense(config) else final
    return {
        "<embeddings>": _embeddings(config),
        "<read>": ("in",) if parallel else ("mid",),
        "<into q>": ("q_a_norm",) if config.q_rank else ("<residual>",),
        "<into v>": ("kv_a_norm",) if _latent(config) else ("<residual>",),
        "<distances>": ("distances_norm",) if config.distance_norm else ("distances",),
        "<activated>": ("ffn.gate", "ffn.hidden") if config.gated else ("ffn.hidden",),
        "<decides>": ("ffn.preference",) if config.choice_bias else ("ffn.router",),
        "<into expert>": ("expert.in",) if config.routes_first else ("<residual>",),
        "<of experts>": ("expert.out",) if config.routes_first else ("expert.added",),
        "<of expert>": ("expert.gate", "expert.hidden") if config.gated else ("expert.hidden",),
        "<of shared>": ("shared.gate", "shared.hidden") if config.gated else ("shared.hidden",),
        "<shared>": ("shared.added",) if config.shared_gate else ("shared.out",),
        "<added>": ("in", "<attn>", "<ffn>") if parallel else ("mid", "<ffn>"),
        "<final>": final,
        "<acted>": acted,
        "<logits>": (_unembedded(config),) if _unembedded(config) else final,
        "<shares>": ("logits",) if config.decides == "number" else ("probs",),
    }


def _unembedded(config: ModelConfig) -> str:
    """The step of the head that is unembedded; empty where that is the last hidden state itself."""
    if _head_normed(config):
        return "head.norm"
    return "head.act" if _head_dense(config) else "head.projected" if _narrow_lm(config) else ""


def _embeddings(config: ModelConfig) -> tuple[str, ...]:
    """The steps that are added to each other: token vectors, positions and types."""
    tokens = "embed.projected" if _tokens_widened(config) else "embed.tokens"
    tokens = "embed.kept" if _drops_masks(config) else tokens
    there = {step.name for step in STEPS if step.when(config)}
    return tuple(name for name in (tokens, "embed.positions", "embed.types") if name in there)


def _resolved(config: ModelConfig) -> Iterator[Step]:
    """The rows that a model of this configuration has, with their words filled in; the same in every layer."""
    from tinytf.steps import operations

    words, several = _words(config), _inputs(config)
    above: list[Step] = []
    for step in STEPS:
        if not step.when(config):
            continue
        names = [one for name in step.inputs for one in several.get(name, (name,))]
        inputs = tuple(_nearest(above, *CHAINS[name], config) if name in CHAINS else name for name in names)
        words["inputs"] = " + ".join("x" if name == "in" else name for name in inputs)
        words["map"] = inputs[0] if step.core else ""
        seen = step.seen
        if seen is not None and seen.path == "<mid>":
            path = "norm1" if config.norm_order == "post" else "ffn" if config.norm_order == "output" else "norm2"
            seen = Seen(path, 0)
        if seen is not None and seen.path == "<acted>":
            seen = Seen("head.norm" if _head_normed(config) else "head.decoder", 0)
        first = next((one for one in above if inputs and one.name == inputs[0]), None)
        resolved = replace(
            step,
            formula=step.formula.format_map(words),
            axes=_axes(step.axes, config),
            inputs=inputs,
            matrix=step.matrix.format_map(words),
            seen=seen,
            operation=None if step.make is None else step.make(operations, config),
            reads=first.axes[-1] if first is not None and first.axes else "",
        )
        above.append(resolved)
    shared = config.n_kv_heads == config.n_heads
    for step in above:
        yield replace(step, axes=tuple("head" if axis == "kv head" and shared else axis for axis in step.axes))


def _axes(axes: tuple[str, ...], config: ModelConfig) -> tuple[str, ...]:
    """Axes with those of embeddings and of values by their names in this model."""
    widths = {"<embedded>": config.embed_width, "<summed>": config.summed_width, "<head>": config.head_width}
    named = (
        "d_model" if widths.get(axis) == config.d_model else "d_embed" if axis in widths else axis for axis in axes
    )
    same = config.value_width == config.d_head
    return tuple(axis.replace("d_value", "d_head") if same else axis for axis in named)


def _absent(config: ModelConfig) -> Iterator[Step]:
    """The rows with parameters that a model of this configuration does not have."""
    from tinytf.steps import operations

    words = _words(config)
    for step in STEPS:
        if step.module and step.make and not step.when(config):
            made = step.make(operations, config)
            yield replace(step, axes=_axes(step.axes, config), matrix=step.matrix.format_map(words), operation=made)


def _parameters(step: Step) -> "tuple[Parameter, ...]":
    return step.operation.parameters(step) if step.operation else ()


def _nearest(above: list[Step], role: str, axes: tuple[str, ...], config: ModelConfig) -> str:
    named = _axes(axes, config)
    return next(step.name for step in reversed(above) if step.role == role and step.axes == named)


@lru_cache(maxsize=64)
def _rows(config: ModelConfig) -> tuple[Step, ...]:
    return tuple(_resolved(config))


@lru_cache(maxsize=64)
def table_of(config: ModelConfig) -> "StepTable":
    """The table of a configuration, made once."""
    return StepTable(config)


class StepTable:
    """The steps of one architecture, in the order in which they happen."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        whole = _rows(config.at(0))
        layers = [[step for step in _rows(config.at(number)) if step.in_layer] for number in range(config.n_layers)]
        first = next(i for i, step in enumerate(whole) if step.in_layer)
        before, after = whole[:first], [step for step in whole[first:] if not step.in_layer]
        self.rows: tuple[tuple[Step, int | None], ...] = (
            *((step, None) for step in before),
            *((step, number) for number, steps in enumerate(layers) for step in steps),
            *((step, None) for step in after),
        )
        self._sources: dict[Place, tuple[Place, ...]] = {}
        self.by_place: dict[Place, Step] = {(step.name, layer): step for step, layer in self.rows}
        found: dict[str, Step] = {}
        for step, _ in self.rows:
            found.setdefault(step.name, step)
        inside = [step for step in found.values() if step.in_layer]
        self.layer_steps = tuple(
            one for row in STEPS for one in inside if (one.name, one.title) == (row.name, row.title)
        )
        self.before, self.after = tuple(before), tuple(after)
        self.by_name = {step.name: step for step in (*before, *self.layer_steps, *after)}
        self.embedded = next(step.name for step in reversed(before) if step.role == "residual")
        self.output = next(step.name for step in reversed(layers[-1]) if step.role == "residual")
        # What the stream is between attention and feed-forward; empty where they stand side by side.
        self.between = "" if "mid" not in self.by_name else "norm1" if self.output == "norm2" else "mid"
        self.final = "final.norm" if "final.norm" in self.by_name else self.output
        self.input = next(step.name for step in self.layer_steps if step.from_stream)
        self.weights = next(step.name for step in self.layer_steps if step.is_map and step.is_distribution)
        self.head_out = next(step.name for step in self.layer_steps if step.core and step.recorded)
        # What attention and the feed-forward give to the residual stream, before any norm.
        self.added = tuple(step for step in self.layer_steps if step.in_stream and step.role != "residual")
        self.activated = self.added[-1].inputs[0]

    def __reduce__(self) -> "tuple[Callable[[ModelConfig], StepTable], tuple[ModelConfig]]":
        return table_of, (self.config,)

    @cached_property
    def over_vocabulary(self) -> tuple[Step, ...]:
        """The steps from the unembedded last hidden state to the logits: one, unless something is done in between."""
        return tuple(step for step in self.by_name.values() if step.is_vocabulary and step.to_loss)

    @cached_property
    def expert_out(self) -> str:
        """What each expert gives to the sum over experts; empty in a model without them."""
        from tinytf.steps.operations import SumExperts

        sums = (step for step in self.layer_steps if isinstance(step.operation, SumExperts))
        return next((step.inputs[0] for step in sums), "")

    @cached_property
    def choice(self) -> str:
        """Which experts each token is sent to, 1 or 0; empty in a model without experts."""
        return next((step.name for step in self.layer_steps if step.is_choice), "")

    @cached_property
    def routes(self) -> str:
        """The weights of the experts that each token is sent to; empty in a model without experts."""
        found = (step.name for step in self.layer_steps if step.in_experts and step.axes == _ROUTES and step.to_loss)
        return next(found, "")

    @property
    def probabilities(self) -> Step | None:
        """What is made of the logits, and no loss depends on; None where the head gives a number."""
        return next((step for step in self.by_name.values() if step.is_vocabulary and not step.to_loss), None)

    @property
    def chooses(self) -> bool:
        """Whether each row of the logits becomes one distribution, over tokens or over classes."""
        return self.probabilities is not None and self.probabilities.is_distribution

    @property
    def unembedded(self) -> Step:
        """The step that is linear in the last hidden state."""
        return self.over_vocabulary[0]

    @property
    def stream_norms(self) -> tuple[Step, ...]:
        """The norms of a block through which what it adds reaches the residual stream, or the stream itself goes."""

        from tinytf.steps.operations import Add, Norm

        def streams(step: Step) -> bool:
            added = any(isinstance(later.operation, Add) for later, _, _ in self.consumers((step.name, 0)))
            return isinstance(step.operation, Norm) and (added or step.name == self.output)

        return tuple(step for step in self.layer_steps if streams(step))

    def has_own(self, step: Step, layer: int | None) -> bool:
        """Whether no step before this one is made with the parameters of its module."""
        if layer is not None and self.first_with(step.module, layer) != layer:
            return False
        return step.name == self._first_made[step.module]

    @cached_property
    def _first_made(self) -> dict[str, str]:
        return {step.module: step.name for step, _ in reversed(self.rows)}

    def first_with(self, module: str, layer: int) -> int:
        """The first layer that has the parameters of this module of a layer: its own, unless they are shared."""
        return 0 if module in self._shared else self.config.first_of(layer)

    @property
    def shares(self) -> bool:
        """Whether layers share parameters."""
        return bool(self._shared or self.config.layer_groups)

    @cached_property
    def _shared(self) -> frozenset[str]:
        return frozenset(step.module for step in self.layer_steps if step.shared)

    def to_stream(self, added: Step) -> tuple[Step, ...]:
        """The steps through which what attention or the feed-forward adds goes: norm or scale, at last the sum."""
        from tinytf.steps.operations import Add

        way = [added]
        while way[-1] is added or not isinstance(way[-1].operation, Add):  # experts and a shared one are a sum too
            way.append(next(step for step in self.layer_steps if way[-1].name in step.inputs))
        return tuple(way[1:])

    def at(self, name: str, layer: int | None) -> Step:
        """A step as it is in one layer; where that layer has none, as it is in any."""
        name = RENAMED.get(name, name)
        return self.by_place.get((name, layer)) or self.by_name[name]

    def has(self, name: str, layer: int | None) -> bool:
        return (name, layer) in self.by_place

    def in_layer(self, layer: int) -> tuple[Step, ...]:
        """The steps of one layer, in their order."""
        return tuple(step for step, within in self.rows if within == layer)

    def sources(self, step: Step, layer: int | None) -> tuple[Place, ...]:
        """The steps that ``step`` is computed from, that of the layer below included, in the order of its formula."""
        known = self._sources.get((step.name, layer))
        if known is None:
            known = self._sources[step.name, layer] = self._find_sources(step, layer)
        return known

    def _find_sources(self, step: Step, layer: int | None) -> tuple[Place, ...]:
        below = self.config.n_layers if layer is None else layer
        if step.from_stream:
            return ((self.output, below - 1),) if below else ((self.embedded, None),)
        inside = self.config.n_layers - 1 if layer is None else layer
        found = (self.by_name[name] for name in step.inputs)
        return tuple((source.name, inside if source.in_layer else None) for source in found if source.is_tensor)

    def consumers(self, place: Place) -> tuple[tuple[Step, int | None, int], ...]:
        """The steps computed from ``place`` on the way to the loss, each with its layer and which input it is."""
        return tuple(self._consumers.get(place, ()))

    @cached_property
    def _consumers(self) -> dict[Place, list[tuple[Step, int | None, int]]]:
        found: dict[Place, list[tuple[Step, int | None, int]]] = {}
        for step, layer in self.rows:
            for number, source in enumerate(self.sources(step, layer) if step.to_loss else ()):
                found.setdefault(source, []).append((step, layer, number))
        return found

    def only_through_maps(self, step: Step, layer: int | None) -> bool:
        """Whether the loss depends on a step only through scores: where a query sees one key, it does not at all."""
        after = [(later, within) for later, within, _ in self.consumers((step.name, layer))]
        return bool(after) and all(
            (later.is_map and later.is_distribution) or self.only_through_maps(later, within) for later, within in after
        )

    def has_parameter(self, name: str, layer: int) -> bool:
        """Whether a layer has the parameter of that name."""
        step = self.by_place.get((self.parameters[name][0].name, layer))
        return step is not None and any(one.name == name and not one.absent for one in _parameters(step))

    def synonym(self, name: str) -> str | None:
        """The step that ``name`` means in this architecture, or its present name, where that is another step."""
        target = {"embed.out": self.embedded, "out": self.output, **RENAMED}.get(name, name)
        return None if target == name else target

    @cached_property
    def parameters(self) -> "dict[str, tuple[Step, Parameter]]":
        """Every parameter that some model has, by its name in addresses, with the step that is made with it.

        Those of a layer are named as in one, ``W_Q``; those that this model lacks say why.
        """
        found: dict[str, tuple[Step, Parameter]] = {}
        for step in _absent(self.config):
            reason = self.why_absent(step.name) or ""
            found |= {one.name: (step, replace(one, absent=reason)) for one in _parameters(step)}
        own: dict[str, tuple[Step, Parameter]] = {}
        for step, _ in self.rows:  # not by_name, which has one row of each name: ffn is made otherwise with experts
            for one in _parameters(step):
                own.setdefault(one.name, (step, one))  # a later step may be made with it too
        return {name: one for name, one in found.items() if name not in own} | own

    def why_absent(self, name: str, layer: int | None = None) -> str | None:
        """Why a step of the table does not exist in this model, or layer; None for a name that no model has."""
        words = _words(self.config if layer is None else self.config.at(layer))
        reasons = [step.absent.format_map(words) for step in STEPS if step.name == name]
        return next((reason for reason in reasons if reason), None)
