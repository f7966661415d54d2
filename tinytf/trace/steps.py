"""The step table: every step between text and prediction, its name, title, formula, axes and inputs.

The one source that recorder, views, addresses, JSON and documentation read. A step is listed for a model
only where its architecture has it; for the others the table says why it is absent.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from tinytf.config import ModelConfig

Predicate = Callable[[ModelConfig], bool]

_NORM = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
_ACTIVATION = {"relu": "ReLU", "gelu": "GELU", "gelu_tanh": "GELU(tanh)", "silu": "SiLU"}


@dataclass(frozen=True)
class Step:
    """One row of the step table.

    ``name`` is short (``scores``); in a layer the full name is ``L0.scores``. ``inputs`` are short names too.
    ``role`` is the accent that it has in every view. ``recorded`` steps are taken during the forward pass, the
    others are derived from them on first look. ``alias`` is the TransformerLens name, with ``alias_note`` where
    that name is of a different tensor.
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
    alias: str = ""
    alias_note: str = ""

    def full_name(self, layer: int | None) -> str:
        """``L0.scores`` for a step of a layer, else the name itself."""
        return f"L{layer}.{self.name}" if self.in_layer else self.name

    @property
    def has_heads(self) -> bool:
        return "head" in self.axes or "kv head" in self.axes

    @property
    def is_tensor(self) -> bool:
        return bool(self.axes)


def _pre(config: ModelConfig) -> bool:
    return config.norm_order == "pre"


def _post(config: ModelConfig) -> bool:
    return config.norm_order == "post"


def _rotary(config: ModelConfig) -> bool:
    return config.positions == "rotary"


def _has_head(config: ModelConfig) -> bool:
    return config.head != "none"


def _mlm(config: ModelConfig) -> bool:
    return config.head == "mlm"


_WIDE = ("token", "d_model")
_HEADS = ("head", "token", "d_head")
_KV = ("kv head", "token", "d_head")
_MAP = ("head", "query", "key")
_HIDDEN = ("token", "d_ff")
_NO_ROTARY = "positions are {positions}, added to the embeddings, so nothing is rotated"
_NORMED = "TransformerLens' tensor of that name is before gain and bias, this one after"
_NO_HEAD = "this model has no language-model head"
_NO_MLM = "only a masked-language-model head has this step"

STEPS: tuple[Step, ...] = (
    Step("tokens", "tokens", "text → pieces", (), role="embed", in_layer=False, recorded=True),
    Step("ids", "token ids", "piece → id", (), ("tokens",), role="embed", in_layer=False, recorded=True),
    Step("embed.tokens", "token embeddings", "E[ids]{embed_scale}", _WIDE, ("ids",), "embed", False, True,
         alias="hook_embed"),
    Step("embed.positions", "positions", "{position_formula}", _WIDE, (), "embed", False, True,
         when=lambda c: c.positions != "rotary", alias="hook_pos_embed",
         absent="positions are rotary: they turn q and k in every layer; see q_rot and k_rot"),
    Step("embed.types", "token types", "S[type]", _WIDE, (), "embed", False, True,
         when=lambda c: c.n_token_types > 0, absent="this model has no token types"),
    Step("embed.sum", "embeddings, summed", "{embed_sum}", _WIDE, ("embed.tokens", "embed.positions"), "embed", False,
         when=lambda c: c.embed_norm, absent="embeddings are not normed in this model; their sum is embed.out"),
    Step("embed.norm", "embedding norm", "{norm}(sum)", _WIDE, ("embed.sum",), "residual", False, True,
         when=lambda c: c.embed_norm, absent="embeddings are not normed in this model"),
    Step("embed.out", "embeddings", "x₀ = {embed_sum}", _WIDE, ("embed.tokens", "embed.positions"), "residual", False,
         True, when=lambda c: not c.embed_norm),
    Step("in", "block input", "x", _WIDE, (), recorded=True, alias="hook_resid_pre"),
    Step("norm1", "norm before attention", "n = {norm}(x)", _WIDE, ("in",), when=_pre,
         alias="ln1.hook_normalized", alias_note=_NORMED),
    Step("q", "queries", "{attn_in}·W_Q{qkv_bias}", _HEADS, ("<attention>",), "q", recorded=True, alias="attn.hook_q"),
    Step("k", "keys", "{attn_in}·W_K{qkv_bias}", _KV, ("<attention>",), "k", recorded=True, alias="attn.hook_k"),
    Step("v", "values", "{attn_in}·W_V{qkv_bias}", _KV, ("<attention>",), "v", recorded=True, alias="attn.hook_v"),
    Step("q_norm", "queries, normed", "{norm}(q) in each head", _HEADS, ("q",), "q", when=lambda c: c.qk_norm,
         absent="queries and keys are not normed in this model"),
    Step("k_norm", "keys, normed", "{norm}(k) in each head", _KV, ("k",), "k", when=lambda c: c.qk_norm,
         absent="queries and keys are not normed in this model"),
    Step("q_rot", "queries, rotated", "q turned by its position", _HEADS, ("<q>",), "q", when=_rotary,
         absent=_NO_ROTARY, alias="attn.hook_rot_q"),
    Step("k_rot", "keys, rotated", "k turned by its position", _KV, ("<k>",), "k", when=_rotary,
         absent=_NO_ROTARY, alias="attn.hook_rot_k"),
    Step("scores", "attention scores", "q·kᵀ", _MAP, ("<query>", "<key>"), "attention"),
    Step("scaled", "scaled scores", "scores / √{d_head} = scores / {root}", _MAP, ("scores",), "attention"),
    Step("masked", "masked scores", "scaled, −∞ where key > query{window}", _MAP, ("scaled",), "attention",
         when=lambda c: c.causal, absent="this model looks both ways and the text has no padding, so nothing is masked",
         alias="attn.hook_attn_scores"),
    Step("weights", "attention weights", "softmax({softmax_in}), each row sums to 1", _MAP, ("<softmax>",),
         "attention", alias="attn.hook_pattern"),
    Step("heads", "weighted values", "weights·v", _HEADS, ("weights", "v"), "v", recorded=True, alias="attn.hook_z"),
    Step("concat", "heads side by side", "[head 0 | … | head {last_head}]", ("token", "n_heads·d_head"), ("heads",),
         "v"),
    Step("attn", "attention output", "concat·W_O{o_bias}", _WIDE, ("concat",), "attention", recorded=True,
         alias="hook_attn_out"),
    Step("mid", "residual after attention", "x + attn", _WIDE, ("in", "attn"), alias="hook_resid_mid"),
    Step("norm1", "norm after attention", "n = {norm}(mid)", _WIDE, ("mid",), when=_post),
    Step("norm2", "norm before feed-forward", "n = {norm}(mid)", _WIDE, ("mid",), when=_pre,
         alias="ln2.hook_normalized", alias_note=_NORMED),
    Step("ffn.hidden", "feed-forward, expanded", "n·{w_up}{ffn_bias_1}", _HIDDEN, ("<ffn>",), "ffn", recorded=True,
         alias="mlp.hook_pre"),
    Step("ffn.gate", "feed-forward, gate", "n·W_gate{ffn_bias_g}", _HIDDEN, ("<ffn>",), "ffn", recorded=True,
         when=lambda c: c.gated, absent="the feed-forward of this model has no gate"),
    Step("ffn.act", "feed-forward, activated", "{act}", _HIDDEN, ("ffn.hidden",), "ffn", alias="mlp.hook_post"),
    Step("ffn", "feed-forward output", "act·{w_down}{ffn_bias_2}", _WIDE, ("ffn.act",), "ffn", recorded=True,
         alias="hook_mlp_out"),
    Step("out", "block output", "mid + ffn", _WIDE, ("mid", "ffn"), recorded=True, when=_pre, alias="hook_resid_post"),
    Step("sum", "residual after feed-forward", "norm1 + ffn", _WIDE, ("norm1", "ffn"), when=_post, absent=
         "this model norms before each part; the sum is out"),
    Step("norm2", "norm after feed-forward, the block's output", "{norm}(sum)", _WIDE, ("sum",), recorded=True,
         when=_post),
    Step("final.norm", "final norm", "{norm}(x)", _WIDE, (), "residual", False, True, when=lambda c: c.final_norm,
         absent="norms come after the residual sums in this model, so the last block's norm2 is the last",
         alias="ln_final.hook_normalized", alias_note=_NORMED),
    Step("pooled", "pooled first token", "tanh(W·x[0] + b)", ("d_model",), ("<final>",), "output", False,
         when=lambda c: c.pooler, absent="this model has no pooler"),
    Step("head.dense", "head, dense", "x·W + b", _WIDE, ("<final>",), "output", False, when=_mlm, absent=_NO_MLM),
    Step("head.act", "head, activated", "{head_act}(dense)", _WIDE, ("head.dense",), "output", False, when=_mlm,
         absent=_NO_MLM),
    Step("head.norm", "head, norm", "{norm}(act)", _WIDE, ("head.act",), "output", False, when=_mlm, absent=_NO_MLM),
    Step("logits", "logits", "{logits_in}·{unembed}{head_bias}", ("token", "vocab"), ("<logits>",), "output", False,
         True, when=_has_head, absent=_NO_HEAD),
    Step("probs", "probabilities", "softmax(logits)", ("token", "vocab"), ("logits",), "output", False,
         when=_has_head, absent=_NO_HEAD),
    Step("next", "prediction", "{prediction}", (), ("probs",), "output", False, when=_has_head, absent=_NO_HEAD),
)  # fmt: skip

SYNONYMS: dict[str, tuple[str, Predicate]] = {
    "embed.out": ("embed.norm", lambda c: c.embed_norm),
    "out": ("norm2", _post),
}
"""Short names that, in some architectures, are another step by definition."""


def _words(config: ModelConfig) -> dict[str, str]:
    """What the formulas of the table say for this model."""
    pre, bias, offset = _pre(config), config.ffn_bias, config.position_offset
    act = _ACTIVATION[config.activation]
    added = ["tokens"] + ["positions"] * (config.positions != "rotary") + ["types"] * (config.n_token_types > 0)
    return {
        "norm": _NORM[config.norm],
        "positions": config.positions,
        "position_formula": (f"P[{offset}…T+{offset - 1}], learned" if offset else "P[0…T−1], learned")
        if config.positions == "learned"
        else f"sin | cos(pos / 10000^(2i/{config.d_model}))",
        "embed_scale": "" if config.embed_scale == 1.0 else f" · {config.embed_scale:.4g}",
        "embed_sum": " + ".join(added),
        "attn_in": "n" if pre else "x",
        "qkv_bias": " + b" if config.qkv_bias else "",
        "o_bias": " + b" if config.o_bias else "",
        "w_up": "W_up" if config.gated else "W₁",
        "w_down": "W_down" if config.gated else "W₂",
        "ffn_bias_1": " + b₁" if bias else "",
        "ffn_bias_g": " + b" if bias else "",
        "ffn_bias_2": " + b₂" if bias else "",
        "act": f"{act}(gate) ⊙ hidden" if config.gated else f"{act}(hidden)",
        "window": f" or key ≤ query − {config.window:,}" if config.window else "",
        "head_act": _ACTIVATION[config.head_activation],
        "d_head": str(config.d_head),
        "root": f"{math.sqrt(config.d_head):.4g}",
        "softmax_in": "masked" if config.causal else "scaled",
        "last_head": str(config.n_heads - 1),
        "logits_in": "head.norm" if _mlm(config) else "x",
        "unembed": "Eᵀ" if config.tied_head else "W_U",
        "head_bias": " + b" if config.head_bias else "",
        "prediction": "most probable next tokens" if config.head == "lm" else "most probable fill of each mask",
    }


def _inputs(config: ModelConfig) -> dict[str, str]:
    """Which step a placeholder among the inputs is in this model."""
    pre = _pre(config)
    q, k = ("q_norm", "k_norm") if config.qk_norm else ("q", "k")
    return {
        "<attention>": "norm1" if pre else "in",
        "<ffn>": "norm2" if pre else "norm1",
        "<q>": q,
        "<k>": k,
        "<query>": "q_rot" if _rotary(config) else q,
        "<key>": "k_rot" if _rotary(config) else k,
        "<softmax>": "masked" if config.causal else "scaled",
        "<final>": "final.norm" if config.final_norm else "norm2",
        "<logits>": "head.norm" if _mlm(config) else ("final.norm" if config.final_norm else "norm2"),
    }


def _resolved(step: Step, config: ModelConfig) -> Step:
    formula = step.formula.format_map(_words(config))
    placeholders = _inputs(config)
    inputs = [placeholders.get(name, name) for name in step.inputs]
    if step.name in {"embed.sum", "embed.out"}:
        inputs = [
            s.name for s in STEPS if s.name in {"embed.tokens", "embed.positions", "embed.types"} and s.when(config)
        ]
    if step.name == "ffn.act" and config.gated:
        inputs = ["ffn.gate", "ffn.hidden"]
    axes = tuple("head" if axis == "kv head" and config.n_kv_heads == config.n_heads else axis for axis in step.axes)
    alias = step.alias
    if config.gated and step.name in {"ffn.hidden", "ffn.gate"}:
        alias = {"ffn.hidden": "mlp.hook_pre_linear", "ffn.gate": "mlp.hook_pre"}[step.name]
    return replace(step, formula=formula, inputs=tuple(inputs), axes=axes, alias=alias)


class StepTable:
    """The steps of one architecture, in the order in which they happen."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        steps = [_resolved(step, config) for step in STEPS if step.when(config)]
        self.by_name = {step.name: step for step in steps}
        layer = [step for step in steps if step.in_layer]
        first = next(i for i, step in enumerate(steps) if step.in_layer)
        before, after = steps[:first], [step for step in steps[first:] if not step.in_layer]
        self.rows: tuple[tuple[Step, int | None], ...] = (
            *((step, None) for step in before),
            *((step, number) for number in range(config.n_layers) for step in layer),
            *((step, None) for step in after),
        )
        self.layer_steps = tuple(layer)

    def synonym(self, name: str) -> str | None:
        """The step that ``name`` is by definition in this architecture, if it is another one."""
        target, applies = SYNONYMS.get(name, ("", lambda _: False))
        return target if applies(self.config) else None

    def why_absent(self, name: str) -> str | None:
        """Why a step of the table does not exist in this model; None for a name that no model has."""
        reasons = [step.absent.format_map(_words(self.config)) for step in STEPS if step.name == name]
        return next((reason for reason in reasons if reason), None)

    def aliases(self) -> dict[str, Step]:
        """TransformerLens names (without ``blocks.N.``) to steps."""
        return {step.alias: step for step in self.by_name.values() if step.alias}
