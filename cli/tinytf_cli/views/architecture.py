"""A configuration in words: every part of a model that decides what it computes."""

from collections import Counter
from collections.abc import Callable

from tinytf.config import ModelConfig
from tinytf.text.printable import printable
from tinytf_cli.numbers import plural

_HEADS = {
    "lm": "next token", "mlm": "masked token", "none": "none",
    "sequence": "classes of the text", "token": "classes of each token", "question": "where an answer lies",
}  # fmt: skip
_DECIDES = {"one": "", "several": "each by itself", "number": "a number"}
_NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
_ACROSS = {"head": "", "heads": " with a gain for each head", "all": " over all heads"}


def architecture(config: ModelConfig) -> dict[str, str]:
    """Each part by its name; parts that the model lacks are left out."""
    rows = {name: _of_layers(config, words) for name, words in _ROWS.items()}
    return {name: words for name, words in rows.items() if words}


def _of_layers(config: ModelConfig, words: Callable[[ModelConfig], str]) -> str:
    """What is said of every layer, or of how many each thing is said."""
    kinds = Counter(words(config.at(layer)) for layer in range(config.n_layers))
    if len(kinds) == 1:
        return next(iter(kinds))
    return "; ".join(f"{said} in {count} of the layers" for said, count in kinds.items() if said)


def _listed(*phrases: str | bool) -> str:
    """The phrases that apply: ``c.gated and "gated"`` is left out where it is false."""
    return ", ".join(phrase for phrase in phrases if isinstance(phrase, str) and phrase)


def _attention(c: ModelConfig) -> str:
    groups = f", {plural(c.n_kv_heads, 'key-value head')} ({c.heads_per_kv} query heads share one)"
    return _listed(
        "bidirectional" if c.looks_ahead else "causal",
        f"{c.n_layers} layers × {c.n_heads} heads" + (groups if c.heads_per_kv > 1 else ""),
        c.layer_groups > 1 and f"the layers with {c.layer_groups} sets of weights",
        c.layer_groups == 1 and "all layers with the same weights",
    )


def _window(c: ModelConfig) -> str:
    if not c.window:
        return ""
    return f"{c.window:,} tokens" if c.causal else f"{c.window - 1:,} tokens to each side"


def _scores(c: ModelConfig) -> str:
    position = f"(t + {c.query_scale_first})" if c.query_scale_first else "t"
    scaled = f"queries at position t times 1 + {c.query_scale:g}·ln(1 + ⌊{position} / {c.query_scale_every}⌋)"
    matrices = "by their own matrices" if c.distance_matrices else "by the matrices of tokens"
    apart = f"a key for each of {2 * c.distances:,} distances" if c.distance_keys else ""
    queries = f"a query for each of {2 * c.distances:,} distances" if c.distance_queries else ""
    return _listed(
        f"q·k / {c.score_divisor_words}",
        bool(c.clip_qkv) and f"q, k and v clipped to ±{c.clip_qkv:g}",
        bool(c.query_scale) and scaled,
        bool(c.attention_cap) and f"softly capped at {c.attention_cap:g}",
        c.attention_sinks and "a learned sink for each head in every softmax",
        bool(c.distances) and f"{' and '.join(filter(None, (apart, queries)))} {matrices}",
        bool(c.relative_buckets) and f"a bias for each of {c.relative_buckets} buckets of distance",
    )


def _widths(c: ModelConfig) -> str:
    return _listed(
        f"d_model {c.d_model}",
        f"d_head {c.d_head}",
        c.value_width != c.d_head and f"values {c.value_width}",
        bool(c.kv_rank) and f"keys and values of {c.kv_rank} numbers a token",
        bool(c.q_rank) and f"queries of {c.q_rank}",
        f"d_ff {c.d_ff}",
    )


def _embeddings(c: ModelConfig) -> str:
    bias = " with a bias" if c.projection_bias else ""
    masks = f"those of the mask (token {c.mask_id}) 0 and the others scaled to {1 - c.masked_share:g}"
    return _listed(
        bool(c.d_embed) and f"{c.d_embed} wide and projected to d_model{bias}",
        c.embed_scale != 1 and f"times {c.embed_scale:.4g}",
        bool(c.n_token_types) and plural(c.n_token_types, "token type"),
        c.embed_norm and "normed",
        bool(c.masked_share) and masks,
    )


def _positions(c: ModelConfig) -> str:
    if c.positions == "rotary":
        return _rotary(c)
    if c.positions == "alibi":
        return _listed(
            f"ALiBi, slopes down to 2^−{c.alibi_max_bias:g}",
            c.alibi_scale != 1 and f"times {c.alibi_scale:g}",
            c.alibi_rounded and "slope · position in bfloat16",
        )
    return _listed(
        c.positions.replace("_halves", ", sines before cosines"),
        bool(c.position_offset) and f"the first at row {c.position_offset}",
        bool(c.relative_buckets or c.distances) and "distances in the scores",
        bool(c.farthest) and f"far ones up to {c.farthest:,} several together",
        c.distance_norm and "their embeddings normed",
    )


def _rotary(c: ModelConfig) -> str:
    rope = c.rope
    since = f"from {rope.original_context:,} tokens"
    waves = f"{since}, {rope.low_frequency:g} to {rope.high_frequency:g} turns"
    factors = (f"{some[0]:g} … {some[-1]:g}" for some in (rope.factors or (1.0,), rope.long_factors or (1.0,)))
    scaling = {
        "none": "",
        "linear": f"all frequencies / {rope.factor:g}",
        "llama3": f"long waves / {rope.factor:g} (llama3, {waves})",
        "yarn": f"long waves / {rope.factor:g} (yarn, {waves}{'' if rope.truncate else ', not rounded'})",
        "longrope": f"each frequency by its own factor (longrope, {f' and {since} on '.join(factors)})",
    }
    return _listed(
        f"rotary (RoPE), θ = {rope.theta:g}",
        scaling[rope.scaling],
        rope.attention_factor != 1 and f"what is turned times {rope.attention_factor:g}",
        rope.width < c.d_head and f"{rope.width} of {c.d_head} dimensions",
    )


def _norm(c: ModelConfig) -> str:
    learns = f"{' and '.join(c.norm_parameters)} learned" if c.norm_parameters else "nothing learned"
    after = " after the rotation" if c.qk_norm_last else ""
    gain = "" if c.qk_norm_gain else " without a gain"
    return _listed(
        f"{_NORMS[c.norm]} {c.normed}",
        f"ε = {c.norm_eps:g}",
        learns,
        not c.input_norm and "none before attention",
        c.qk_norm and f"on q and k too{_ACROSS[c.qk_norm_across]}{after}{gain}",
    )


def _residual(c: ModelConfig) -> str:
    return _listed(
        c.residual == "parallel" and "attention and feed-forward side by side",
        c.shared_norm and "both of one norm",
        c.residual_scale != 1 and f"what is added times {c.residual_scale:g}",
    )


def _feed_forward(c: ModelConfig) -> str:
    limited = f"limited to {c.glu_limit:g}, α {c.glu_alpha:g}"
    unit = _listed(c.activation, c.gated and "gated", bool(c.glu_limit) and limited)
    if not c.experts:
        return unit
    weights = _listed(
        f"a {c.router} router" + " with biases" * c.router_bias,
        c.choice_bias and "a bias in the choice alone",
        "the weights of those chosen sum to 1" if c.routes_renormed else "weights as they are",
        c.routed_scale != 1 and f"times {c.routed_scale:g}",
        c.routes_first and "multiplied before the experts",
    )
    shared = f"; a shared expert of {c.d_shared:,} units" + " behind a gate" * c.shared_gate
    chosen = f"{c.experts} experts of {c.d_expert:,} units, {c.experts_per_token} for each token"
    return f"{unit}, {chosen}; {weights}" + (shared if c.d_shared else "")


def _biases(c: ModelConfig) -> str:
    where = (("q/k/v", c.qkv_bias), ("o", c.o_bias), ("feed-forward", c.ffn_bias))
    return _listed(*(on and name for name, on in where)) or "none"


def _head(c: ModelConfig) -> str:
    kind = "mlm" if c.head == "lm" and not c.causal else c.head
    dense = f"a dense layer with {c.head_activation}" + ("" if c.head_dense_bias else " and no bias")
    return _listed(
        _HEADS[kind] + (f": {printable(c.labels_in_words, spaces=False)}" if c.labels else ""),
        _DECIDES[c.decides],
        bool(c.labels) and c.head_reads != "every" and f"read at the {c.head_reads} token",
        (c.head_dense or c.head == "mlm") and dense,
        c.head_norm and "a norm",
        c.tied_head and c.head != "none" and "tied to the token embeddings",
        c.head_bias and "a bias",
        c.logit_scale != 1 and f"logits times {c.logit_scale:g}",
        bool(c.logit_cap) and f"logits softly capped at {c.logit_cap:g}",
        c.pooler and "a pooler",
    )


_ROWS: dict[str, Callable[[ModelConfig], str]] = {
    "attention": _attention,
    "window": _window,
    "chunks": lambda c: f"of {c.chunk:,} tokens" if c.chunk else "",
    "scores": _scores,
    "widths": _widths,
    "vocabulary": lambda c: f"{c.vocab_size:,} tokens, context {c.context:,}",
    "embeddings": _embeddings,
    "positions": _positions,
    "norm": _norm,
    "residual": _residual,
    "feed-forward": _feed_forward,
    "biases": _biases,
    "head": _head,
}
"""What is said of a layer's configuration, by the name of the part."""
