"""The configuration of a transformer: words and numbers, checked once, free of torch."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from tinytf.errors import ConfigError
from tinytf.fields import Limits, fields_of, require_fields
from tinytf.nearest import did_you_mean

_NORMED = {
    "pre": "before each part (pre-norm)",
    "post": "after each sum (post-norm)",
    "both": "before and after each part",
    "output": "after each part",
}
CHOICES: dict[str, tuple[str, ...]] = {
    "norm": ("layernorm", "rmsnorm"),
    "norm_order": tuple(_NORMED),
    "residual": ("sequential", "parallel"),
    "positions": ("learned", "sinusoidal", "sinusoidal_halves", "rotary", "alibi", "none"),
    "activation": ("relu", "relu2", "gelu", "gelu_tanh", "silu"),
    "head": ("lm", "mlm", "sequence", "token", "question", "none"),
    "head_activation": ("relu", "gelu", "gelu_tanh", "silu", "tanh"),
    "head_reads": ("every", "first", "last"),
    "decides": ("one", "several", "number"),
    "rope_scaling": ("none", "linear", "llama3", "yarn", "longrope"),
    "qk_norm_across": ("head", "heads", "all"),
    "router": ("softmax", "sigmoid"),
}

_MOST, _MOST_LAYERS = 2**31 - 1, 1024
_POSITIVE, _COUNT, _ABOVE_ZERO = Limits(least=1, most=_MOST), Limits(least=0, most=_MOST), Limits(above=0)
_LIMITS = {
    **{name: Limits(choices=words) for name, words in CHOICES.items()},
    **dict.fromkeys(("vocab_size", "d_model", "n_heads", "d_ff", "context"), _POSITIVE),
    "n_layers": Limits(least=1, most=_MOST_LAYERS),
    **dict.fromkeys(("n_kv_heads", "d_head", "n_token_types", "position_offset", "window", "rope_width"), _COUNT),
    **dict.fromkeys(("d_value", "q_rank", "kv_rank", "rope_original_context", "d_embed"), _COUNT),
    **dict.fromkeys(("layer_groups", "relative_buckets", "distances", "farthest", "chunk"), _COUNT),
    **dict.fromkeys(("query_scale_every", "query_scale_first", "mask_id"), _COUNT),
    **dict.fromkeys(("experts", "experts_per_token", "d_expert", "d_shared"), _COUNT),
    **dict.fromkeys(("norm_eps", "embed_scale", "logit_scale", "residual_scale", "routed_scale"), _ABOVE_ZERO),
    **dict.fromkeys(("alibi_scale", "alibi_max_bias"), _ABOVE_ZERO),
    **dict.fromkeys(("rope_theta", "rope_factor", "rope_attention_factor", "glu_alpha"), _ABOVE_ZERO),
    **dict.fromkeys(("rope_short_factors", "rope_long_factors"), _ABOVE_ZERO),
    **dict.fromkeys(("attention_divisor", "attention_cap", "logit_cap", "clip_qkv", "glu_limit"), Limits(least=0)),
    "query_scale": Limits(least=0),
    **dict.fromkeys(("dropout", "masked_share"), Limits(least=0, below=1)),
}
LEFT_OUT: dict[str, dict[str, Any]] = {
    "scaling": {"attention_divisor": 1.0},
    "mask": {"mask": False, "window": 0, "chunk": 0},
    "positions": {
        "positions": "none", "position_offset": 0, "rope_scaling": "none",
        "distances": 0, "farthest": 0,
        **dict.fromkeys(("distance_norm", "distance_keys", "distance_queries", "distance_matrices"), False),
    },
}  # fmt: skip
"""The parts of attention that can be left out, and the fields of a configuration that lacks them."""
CLASS_HEADS = ("sequence", "token", "question")
"""Heads whose logits are of the classes in ``labels``: of the whole text, of each token, or two of each token."""
LATENT_EPS = 1e-6
"""ε of the norms of latent attention, whatever that of the other norms is."""
BY_LAYER = (
    "window",
    "chunk",
    "qk_norm",
    "input_norm",
    "attention_divisor",
    "query_scale",
    "positions",
    "rope_theta",
    "rope_width",
    "rope_scaling",
    "rope_factor",
    "experts",
)
"""Fields that may differ from layer to layer."""


class Rope(NamedTuple):
    """The RoPE settings: the angles of the first ``width`` dimensions of a head.

    ``scaling`` stretches them to a longer context than the ``original_context`` that was trained on. ``linear`` divides
    every frequency by ``factor``; ``llama3`` and ``yarn`` only those of long waves, which turn fewer than
    ``low_frequency`` times within it, and leave those that turn more than ``high_frequency`` times as they are.
    In between llama3 blends by the turns, yarn by the number of the pair, from a whole one to a whole one where it is
    to ``truncate``. ``longrope`` divides each frequency by a number of its own, one of the ``factors``, or of
    the ``long_factors`` in a text that is longer than ``original_context``. yarn and longrope multiply what is turned
    by ``attention_factor``.
    """

    width: int
    theta: float
    scaling: str
    factor: float
    low_frequency: float
    high_frequency: float
    original_context: int
    attention_factor: float = 1.0
    truncate: bool = True
    factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    def of_text(self, length: int) -> "Rope":
        """The settings for a text of so many tokens."""
        if not self.long_factors or length <= self.original_context:
            return self
        return self._replace(factors=self.long_factors, long_factors=())


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Everything that decides the architecture and the parameter count of a model.

    Raises ConfigError, with the numbers, for combinations that cannot be built. In what follows 0 switches a part off,
    or leaves a width to the usual one.

    **Sizes.** ``n_kv_heads`` and ``d_head`` may be left out: they become ``n_heads`` and ``d_model / n_heads``. Values
    are ``d_value`` wide (0: as queries and keys). With ``layer_groups`` so many groups of layers share their weights
    (ALBERT). ``by_layer`` has the fields that differ from layer to layer, each with one value a layer; ``at`` gives
    that of one layer.

    **Embeddings.** ``embed_scale`` multiplies those of tokens (√d_model in the paper). With a ``masked_share``, that of
    training, those of ``mask_id`` are 0, and the others are multiplied by (1 − ``masked_share``) / (1 − the share of
    masks in the text) (ESM). Token embeddings that are ``d_embed`` wide (0: d_model) are projected to d_model, with a
    ``projection_bias`` or without; where the embeddings are normed, positions and types are as narrow, and the
    projection follows the norm. The head then unembeds hidden states that it has made ``d_embed`` wide.

    **Positions.** ``position_offset`` rows of the position table come before that of the first token (RoBERTa has 2);
    ``sinusoidal_halves`` has all its sines before its cosines (XGLM). ``rope_…`` are explained at ``Rope``,
    ``rope_width`` 0 being all of a head. With ALiBi the last head's scores fall by 2^−``alibi_max_bias`` a token, and
    all by ``alibi_scale`` times as much; ``alibi_rounded`` keeps slope · position in bfloat16. ``relative_buckets`` of
    distances have each a bias of scores, the same in all layers (MPNet). ``distances`` to each side have an embedding
    each, the same in all layers (DeBERTa), after a ``distance_norm`` where there is one; with a ``farthest`` those from
    half of them on are of several distances up to that. Keys are made of them, which queries score too
    (``distance_keys``), and queries, which keys score (``distance_queries``): by the tokens' W_K and W_Q, or by
    ``distance_matrices``. The query at position t is multiplied by
    1 + ``query_scale``·ln(1 + ⌊(t + ``query_scale_first``) / ``query_scale_every``⌋).

    **Blocks.** ``norm_order`` says where a block norms: what goes into attention and the feed-forward (``pre``), what
    they add (``output``), ``both``, or the residual sums (``post``). Where there is no ``input_norm`` a pre-norm block
    gives attention the stream as it is. Norms have a ``norm_gain``, and LayerNorms a ``norm_bias`` too. A ``parallel``
    residual has the feed-forward read the stream that attention reads, and adds both at once; with a ``shared_norm`` it
    reads that stream as attention does, after norm1, and there is no norm2. What is added is multiplied by
    ``residual_scale`` before.

    **Attention.** Without its ``mask`` a decoder looks both ways. ``window`` lets a token see only itself and the
    window − 1 before it, in an encoder as many after it; with ``chunk`` it sees those before it in its own chunk of so
    many tokens. With a ``kv_rank`` attention is latent (DeepSeek-V2): keys and values are made of a normed vector of
    that width, and every key begins with ``rope_width`` dimensions that all heads share and RoPE turns; with a
    ``q_rank`` queries are made of such a vector too. Scores are divided by ``attention_divisor`` (0: √d_head) and
    softly capped by ``attention_cap``; ``attention_sinks`` are a learned logit per head that takes a share of every
    softmax. A ``qk_norm`` is of every head, with one gain for all (``qk_norm_across`` ``head``) or one for each
    (``heads``), or of all heads at once (``all``); with ``qk_norm_last`` it follows the rotation, without
    ``qk_norm_gain`` it learns nothing. Queries, keys and values are clipped to ±``clip_qkv``.

    **Feed-forward.** ``gated`` makes it SwiGLU-like: act(gate) ⊙ up; with a ``glu_limit`` it is
    (up + 1) ⊙ gate·σ(α·gate), α being ``glu_alpha``, of gates up to the limit and up within ± it (gpt-oss). A layer
    with ``experts`` sends each token to ``experts_per_token`` of them, each a feed-forward of ``d_expert`` units (0:
    d_ff). The ``router`` scores them by a softmax or by sigmoids; ``routes_renormed`` makes the weights of the chosen
    ones sum to 1, before ``routed_scale`` multiplies them. They multiply what experts give, or with ``routes_first``
    what they take. Every token goes through the shared expert of ``d_shared`` units too, behind a sigmoid of its own
    with ``shared_gate``.

    **Head.** ``lm`` predicts the next token, ``mlm`` fills masks (BERT's transform with ``head_activation``, norm and
    decoder); logits are multiplied by ``logit_scale`` and softly capped by ``logit_cap``. A ``sequence``, ``token`` or
    ``question`` head has a logit for each of ``labels``, read at the ``first`` or ``last`` token or at ``every`` one
    (``head_reads``), after a ``head_dense`` layer with its activation and a ``head_norm`` where there are such. It
    ``decides`` for ``one`` class (softmax), for ``several`` (sigmoid), or gives a ``number``.
    """

    vocab_size: int
    d_model: int
    n_layers: int
    n_heads: int
    d_ff: int
    context: int
    n_kv_heads: int = 0
    d_head: int = 0
    d_value: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    causal: bool = True
    mask: bool = True
    norm: str = "layernorm"
    norm_eps: float = 1e-5
    norm_gain: bool = True
    norm_bias: bool = True
    norm_order: str = "pre"
    input_norm: bool = True
    residual: str = "sequential"
    residual_scale: float = 1.0
    shared_norm: bool = False
    attention_divisor: float = 0.0
    query_scale: float = 0.0
    query_scale_every: int = 0
    query_scale_first: int = 0
    attention_cap: float = 0.0
    attention_sinks: bool = False
    logit_cap: float = 0.0
    clip_qkv: float = 0.0
    logit_scale: float = 1.0
    relative_buckets: int = 0
    distances: int = 0
    farthest: int = 0
    distance_norm: bool = False
    distance_keys: bool = False
    distance_queries: bool = False
    distance_matrices: bool = False
    positions: str = "learned"
    position_offset: int = 0
    alibi_max_bias: float = 8.0
    alibi_scale: float = 1.0
    alibi_rounded: bool = False
    rope_theta: float = 10_000.0
    rope_width: int = 0
    rope_scaling: str = "none"
    rope_factor: float = 1.0
    rope_low_frequency: float = 1.0
    rope_high_frequency: float = 4.0
    rope_original_context: int = 0
    rope_attention_factor: float = 1.0
    rope_truncate: bool = True
    rope_short_factors: tuple[float, ...] = ()
    rope_long_factors: tuple[float, ...] = ()
    window: int = 0
    chunk: int = 0
    activation: str = "gelu"
    gated: bool = False
    glu_limit: float = 0.0
    glu_alpha: float = 1.0
    experts: int = 0
    experts_per_token: int = 0
    d_expert: int = 0
    router: str = "softmax"
    router_bias: bool = False
    choice_bias: bool = False
    routes_renormed: bool = True
    routed_scale: float = 1.0
    routes_first: bool = False
    d_shared: int = 0
    shared_gate: bool = False
    qkv_bias: bool = True
    o_bias: bool = True
    ffn_bias: bool = True
    qk_norm: bool = False
    qk_norm_across: str = "head"
    qk_norm_last: bool = False
    qk_norm_gain: bool = True
    tied_head: bool = True
    head: str = "lm"
    head_bias: bool = False
    head_activation: str = "gelu"
    head_dense_bias: bool = True
    labels: tuple[str, ...] = ()
    head_reads: str = "every"
    head_dense: bool = False
    head_norm: bool = False
    decides: str = "one"
    n_token_types: int = 0
    layer_groups: int = 0
    d_embed: int = 0
    projection_bias: bool = False
    embed_scale: float = 1.0
    masked_share: float = 0.0
    mask_id: int = 0
    embed_norm: bool = False
    pooler: bool = False
    dropout: float = 0.0
    by_layer: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def __post_init__(self) -> None:
        for name, field in FIELDS.items():
            field.require(getattr(self, name), ConfigError)
        if not self.n_kv_heads:
            object.__setattr__(self, "n_kv_heads", self.n_heads)
        if not self.d_head:
            if self.d_model % self.n_heads:
                raise ConfigError(
                    f"d_model {self.d_model} is not divisible by n_heads {self.n_heads}",
                    "choose another n_heads, or give d_head",
                )
            object.__setattr__(self, "d_head", self.d_model // self.n_heads)
        if self.n_heads % self.n_kv_heads:
            raise ConfigError(f"n_heads {self.n_heads} is not divisible by n_kv_heads {self.n_kv_heads}")
        if self.positions == "rotary" and not self.rope_width and self.d_head % 2:
            raise ConfigError(f"d_head {self.d_head} is odd, and RoPE rotates pairs of dimensions")
        if self.positions == "sinusoidal_halves" and self.d_model < 4:
            raise ConfigError(f"d_model {self.d_model} is below 4, and sinusoidal_halves needs two frequencies")
        if self.positions.startswith("sinusoidal") and self.d_model % 2:
            raise ConfigError(f"d_model {self.d_model} is odd, and sinusoidal positions fill pairs of dimensions")
        if self.positions == "alibi" and not self.causal:
            raise ConfigError("ALiBi counts back from each query, and causal is false")
        if self.position_offset and self.positions not in ("learned", "sinusoidal_halves"):
            raise ConfigError(f"position_offset {self.position_offset} needs learned positions")
        if self.window and self.causal and not self.mask:
            raise ConfigError(f"a window of {self.window} tokens needs a mask, and mask is false")
        if self.masked_share and (self.causal or self.d_embed or self.mask_id >= self.vocab_size):
            raise ConfigError(
                f"masked_share {self.masked_share:g} needs an encoder with embeddings as wide as the stream, "
                f"and a mask_id below {self.vocab_size:,}"
            )
        if self.chunk and (self.window or self.looks_ahead):
            raise ConfigError(f"chunks of {self.chunk} tokens need a causal mask, and no window")
        if self.qk_norm_last and self.qk_norm_across != "head":
            raise ConfigError("qk_norm_last needs a norm of every head, with one gain for all")
        if self.query_scale and not self.query_scale_every:
            raise ConfigError(f"query_scale {self.query_scale:g} needs query_scale_every")
        self._require_scaling()
        if not 0 <= self.rope_width <= self.d_head or self.rope_width % 2:
            raise ConfigError(f"rope_width {self.rope_width} is not an even number up to d_head {self.d_head}")
        if self.norm == "layernorm" and self.norm_bias and not self.norm_gain:
            raise ConfigError("norm_bias is true, and norm_gain is false", "a norm without a gain has no bias either")
        if self.shared_norm and self.residual != "parallel":
            raise ConfigError(f"a shared norm needs a parallel residual, and it is {self.residual!r}")
        if self.residual == "parallel" and self.norm_order != "pre":
            raise ConfigError(f"a parallel residual needs norm_order 'pre', and it is {self.norm_order!r}")
        if self.kv_rank:
            self._require_latent()
        elif self.q_rank:
            raise ConfigError(f"q_rank {self.q_rank} needs a kv_rank")
        if self.glu_limit and not (self.gated and self.activation == "silu"):
            raise ConfigError(f"glu_limit {self.glu_limit:g} needs a gated feed-forward with the activation 'silu'")
        self._require_experts()
        self._require_layers()
        if self.relative_buckets % 4:
            raise ConfigError(f"relative_buckets {self.relative_buckets} is no multiple of 4")
        self._require_distances()
        if self.layer_groups and (self.layer_groups > self.n_layers or self.by_layer):
            also = " that differ by layer" if self.by_layer else ""
            raise ConfigError(f"layer_groups {self.layer_groups} do not fit {self.n_layers} layers{also}")
        if self.head == "mlm" and self.causal:
            raise ConfigError("head 'mlm' fills masks from both sides, and causal is true", "set causal to false")
        if self.pooler and self.causal:
            raise ConfigError("a pooler reads the first token, which in a causal model has seen nothing else")
        if self.logit_scale != 1 and self.logit_cap:
            raise ConfigError(f"logit_scale {self.logit_scale:g} and logit_cap {self.logit_cap:g} exclude each other")
        if self.head_bias and self.head == "none":
            raise ConfigError("head_bias is true, and head is 'none'")
        if not self.input_norm and (self.norm_order != "pre" or self.residual == "parallel"):
            raise ConfigError("input_norm is false, and only a sequential pre-norm block can do without that norm")
        self._require_classes()

    def _require_latent(self) -> None:
        if not 0 < self.rope_width < self.d_head:
            said = f"a rope_width between 0 and d_head {self.d_head}, and it is {self.rope_width}"
            raise ConfigError(f"kv_rank {self.kv_rank} needs {said}")
        for name, wanted in (("n_kv_heads", self.n_heads), ("qkv_bias", False), ("qk_norm", False), ("clip_qkv", 0)):
            if getattr(self, name) != wanted:
                raise ConfigError(f"kv_rank {self.kv_rank} needs {name} {wanted}, and it is {getattr(self, name)}")

    def _require_distances(self) -> None:
        """Embeddings of distances are for something, in heads that have each their own keys."""
        if bool(self.distances) != (self.distance_keys or self.distance_queries):
            raise ConfigError(f"distances {self.distances} and distance_keys or distance_queries need each other")
        if self.distance_norm and not self.distances:
            raise ConfigError("distance_norm needs distances")
        if self.distances and (self.n_kv_heads != self.n_heads or self.kv_rank):
            raise ConfigError(f"distances {self.distances} need a key head for each query head")
        if self.farthest and not 2 <= self.distances < 2 * self.farthest - 3:
            raise ConfigError(f"farthest {self.farthest} does not fit distances {self.distances}")

    def _require_scaling(self) -> None:
        if self.rope_scaling != "none" and self.positions != "rotary":
            raise ConfigError(f"rope_scaling {self.rope_scaling!r} needs rotary positions")
        between = 0 < self.rope_low_frequency < self.rope_high_frequency < math.inf
        if self.rope_scaling in ("llama3", "yarn") and not between:
            raise ConfigError(
                f"rope_low_frequency {self.rope_low_frequency} is not between 0 and "
                f"rope_high_frequency {self.rope_high_frequency}"
            )
        if self.rope_scaling in ("llama3", "yarn", "longrope") and not self.rope_original_context:
            raise ConfigError(f"rope_scaling {self.rope_scaling!r} needs rope_original_context")
        if self.rope_scaling == "yarn" and self.rope_theta <= 1:
            raise ConfigError(f"rope_scaling 'yarn' needs a rope_theta above 1, and it is {self.rope_theta}")
        for name in ("rope_short_factors", "rope_long_factors") if self.rope_scaling == "longrope" else ():
            count, pairs = len(getattr(self, name)), (self.rope_width or self.d_head) // 2
            if count != pairs:
                raise ConfigError(f"{name} has {count:,} numbers for {pairs:,} pairs of dimensions")

    def _require_experts(self) -> None:
        if self.experts and not 0 < self.experts_per_token <= self.experts:
            raise ConfigError(f"experts_per_token {self.experts_per_token} is not between 1 and experts {self.experts}")
        if self.experts and not self.d_expert:
            object.__setattr__(self, "d_expert", self.d_ff)
        if self.shared_gate and not self.d_shared:
            raise ConfigError("shared_gate is true, and there is no shared expert: d_shared is 0")

    def _require_classes(self) -> None:
        object.__setattr__(self, "labels", tuple(self.labels))
        if self.head not in CLASS_HEADS:
            for name in ("labels", "head_dense", "head_norm"):
                if getattr(self, name):
                    raise ConfigError(f"{name} needs a head of classes, and head is {self.head!r}")
            return
        if not self.labels:
            raise ConfigError(f"head {self.head!r} has no labels")
        if self.tied_head:
            raise ConfigError(f"head {self.head!r} is no token table, and tied_head is true")
        if self.head == "question" and len(self.labels) != 2:
            raise ConfigError(f"a question head has the labels start and end, and there are {len(self.labels)}")
        if (self.head_reads == "every") == (self.head == "sequence"):
            raise ConfigError(
                f"head {self.head!r} does not read {self.head_reads!r}", "a sequence head reads one token"
            )

    def _require_layers(self) -> None:
        """Every field of ``by_layer`` may differ by layer, has one value a layer, and values that a layer can have."""
        try:
            pairs = tuple(sorted((str(name), tuple(values)) for name, values in self.by_layer))
            hash(pairs)
        except (TypeError, ValueError):
            raise ConfigError("by_layer has to be pairs of a field and its values, one a layer") from None
        object.__setattr__(self, "by_layer", pairs)
        for name, values in pairs:
            if name not in BY_LAYER:
                raise ConfigError(f"{name} does not differ by layer", did_you_mean(name, BY_LAYER))
            if len(values) != self.n_layers:
                raise ConfigError(f"by_layer has {len(values)} values of {name} for {self.n_layers} layers")
            if name == "experts" and set(values) - {0, self.experts}:
                raise ConfigError(f"a layer has {self.experts} experts or 0, and by_layer says {values}")
        if "positions" in dict(pairs):
            kinds = {self.positions, *dict(pairs)["positions"]}
            if not {"rotary"} <= kinds <= {"rotary", "none"}:
                raise ConfigError("positions that differ by layer are rotary in some and none in the others")
        for values in dict.fromkeys(zip(*(values for _, values in pairs), strict=True)):
            replace(self, **_changes(dict(zip(dict(pairs), values, strict=True))))

    @property
    def kind(self) -> str:
        """``decoder`` where a token sees only the past, else ``encoder``."""
        return "decoder" if self.causal else "encoder"

    @property
    def predicts_tokens(self) -> bool:
        """Whether the head's logits are of the vocabulary."""
        return self.head in ("lm", "mlm")

    @property
    def head_width(self) -> int:
        """What the unembedding of the head takes."""
        return self.embed_width if self.predicts_tokens else self.d_model

    @property
    def n_outcomes(self) -> int:
        """How many tokens or classes the head has a logit for."""
        return len(self.labels) or self.vocab_size

    @property
    def labels_in_words(self) -> str:
        """The first few labels."""
        named = ", ".join(self.labels[:4])
        return f"{named} … {len(self.labels):,} in all" if len(self.labels) > 4 else named

    @property
    def looks_ahead(self) -> bool:
        """Whether a token sees those after it: in an encoder, and in a decoder without its mask."""
        return not (self.causal and self.mask)

    @property
    def heads_per_kv(self) -> int:
        """How many query heads share one key and value head."""
        return self.n_heads // self.n_kv_heads

    @property
    def value_width(self) -> int:
        """The width of a head's values, and of what it gives: that of its queries and keys unless ``d_value`` says."""
        return self.d_value or self.d_head

    @property
    def d_own(self) -> int:
        """The dimensions of a latent key that are a head's own; RoPE turns the others, which all heads share."""
        return self.d_head - self.rope_width

    def at(self, layer: int) -> "ModelConfig":
        """The configuration of one layer."""
        return _at(self, layer) if self.by_layer else self

    def group_of(self, layer: int) -> int:
        """Which weights a layer has: a number for each group of layers that share theirs, else that of the layer."""
        return (
            int(layer / (self.n_layers / self.layer_groups)) if self.layer_groups else layer
        )  # as transformers has it

    def first_of(self, layer: int) -> int:
        """The first layer that has the weights of this one."""
        group = self.group_of(layer)
        return next(first for first in range(layer + 1) if self.group_of(first) == group)

    @property
    def score_divisor(self) -> float:
        """What attention scores are divided by."""
        return self.attention_divisor or math.sqrt(self.d_head)

    @property
    def score_divisor_words(self) -> str:
        """The same as an expression: √d_head, unless the configuration says otherwise."""
        return f"{self.attention_divisor:.4g}" if self.attention_divisor else f"√{self.d_head}"

    @property
    def embed_width(self) -> int:
        """The width of token embeddings, and of what the head unembeds."""
        return self.d_embed or self.d_model

    @property
    def summed_width(self) -> int:
        """The width of the sum of embeddings: that of the stream, unless the sum is normed and then projected."""
        return self.embed_width if self.embed_norm else self.d_model

    @property
    def sizes(self) -> dict[str, int]:
        """The size of every axis that does not depend on the text."""
        return {
            "d_model": self.d_model,
            "d_embed": self.embed_width,
            "d_ff": self.d_ff,
            "d_head": self.d_head,
            "head": self.n_heads,
            "kv head": self.n_kv_heads,
            "d_value": self.value_width,
            "n_heads·d_head": self.n_heads * self.d_head,
            "n_heads·d_value": self.n_heads * self.value_width,
            "n_kv_heads·d_head": self.n_kv_heads * self.d_head,
            "n_kv_heads·d_value": self.n_kv_heads * self.value_width,
            "n_heads·d_own": self.n_heads * self.d_own,
            "d_own": self.d_own,
            "d_shared_key": self.rope_width,
            "q_rank": self.q_rank,
            "kv_rank": self.kv_rank,
            "vocab": self.vocab_size,
            "label": len(self.labels),
            "position": self.context + self.position_offset,
            "type": self.n_token_types,
            "expert": self.experts,
            "d_expert": self.d_expert,
            "d_shared": self.d_shared,
            "switch": 1,
            "sink": 1,
            "bucket": self.relative_buckets,
            "distance": 2 * self.distances,
        }

    @property
    def rope(self) -> Rope:
        """The RoPE settings of every head."""
        return Rope(
            self.rope_width or self.d_head,
            self.rope_theta,
            self.rope_scaling,
            self.rope_factor,
            self.rope_low_frequency,
            self.rope_high_frequency,
            self.rope_original_context,
            self.rope_attention_factor if self.rope_scaling in ("yarn", "longrope") else 1.0,
            self.rope_truncate,
            *((self.rope_short_factors, self.rope_long_factors) if self.rope_scaling == "longrope" else ()),
        )

    @property
    def rope_switch(self) -> int:
        """The length beyond which LongRoPE turns a text by other angles, 0 where none does."""
        scalings = {self.at(layer).rope_scaling for layer in range(self.n_layers)} if self.by_layer else ()
        return self.rope_original_context if "longrope" in (self.rope_scaling, *scalings) else 0

    @property
    def rotary_layers(self) -> tuple[int, ...]:
        """The layers that turn queries and keys."""
        return tuple(layer for layer in range(self.n_layers) if self.at(layer).positions == "rotary")

    @property
    def final_norm(self) -> bool:
        """A pre-norm stack ends with a norm of its own; a post-norm block has already normed."""
        return self.norm_order != "post"

    @property
    def norm_parameters(self) -> tuple[str, ...]:
        """What every norm has learned: a gain, and a LayerNorm a bias."""
        bias = self.norm == "layernorm" and self.norm_bias
        return ("gain",) * self.norm_gain + ("bias",) * bias

    @property
    def normed(self) -> str:
        """Where a block norms, in words."""
        return _NORMED[self.norm_order]

    def to_dict(self) -> dict[str, Any]:
        """All fields, as JSON takes them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "ModelConfig":
        """A configuration from its fields; unknown and missing ones are ConfigErrors with their names."""
        return cls(**require_fields(fields, FIELDS, "the model configuration"))


FIELDS = fields_of(ModelConfig, _LIMITS)
"""What each field of a configuration may hold."""


@lru_cache(maxsize=1024)
def _at(config: ModelConfig, layer: int) -> ModelConfig:
    return replace(config, **_changes({name: values[layer] for name, values in config.by_layer}))


def _changes(values: Mapping[str, Any]) -> dict[str, Any]:
    """The changes that make a configuration that of one layer, with these values of what differs by layer."""
    left_out = LEFT_OUT["positions"] if values.get("positions") == "none" else {}
    return {**values, **left_out, "by_layer": ()}
