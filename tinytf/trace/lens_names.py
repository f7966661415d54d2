"""The names of TransformerLens: our step for each, and how to get its tensor from ours.

Names are those of TransformerLens 4.3, with ``blocks.N.`` or ``LN.`` in front for a layer; its tensors come without
their batch axis. ``tests/peer/test_names_peer.py`` checks every row against it. Names without a tensor here are listed
too, with the reason. Of several rows with one name, the first that applies to a model counts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.errors import AddressError
from tinytf.nearest import did_you_mean
from tinytf.parts.row import Step
from tinytf.steps.operations import HeadNorm, Norm
from tinytf.steps.table import StepKey, StepTable
from tinytf.trace.site import Site, heads_added

Predicate = Callable[[ModelConfig], bool]

HOOK = "hook_"
"""A part of every name of TransformerLens."""


@dataclass(frozen=True)
class LensName:
    """The ``names`` of one tensor: our ``step``, or with a ``part`` something derived from it.

    ``part`` is ``input``: the step's input; ``turned``: its tensor with tokens before heads; ``scale``: what a norm
    divides by; ``normalized``: a norm before gain and bias; ``least``: masked scores with the least number of their
    type; ``result``: the part of each head in an output of attention; ``head`` and ``kv head``: the tensor once for
    each of them. ``why`` is the reason if we have no such tensor.
    """

    names: str
    step: str = ""
    part: str = ""
    when: Predicate = lambda _: True
    why: str = ""


def _post(config: ModelConfig) -> bool:
    return config.norm_order == "post"


def _encoder(config: ModelConfig) -> bool:
    return _post(config) and config.looks_ahead


def _latent(config: ModelConfig) -> bool:
    return config.kv_rank > 0


def _scaled(config: ModelConfig) -> bool:
    return config.residual_scale != 1


def _weights_as_scores(config: ModelConfig) -> bool:
    """BERT, GPT-Neo, OPT, XGLM and Llama 4, whose attention TransformerLens 4.3 does not run itself."""
    placed = config.positions.startswith("sinusoidal") or (config.positions == "learned" and config.position_offset > 0)
    return config.looks_ahead or config.score_divisor == 1 or config.chunk > 0 or placed


def _alibi(config: ModelConfig) -> bool:
    return config.positions == "alibi"


def _has_heads(config: ModelConfig) -> bool:
    return config.n_heads > 0


def _has_experts(config: ModelConfig) -> bool:
    return config.experts > 0


def _norm(component: str, step: str, when: Predicate = lambda _: True) -> tuple[LensName, ...]:
    """The four names of a norm."""
    return (
        LensName(f"{component}.hook_in", step, "input", when),
        LensName(f"{component}.hook_scale", step, "scale", when),
        LensName(f"{component}.hook_normalized", when=lambda c: not c.norm_gain and when(c), why=_DIFFERS),  # OLMo
        LensName(f"{component}.hook_normalized", step, "normalized", when),
        LensName(f"{component}.hook_out", step, "", when),
    )


_ADDED = "TransformerLens adds the residual stream to its tensor of that name in this model"
_DIFFERS = "TransformerLens 4.3 has different numbers or axes there in models like this one"
_NO_ANGLES = "cosines and sines are not a step here; q_rot and k_rot are computed with them"
_POSITION_IDS = "position numbers are not a step here; embed.positions is what they look up"

OUTSIDE: tuple[LensName, ...] = (
    LensName("embed.hook_in", "ids"),
    LensName("hook_embed", "embed.norm", when=lambda c: c.embed_norm),
    LensName("hook_embed embed.hook_out", "embed.tokens"),
    LensName("pos_embed.hook_in", why=_POSITION_IDS),
    LensName("hook_pos_embed pos_embed.hook_out", "embed.positions"),
    LensName("token_type_embed.hook_in", why="token type numbers are not a step here; see embed.types"),
    LensName("token_type_embed.hook_out", "embed.types"),
    *_norm("embed_ln", "embed.norm"),
    LensName("rotary_emb.hook_in", "<embedded>", when=lambda c: c.positions == "rotary"),
    LensName("rotary_emb.hook_cos rotary_emb.hook_sin", why=_NO_ANGLES),
    LensName("mlm_head.hook_in", "head.dense", "input"),
    LensName("mlm_head.hook_out", "head.dense"),
    *_norm("ln_final", "head.norm", lambda c: c.head.kind == "mlm"),
    *_norm("ln_final", "final.norm"),
    LensName("unembed.hook_in", "<unembedded>", "input"),
    LensName("hook_unembed unembed.hook_out", "<unembedded>"),
)  # fmt: skip
"""Names outside the layers. <unembedded> is the step that the unembedding reads, <embedded> the sum of embeddings."""

IN_BLOCKS: tuple[LensName, ...] = (
    LensName("hook_resid_pre hook_in", "in"),
    *_norm("ln1", "norm1"),
    LensName("attn.hook_in attn.hook_q attn.hook_k attn.hook_v attn.hook_rot_q attn.hook_rot_k attn.hook_attn_scores "
             "attn.hook_z attn.o.hook_in", when=_latent, why=_DIFFERS),
    LensName("attn.hook_in attn.q.hook_in attn.k.hook_in attn.v.hook_in", "q", "input"),
    LensName("attn.hook_q attn.q.hook_out", "q", "turned"),
    LensName("attn.hook_k attn.k.hook_out", "k", "turned"),
    LensName("attn.hook_v attn.v.hook_out", "v", "turned"),
    *_norm("attn.q_norm", "q_norm"),
    *_norm("attn.k_norm", "k_norm"),
    LensName("attn.hook_q_normed", "q_norm"),
    LensName("attn.hook_k_normed", "k_norm"),
    LensName("attn.hook_cos attn.hook_sin", why=_NO_ANGLES),
    LensName("attn.hook_rot_q", "q_scaled", "turned", lambda c: c.query_scale > 0),
    LensName("attn.hook_rot_q", "q_rot", "turned"),
    LensName("attn.hook_rot_k", "k_rot", "turned"),
    LensName("attn.hook_attn_scores", when=_weights_as_scores,
             why="TransformerLens 4.3 has the weights there in this model; scaled has the scores"),
    LensName("attn.hook_attn_scores", when=_alibi, why=_DIFFERS),
    LensName("attn.hook_attn_scores", "masked", "least"),
    LensName("attn.hook_pattern", "weights"),
    LensName("attn.hook_result", "attn", "result", _has_heads),
    LensName("hook_attn_in hook_q_input attn.hook_attn_in attn.hook_q_input", "in", "head", _has_heads),
    LensName("hook_k_input hook_v_input attn.hook_k_input attn.hook_v_input", "in", "kv head", _has_heads),
    LensName("attn.hook_z attn.o.hook_in", "head_out", "turned"),
    LensName("attn.o.hook_out", "attn"),
    LensName("attn.hook_out attn.hook_hidden_states", "norm1", when=_encoder),
    LensName("attn.hook_out attn.hook_hidden_states", when=_alibi, why=_ADDED),
    LensName("attn.hook_out attn.hook_hidden_states", "attn"),
    LensName("hook_attn_out", "norm1", when=_encoder),
    LensName("hook_attn_out", "attn_scaled", when=_scaled),
    LensName("hook_attn_out", "attn_norm", when=lambda c: c.norm_order in ("both", "output")),
    LensName("hook_attn_out", "attn"),
    *_norm("ln1_post", "attn_norm"),
    LensName("hook_resid_mid", "sum", when=_encoder),
    LensName("hook_resid_mid", "norm1", when=_post),
    LensName("hook_resid_mid", "mid"),
    *_norm("ln2", "norm2"),
    LensName("hook_mlp_in", "norm2", "input", lambda c: c.norm_order in ("pre", "both") and not c.shared_norm),
    LensName("mlp.hook_in hook_mlp_in mlp.hook_pre", "ffn.router", "input", _has_experts),
    LensName("mlp.hook_post", "ffn", when=_has_experts),
    LensName("mlp.gate.hook_in", "ffn.router", "input", _has_experts),
    LensName("mlp.gate.hook_out mlp.hook_expert_weights mlp.gate.hook_expert_weights mlp.hook_expert_indices "
             "mlp.gate.hook_expert_indices", when=lambda c: _has_experts(c) and _scaled(c), why=_DIFFERS),
    LensName("mlp.gate.hook_out", "ffn.router", when=_has_experts),
    LensName("mlp.hook_expert_weights mlp.gate.hook_expert_weights", "ffn.routes"),
    LensName("mlp.hook_expert_indices mlp.gate.hook_expert_indices",
             why="the numbers of the chosen experts are not a step here; ffn.chosen has 1 for each of them"),
    LensName("mlp.hook_in hook_mlp_in mlp.in.hook_in", "ffn.hidden", "input"),
    LensName("mlp.gate.hook_in", "ffn.gate", "input"),
    LensName("mlp.hook_pre mlp.gate.hook_out", "ffn.gate", when=lambda c: c.gated),
    LensName("mlp.hook_pre_linear", "ffn.hidden", when=lambda c: c.gated),
    LensName("mlp.hook_pre", "ffn.hidden"),
    LensName("mlp.in.hook_out", "ffn.hidden"),
    LensName("mlp.hook_post mlp.out.hook_in", "ffn.act"),
    LensName("mlp.out.hook_out", "ffn"),
    LensName("mlp.hook_out", when=_alibi, why=_ADDED),
    LensName("mlp.hook_out", "ffn"),
    LensName("hook_mlp_out", "ffn_scaled", when=_scaled),
    LensName("hook_mlp_out", "ffn_norm", when=lambda c: c.norm_order in ("both", "output")),
    LensName("hook_mlp_out", "ffn"),
    *_norm("ln2_post", "ffn_norm"),
    LensName("hook_resid_post hook_out", "norm2", when=lambda c: _post(c) and not c.side_width),
    LensName("hook_resid_post hook_out", "out"),
)  # fmt: skip
"""Names inside a layer."""


_FOR_HEADS = {"result": "head", "head": "head", "kv head": "kv head"}
"""The parts that have an axis more than the step, after the tokens, and its name."""


@dataclass(frozen=True)
class Lens:
    """A parsed name of TransformerLens: ``name`` without its block, and ``part`` as in ``LensName``."""

    name: str
    part: str
    in_layer: bool

    def axes(self, step: Step) -> tuple[str, ...]:
        """The axes of the tensor that TransformerLens has."""
        axes = ("token",) if step.name == "ids" else step.axes
        if self.part == "turned":
            return (axes[1], axes[0], *axes[2:])
        if self.part in _FOR_HEADS:
            return (axes[0], _FOR_HEADS[self.part], *axes[1:])
        return (*axes[:-1], "scale") if self.part == "scale" else axes

    def of(self, address: str) -> str:
        """The tensor in words, relative to our step at ``address``."""
        descriptions = {
            "turned": f"{address} with tokens before heads",
            "least": f"{address}, with the least number where a key is masked",
            "scale": f"what {address} divides by",
            "normalized": f"{address} before gain and bias",
            "result": f"what each head adds to {address}, which adds its bias to their sum",
            "head": f"{address}, once for each head",
            "kv head": f"{address}, once for each head of keys and values",
        }
        return descriptions.get(self.part, address)

    @property
    def is_step(self) -> bool:
        """Whether a step of ours has the same numbers."""
        return self.part not in ("scale", "normalized", *_FOR_HEADS)

    def tensor(self, site: Site) -> Tensor:
        """The tensor of TransformerLens, without its batch axis. Raises AddressError if its numbers are not ours."""
        if self.part in ("scale", "normalized"):
            assert isinstance(site.operation, Norm)
            normed, scale = site.operation.normed(site.input())
            return (scale if self.part == "scale" else normed).to(site.input().dtype)
        if self.part == "result":
            return heads_added(site).transpose(0, 1)  # (H, T, C) -> (T, H, C)
        if self.part in _FOR_HEADS:
            return site.value[:, None].expand(-1, site.config.sizes[self.part], -1)  # (T, C) -> (T, H, C)
        value, neighbours = site.value, _rotates_neighbours(site)
        if self.part == "turned":
            return (in_pairs(value, site.config) if neighbours and site.step.role in "qk" else value).transpose(0, 1)
        if self.part == "least" and neighbours:
            raise AddressError(f"{self.name!r} is refused: {_DIFFERS}")
        return value.masked_fill(value == -torch.inf, torch.finfo(value.dtype).min) if self.part == "least" else value


def in_pairs(tensor: Tensor, config: ModelConfig) -> Tensor:
    """Heads (H, T, D) with the pairs that RoPE rotates, (0, D/2), (1, D/2 + 1) …, moved next to each other."""
    width = config.rope.width
    turned = tensor[..., :width].unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
    return torch.cat((turned, tensor[..., width:]), dim=-1)


def _rotates_neighbours(site: Site) -> bool:
    """Whether RoPE rotates neighbours in the model's files (GPT-J) and in TransformerLens; here it rotates halves."""
    from tinytf.checkpoints.huggingface.table import Family

    table = getattr(site.trace.about.model, "table", None) if site.trace.about else None
    return isinstance(table, Family) and any(stored.paired for stored in table.stored.values())


def find_lens(name: str, layers: tuple[int, ...] | None, table: StepTable) -> tuple[Step, tuple[int, ...] | None, Lens]:
    """The step and layers of a TransformerLens name. Raises AddressError if we have no such tensor."""
    inside, config = layers is not None, table.config if layers is None else table.config.at(layers[0])
    row = _rows(config, inside).get(name)
    full = name if layers is None else f"blocks.{layers[0]}.{name}"
    if row is None and name in _rows(config, not inside):
        if inside:
            raise AddressError(f"{full!r} is not inside a block", f"write {name} alone")
        raise AddressError(f"{name!r} is a name in every block", f"say which: blocks.0.{name}, or L0.{name}")
    if row is None:
        candidates = [candidate for candidate, row in _rows(config, inside).items() if _place(row, layers, table)]
        raise AddressError(f"{full!r} is not a name that this model has", did_you_mean(name, candidates))
    if row.why:
        raise AddressError(f"{full!r} is refused: {row.why}")
    place = _place(row, layers, table)
    if place is None:
        reason = table.why_absent(row.step) or "its numbers are in a different order there"
        raise AddressError(f"{full!r} is not a name that this model has: {reason}")
    found_layers = layers if inside else None if place[1] is None else (place[1],)
    return table.at(*place), found_layers, Lens(name, "" if row.part == "input" else row.part, inside)


@lru_cache(maxsize=64)
def _rows(config: ModelConfig, inside: bool) -> dict[str, LensName]:
    """The row of each name that applies to a model or, with ``inside``, to a layer."""
    rows: dict[str, LensName] = {}
    for row in IN_BLOCKS if inside else OUTSIDE:
        for name in row.names.split() if row.when(config) else ():
            rows.setdefault(name, row)
    return rows


def _place(row: LensName, layers: tuple[int, ...] | None, table: StepTable) -> StepKey | None:
    """The place of our step for a row; None if the model or the layer lacks it."""
    aliases = {"<unembedded>": table.over_vocabulary and table.unembedded.name, "<embedded>": table.embedded}
    place = aliases.get(row.step, row.step) or "", layers[0] if layers else None
    if place not in table.by_key:
        return None
    step = table.at(*place)
    if isinstance(step.operation, HeadNorm):
        return None  # there TransformerLens has all heads of a token side by side
    return next(iter(table.sources(step, place[1])), None) if row.part == "input" else place


def known_names(table: StepTable, layer: int | None) -> dict[str, Lens | str]:
    """Every TransformerLens name of a layer or, with None, outside the layers; a str is the reason for refusing it."""
    names: dict[str, Lens | str] = {}
    layers = None if layer is None else (layer,)
    for name, row in _rows(table.config.at(layer), layer is not None).items():
        if row.why:
            names[name] = row.why
        elif _place(row, layers, table) is not None:
            names[name] = find_lens(name, layers, table)[2]
    return names
