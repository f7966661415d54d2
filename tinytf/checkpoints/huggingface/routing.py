"""Keys of a mixture of experts: which layers have experts, which experts all tokens share, how a token chooses."""

from typing import Any

from tinytf.checkpoints.huggingface.table import by_layer, merge_fields
from tinytf.checkpoints.table import Draft, Group, Skip, Stored, Tensors, experts
from tinytf.config import ModelConfig
from tinytf.fields import REQUIRED, Fields

_KINDS = {"dense": False, "sparse": True}


def routed(
    dense: str = "first_k_dense_replace",
    first: int = 0,
    *,
    kinds: bool = False,
    count: str = "n_routed_experts",
    shared: str = "n_shared_experts",
    scale: str = "routed_scaling_factor",
    per_token: str = "num_experts_per_tok",
) -> Group:
    """The experts of all layers but the first few, read from the keys with these names.

    The key ``dense`` says how many layers have none (default ``first``); with ``kinds`` a list mlp_layer_types may name
    them one by one. The ``shared`` experts are read as one wide expert. A family without shared experts or a scale has
    an empty name there. ``count`` may list two spellings.
    """

    def read(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
        layers, n_dense = draft["n_layers"], fields.whole(dense, first, least=0)
        sparse = [layer >= n_dense for layer in range(layers)]
        words = fields.array("mlp_layer_types", str, None, count=layers) if kinds else None
        if words is not None:
            sparse = [fields.meaning("mlp_layer_types", word, _KINDS) for word in words]
        if any(sparse) and draft.get("ffn_bias"):
            raise fields.fault("mlp_bias is true, and experts have no biases")
        default = REQUIRED if any(sparse) else 0  # keys of experts that no layer has are read too, and change nothing
        spelling = next((name for name in count.split() if name in fields.data), count.split()[0])
        n_experts, width = fields.whole(spelling, default), fields.whole("moe_intermediate_size", default)
        found = {
            "experts": n_experts,
            "experts_per_token": fields.whole(per_token, default),
            "d_expert": width,
            "d_shared": width * fields.whole(shared, default, least=0) if shared else 0,
            "routed_scale": fields.number(scale, default) if scale else 1.0,
        }
        if not any(sparse):
            return {}
        return merge_fields(found, by_layer("experts", [n_experts if is_sparse else 0 for is_sparse in sparse]))

    def write(config: ModelConfig) -> dict[str, Any]:
        sparse = [config.at(layer).experts > 0 for layer in range(config.n_layers)]
        where: dict[str, Any] = {dense: [*sparse, True].index(True)}
        if kinds:
            where = {"mlp_layer_types": ["sparse" if is_sparse else "dense" for is_sparse in sparse]}
        if not config.experts:
            return {**where, count.split()[0]: 1}
        return {
            **where,
            count.split()[0]: config.experts,
            per_token: config.experts_per_token,
            "moe_intermediate_size": config.d_expert,
            **({shared: config.d_shared // config.d_expert} if shared else {}),
            **({scale: config.routed_scale} if scale else {}),
        }

    return Group(read, write)


def groups_of(fields: Fields, groups: int, kept: int, best: int) -> dict[str, int]:
    """The groups that experts are chosen from, where not all are open; ``groups`` and ``kept`` are the defaults."""
    found = {"expert_groups": fields.whole("n_group", groups), "groups_per_token": fields.whole("topk_group", kept)}
    return {**found, "group_best": best} if found["groups_per_token"] < found["expert_groups"] else {}


def written_groups(config: ModelConfig) -> dict[str, Any]:
    """The keys of groups and of the sum of the weights."""
    return {
        "n_group": config.expert_groups or 1,
        "topk_group": config.groups_per_token or 1,
        "norm_topk_prob": config.routes_renormed,
    }


SIGMOID = {"router": "sigmoid", "choice_bias": True}
"""Experts chosen by a sigmoid plus a bias, and weighted by the sigmoid alone (DeepSeek-V3)."""


def sigmoid_router(groups: int = 1, kept: int = 1, *, renormed: bool = True) -> Group:
    """A router of sigmoids, which chooses in the groups whose two best experts are largest; these are defaults."""

    def read(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
        sums_to_1, in_groups = fields.flag("norm_topk_prob", renormed), groups_of(fields, groups, kept, best=2)
        return {**SIGMOID, "routes_renormed": sums_to_1, **in_groups} if draft.get("experts") else {}

    return Group(read, written_groups)


_NAMES = ("gate", "up", "down")


def shared_expert(module: str) -> dict[str, Stored]:
    """The shared expert of a block, stored in ``module``."""
    return {f"blocks.{{n}}.ffn.shared.{name}": Stored(f"{module}.{name}_proj") for name in _NAMES}


MIXED = {
    "blocks.{n}.ffn.router": Stored("layers.{n}.mlp.gate"),
    "blocks.{n}.ffn.preference": Stored("layers.{n}.mlp.gate.e_score_correction_bias", bare=True),
    **experts("layers.{n}.mlp.experts"),
    **shared_expert("layers.{n}.mlp.shared_experts"),
}
"""Router, experts and shared expert, as DeepSeek-V3 stores them."""
_FURTHER = "layers that predict further tokens"
FURTHER_LAYERS = Skip(r"layers\.(?P<layer>\d+)\..*", _FURTHER, noted=True)
FURTHER_MODULES = Skip(r"mtp\b.*", _FURTHER, noted=True)
FURTHER_NAMED = Skip(r"mtp.*", _FURTHER, noted=True)
"""Multi-token prediction: layers beyond those of the configuration, or modules of their own."""
