"""TransformerLens' names: the step of ours that each is of, and how its tensor is made of ours.

They are those of TransformerLens 4.3, with ``blocks.N.`` or ``LN.`` before those of a layer; its tensors without their
batch axis. ``tests/peer/test_names_peer.py`` holds every row against it. A name that it has and that is none of ours is
here too, with the reason. The first row of a name that is for a model holds.
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
from tinytf.steps.table import Place, StepTable
from tinytf.trace.site import Site

Predicate = Callable[[ModelConfig], bool]

HOOK = "hook_"
"""What every name of TransformerLens has in it."""


@dataclass(frozen=True)
class LensName:
    """Some ``names`` of one tensor: that of our ``step``, or with ``part``: what goes into that step (``input``), its
    heads behind the tokens (``turned``), of a norm what it divides by (``scale``) and what is left before gain and bias
    (``normalized``), masked scores with the least number of their type (``least``).

    ``why`` says that we have no such tensor.
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


def _mixed(config: ModelConfig) -> bool:
    return config.experts > 0


def _norm(component: str, step: str, when: Predicate = lambda _: True) -> tuple[LensName, ...]:
    """The four names of a norm."""
    return (
        LensName(f"{component}.hook_in", step, "input", when),
        LensName(f"{component}.hook_scale", step, "scale", when),
        LensName(f"{component}.hook_normalized", when=lambda c: not c.norm_gain and when(c), why=_OTHERWISE),  # OLMo
        LensName(f"{component}.hook_normalized", step, "normalized", when),
        LensName(f"{component}.hook_out", step, "", when),
    )


_ADDED = "TransformerLens' tensor of that name is with the residual stream added in this model"
_OTHERWISE = "TransformerLens 4.3 has other numbers or axes there in models like this one"
_NO_ANGLES = "cosines and sines are no step here; q_rot and k_rot are what they make"
_POSITION_IDS = "the numbers of positions are no step here; embed.positions is what they look up"

OUTSIDE: tuple[LensName, ...] = (
    LensName("embed.hook_in", "ids"),
    LensName("hook_embed", "embed.norm", when=lambda c: c.embed_norm),
    LensName("hook_embed embed.hook_out", "embed.tokens"),
    LensName("pos_embed.hook_in", why=_POSITION_IDS),
    LensName("hook_pos_embed pos_embed.hook_out", "embed.positions"),
    LensName("token_type_embed.hook_in", why="the numbers of token types are no step here; see embed.types"),
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
"""Those without a layer. A step in <…> is the one that is unembedded, or the sum of the embeddings."""

IN_BLOCKS: tuple[LensName, ...] = (
    LensName("hook_resid_pre hook_in", "in"),
    *_norm("ln1", "norm1"),
    LensName("attn.hook_in attn.hook_q attn.hook_k attn.hook_v attn.hook_rot_q attn.hook_rot_k attn.hook_attn_scores "
             "attn.hook_z attn.o.hook_in", when=_latent, why=_OTHERWISE),
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
    LensName("attn.hook_attn_scores", when=_alibi, why=_OTHERWISE),
    LensName("attn.hook_attn_scores", "masked", "least"),
    LensName("attn.hook_pattern", "weights"),
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
    LensName("mlp.hook_in hook_mlp_in mlp.hook_pre", "ffn.router", "input", _mixed),
    LensName("mlp.hook_post", "ffn", when=_mixed),
    LensName("mlp.gate.hook_in", "ffn.router", "input", _mixed),
    LensName("mlp.gate.hook_out mlp.hook_expert_weights mlp.gate.hook_expert_weights mlp.hook_expert_indices "
             "mlp.gate.hook_expert_indices", when=lambda c: _mixed(c) and _scaled(c), why=_OTHERWISE),
    LensName("mlp.gate.hook_out", "ffn.router", when=_mixed),
    LensName("mlp.hook_expert_weights mlp.gate.hook_expert_weights", "ffn.routes"),
    LensName("mlp.hook_expert_indices mlp.gate.hook_expert_indices",
             why="the numbers of the chosen experts are no step here; ffn.chosen has 1 for each of them"),
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
    LensName("hook_resid_post hook_out", "norm2", when=_post),
    LensName("hook_resid_post hook_out", "out"),
)  # fmt: skip
"""Those of a layer."""


@dataclass(frozen=True)
class Lens:
    """A name of TransformerLens as it was read: ``name`` without its block, and ``part`` as in ``LensName``."""

    name: str
    part: str
    in_layer: bool

    def axes(self, step: Step) -> tuple[str, ...]:
        """The axes of its tensor."""
        axes = ("token",) if step.name == "ids" else step.axes
        if self.part == "turned":
            return (axes[1], axes[0], *axes[2:])
        return (*axes[:-1], "scale") if self.part == "scale" else axes

    def of(self, place: str) -> str:
        """What it is in words, of the step that is called ``place`` here."""
        said = {
            "turned": f"{place} with tokens before heads",
            "least": f"{place}, with the least number where a key is masked",
            "scale": f"what {place} divides by",
            "normalized": f"{place} before gain and bias",
        }
        return said.get(self.part, place)

    @property
    def is_step(self) -> bool:
        """Whether its numbers are those of a step of ours."""
        return self.part not in ("scale", "normalized")

    def tensor(self, site: Site) -> Tensor:
        """TransformerLens' tensor, without its batch axis. Raises AddressError for one that it has otherwise."""
        if self.part in ("scale", "normalized"):
            assert isinstance(site.operation, Norm)
            normed, scale = site.operation.normed(site.input())
            return (scale if self.part == "scale" else normed).to(site.input().dtype)
        value, beside = site.value, _turns_neighbours(site)
        if self.part == "turned":
            return (in_pairs(value, site.config) if beside and site.step.role in "qk" else value).transpose(0, 1)
        if self.part == "least" and beside:
            raise AddressError(f"{self.name!r} is refused: {_OTHERWISE}")
        return value.masked_fill(value == -torch.inf, torch.finfo(value.dtype).min) if self.part == "least" else value


def in_pairs(tensor: Tensor, config: ModelConfig) -> Tensor:
    """Heads (H, T, D) with what RoPE turns, (0, D/2), (1, D/2 + 1) …, beside each other."""
    width = config.rope.width
    turned = tensor[..., :width].unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
    return torch.cat((turned, tensor[..., width:]), dim=-1)


def _turns_neighbours(site: Site) -> bool:
    """Whether RoPE turns neighbours in the files of the model (GPT-J), as in TransformerLens; here it turns halves."""
    from tinytf.checkpoints.huggingface.table import Family

    table = getattr(site.trace.about.model, "table", None) if site.trace.about else None
    return isinstance(table, Family) and any(one.paired for one in table.stored.values())


def find_lens(name: str, layers: tuple[int, ...] | None, table: StepTable) -> tuple[Step, tuple[int, ...] | None, Lens]:
    """The step and the layers that a name of TransformerLens is of. Raises AddressError for one that we have not."""
    inside, config = layers is not None, table.config if layers is None else table.config.at(layers[0])
    row = _rows(config, inside).get(name)
    full = name if layers is None else f"blocks.{layers[0]}.{name}"
    if row is None and name in _rows(config, not inside):
        if inside:
            raise AddressError(f"{full!r} is not inside a block", f"write {name} alone")
        raise AddressError(f"{name!r} is a name in every block", f"say which: blocks.0.{name}, or L0.{name}")
    if row is None:
        known = [one for one, row in _rows(config, inside).items() if _place(row, layers, table)]
        raise AddressError(f"{full!r} is not a name that this model has", did_you_mean(name, known))
    if row.why:
        raise AddressError(f"{full!r} is refused: {row.why}")
    place = _place(row, layers, table)
    if place is None:
        why = table.why_absent(row.step) or "its numbers lie otherwise there"
        raise AddressError(f"{full!r} is not a name that this model has: {why}")
    within = layers if inside else None if place[1] is None else (place[1],)
    return table.at(*place), within, Lens(name, "" if row.part == "input" else row.part, inside)


@lru_cache(maxsize=64)
def _rows(config: ModelConfig, inside: bool) -> dict[str, LensName]:
    """The row of each name that is for a model, or a layer of it."""
    found: dict[str, LensName] = {}
    for row in IN_BLOCKS if inside else OUTSIDE:
        for name in row.names.split() if row.when(config) else ():
            found.setdefault(name, row)
    return found


def _place(row: LensName, layers: tuple[int, ...] | None, table: StepTable) -> Place | None:
    """Our step that a row is of; None where the model, or the layer, has none."""
    there = {"<unembedded>": table.over_vocabulary and table.unembedded.name, "<embedded>": table.embedded}
    place = there.get(row.step, row.step) or "", layers[0] if layers else None
    if place not in table.by_place:
        return None
    step = table.at(*place)
    if isinstance(step.operation, HeadNorm):
        return None  # TransformerLens has all heads of a token side by side there
    return next(iter(table.sources(step, place[1])), None) if row.part == "input" else place


def known_names(table: StepTable, layer: int | None) -> dict[str, Lens | str]:
    """Every name of TransformerLens, in a block or, without a layer, outside them; or why it is refused."""
    found: dict[str, Lens | str] = {}
    layers = None if layer is None else (layer,)
    for name, row in _rows(table.config.at(layer), layer is not None).items():
        if row.why:
            found[name] = row.why
        elif _place(row, layers, table) is not None:
            found[name] = find_lens(name, layers, table)[2]
    return found
