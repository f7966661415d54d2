"""The configuration of a transformer: a tree of parts, each checked once, free of torch.

In files, recipes and options every setting has one flat name. Settings that differ from layer to layer are there in
``by_layer``, each with one value a layer.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tinytf.errors import ConfigError
from tinytf.fields import REQUIRED, Field, Limits, require_fields
from tinytf.nearest import did_you_mean
from tinytf.parts.attention import LATENT_EPS, divisor_words
from tinytf.parts.block import MIXERS, BlockConfig
from tinytf.parts.embedding import Embedding
from tinytf.parts.head import CLASS_HEADS, Head
from tinytf.parts.norm import NORMED
from tinytf.parts.part import COUNT, LACKS, POSITIVE, SHARE, Leaf, Part, build, leaf, leaves, listed, value_at

__all__ = ["CHOICES", "CLASS_HEADS", "DIFFERING", "FIELDS", "LATENT_EPS", "LEFT_OUT", "ModelConfig", "Rope"]

_MOST_LAYERS = 1024
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
class ModelConfig(Part):
    """Everything that decides the architecture and the parameter count of a model.

    ``blocks`` has one BlockConfig a layer, equal ones being one object; ``at`` gives a model of one layer's parts
    alone. With ``layer_groups`` so many groups of layers share their weights (ALBERT). A flat name reads the setting of
    that name wherever it is in the tree: that of all layers which have what it is of, or its default where they differ.

    Raises ConfigError, with the numbers, for combinations that cannot be built.
    """

    d_model: int = leaf(limits=POSITIVE)
    context: int = leaf(limits=POSITIVE)
    causal: bool = leaf(True)
    layer_groups: int = leaf(0, COUNT)
    dropout: float = leaf(0.0, SHARE)
    embedding: Embedding
    blocks: tuple[BlockConfig, ...]
    head: Head

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    else:

        def __getattr__(self, name: str) -> Any:
            if name not in _LEAVES:
                raise AttributeError(f"a configuration has no {name!r}")
            value = self.__dict__[name] = self._read(_LEAVES[name])
            return value

    def __hash__(self) -> int:
        if "_hash" not in self.__dict__:  # the cached tables of a model are asked for all the time
            self.__dict__["_hash"] = hash((self.d_model, self.context, self.embedding, self.head, *set(self.blocks)))
        return int(self.__dict__["_hash"])

    @classmethod
    def of(cls, *, n_layers: int, by_layer: Any = (), **settings: Any) -> "ModelConfig":
        """A configuration from settings by their flat names; ``by_layer`` has pairs of a name and a value a layer.

        Without ``d_head`` heads are ``d_model / n_heads`` wide, and without ``d_expert`` experts have ``d_ff`` units.
        """
        flat = {**settings, "n_layers": n_layers, "by_layer": by_layer}
        if unknown := flat.keys() - FIELDS.keys():
            raise TypeError(f"a configuration has no {', '.join(sorted(unknown))}")
        for name, value in flat.items():
            FIELDS[name].require(value, ConfigError)
        if not flat.get("d_head") and "d_model" in flat and "n_heads" in flat:
            if flat["d_model"] % flat["n_heads"]:
                raise ConfigError(
                    f"d_model {flat['d_model']} is not divisible by n_heads {flat['n_heads']}",
                    "choose another n_heads, or give d_head",
                )
            flat["d_head"] = flat["d_model"] // flat["n_heads"]
        if flat.get("experts") and not flat.get("d_expert") and "d_ff" in flat:
            flat["d_expert"] = flat["d_ff"]
        pairs = _pairs(by_layer, n_layers)
        layers = list(zip(*pairs.values(), strict=True)) or [()] * n_layers
        kinds = {
            values: build(BlockConfig, {**flat, **_of_layer(dict(zip(pairs, values, strict=True)))})
            for values in dict.fromkeys(layers)
        }
        own = {name: flat[name] for name in ("d_model", "context", "causal", "layer_groups", "dropout") if name in flat}
        return cls(
            **own,
            embedding=build(Embedding, flat),
            blocks=tuple(kinds[values] for values in layers),
            head=build(Head, flat),
        )

    def setting(self, name: str) -> Any:
        """The setting of a flat name."""
        return self.head.kind if name == "head" else getattr(self, name)

    def but(self, **changes: Any) -> "ModelConfig":
        """The configuration with some settings changed, by their flat names, in all layers."""
        kept = tuple((name, values) for name, values in self.by_layer if name not in changes)
        return self.of(**{**self.to_dict(), "by_layer": kept, **changes})

    def require(self) -> None:
        kinds = tuple(dict.fromkeys(self.blocks))
        for one in (self.embedding, *kinds, self.head):
            one.fit(self.d_model, self.causal)
        if self.embedding.position_offset and self.positions not in ("learned", "sinusoidal_halves"):
            raise ConfigError(f"position_offset {self.embedding.position_offset} needs learned positions")
        for name, values in self.by_layer:
            if not _LEAVES[name].differs:
                raise ConfigError(f"{name} does not differ by layer", did_you_mean(name, DIFFERING))
            if name in _OF_MIXERS and len({*zip(values, self._mixers, strict=True)}) > len({*self._mixers}):
                raise ConfigError(f"{name} differs between layers with the same mixer: by_layer says {values}")
            if name == "experts" and len({*values} - {0}) > 1:
                raise ConfigError(f"a layer has {self.experts} experts or 0, and by_layer says {values}")
            if name == "positions" and not {*values} <= {"rotary", "none"}:
                raise ConfigError("positions that differ by layer are rotary in some and none in the others")
        if self.layer_groups and (self.layer_groups > self.n_layers or len(kinds) > 1):
            also = " that differ by layer" if len(kinds) > 1 else ""
            raise ConfigError(f"layer_groups {self.layer_groups} do not fit {self.n_layers} layers{also}")

    @property
    def _mixers(self) -> tuple[str, ...]:
        return tuple(block.mixer.called for block in self.blocks)

    def _read(self, found: Leaf) -> Any:
        if found.path[0] != "blocks":
            return value_at(self, found.path)
        there = {block: value_at(block, found.path[1:]) for block in dict.fromkeys(self.blocks)}
        there = {block: value for block, value in there.items() if value is not LACKS}
        first = min((MIXERS.index(type(block.mixer)) for block in there), default=0)
        of_mixer = found.path[1] == "mixer" and found.path[-1] != "called"
        values = {value for block, value in there.items() if not of_mixer or type(block.mixer) is MIXERS[first]}
        values = values - {found.off} or values
        if not values and found.off is not None:
            return found.off
        return values.pop() if len(values) == 1 else found.field.default

    @property
    def by_layer(self) -> tuple[tuple[str, tuple[Any, ...]], ...]:
        """The settings that differ from layer to layer, by their flat names, each with its value in every layer."""
        if self.is_even:
            return ()
        names = sorted(name for name, found in _LEAVES.items() if found.path[0] == "blocks")
        each = ((name, [value_at(block, _LEAVES[name].path[1:]) for block in self.blocks]) for name in names)
        differing = ((name, values) for name, values in each if len({*values} - {LACKS}) > 1)
        return tuple(
            (name, tuple(self._read(_LEAVES[name]) if value is LACKS else value for value in values))
            for name, values in differing
        )

    @property
    def is_even(self) -> bool:
        """Whether all layers have equal parts."""
        return len({*self.blocks}) == 1

    @property
    def n_layers(self) -> int:
        return len(self.blocks)

    @property
    def kind(self) -> str:
        """``decoder`` where a token sees only the past, else ``encoder``."""
        return "decoder" if self.causal else "encoder"

    @property
    def predicts_tokens(self) -> bool:
        """Whether the head's logits are of the vocabulary."""
        return self.head.kind in ("lm", "mlm")

    @property
    def head_width(self) -> int:
        """What the unembedding of the head takes."""
        return self.embed_width if self.predicts_tokens else self.d_model

    @property
    def n_outcomes(self) -> int:
        """How many tokens or classes the head has a logit for."""
        return len(self.labels) or self.vocab_size

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

    def at(self, layer: int | None) -> "ModelConfig":
        """The configuration of one layer; of the model where there is None."""
        return self if layer is None or self.is_even else _at(self, layer)

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
        """What scores are divided by, as an expression: √d_head, unless the configuration says otherwise."""
        return divisor_words(self)

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
            "n_heads·switch": self.n_heads,
            "tap": self.conv_width,
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
        return self.blocks[0].norms.learned

    @property
    def normed(self) -> str:
        """Where a block norms, in words."""
        return NORMED[self.norm_order]

    def described(self) -> dict[str, str]:
        """What there is to say of every part of the model, by row; rows of what the model lacks are left out."""
        each = [block.words(self.causal) for block in self.blocks]
        layers = {row: _of_layers([words.get(row, "") for words in each]) for row in _ROWS}
        groups = f"the layers with {self.layer_groups} sets of weights"
        whole = {
            "attention": listed(
                "bidirectional" if self.looks_ahead else "causal",
                f"{self.n_layers} layers" + f" × {layers['attention']}" * bool(layers["attention"]),
                bool(self.layer_groups) and (groups if self.layer_groups > 1 else "all layers with the same weights"),
            ),
            "widths": f"d_model {self.d_model}, {layers['widths']}",
            "vocabulary": f"{self.embedding.vocab_size:,} tokens, context {self.context:,}",
            "biases": layers["biases"] or "none",
        }
        embedding, head = self.embedding.words(self.causal), self.head.words(self.causal)
        placed = listed(layers["positions"], embedding["positions"])
        rows = {**layers, **embedding, **head, **whole, "positions": placed}
        return {row: rows[row] for row in _ROWS if rows.get(row)}

    def to_dict(self) -> dict[str, Any]:
        """All settings by their flat names, as JSON takes them."""
        return {name: self.setting(name) for name in FIELDS}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "ModelConfig":
        """A configuration from its flat settings; unknown and missing ones are ConfigErrors with their names."""
        return cls.of(**require_fields(fields, FIELDS, "the model configuration"))


_LEAVES: dict[str, Leaf] = {
    **leaves(ModelConfig),
    **{name: found._replace(path=("blocks", *found.path)) for name, found in leaves(BlockConfig).items()},
}
DIFFERING = tuple(name for name, found in _LEAVES.items() if found.differs)
"""The settings that may differ from layer to layer."""
_ROWS = (
    "attention", "recurrence", "convolution", "window", "chunks", "scores", "gates", "widths", "vocabulary",
    "embeddings", "positions", "norm", "residual", "feed-forward", "biases", "head",
)  # fmt: skip
"""The rows of ``described``, in their order."""
_OF_MIXERS = ("n_heads", "n_kv_heads", "d_head", "d_value")
"""What differs between kinds of mixers alone."""
_FIRST = ("vocab_size", "d_model", "n_layers", "n_heads", "d_ff", "context")
_OF_LAYERS = {
    "n_layers": Field("n_layers", int, REQUIRED, Limits(least=1, most=_MOST_LAYERS)),
    "by_layer": Field("by_layer", list, (), of=list),
}
FIELDS: dict[str, Field] = {
    name: _OF_LAYERS[name] if name in _OF_LAYERS else _LEAVES[name].field
    for name in dict.fromkeys([*_FIRST, *_LEAVES, *_OF_LAYERS])
}
"""What each setting of a configuration may hold, by its flat name."""
CHOICES = {name: field.limits.choices for name, field in FIELDS.items() if field.limits.choices}
"""The words that a setting may be."""


def _pairs(by_layer: Any, n_layers: int) -> dict[str, tuple[Any, ...]]:
    """The values of every layer by name. Raises ConfigError for what is none, or does not differ by layer."""
    try:
        pairs = dict(sorted((str(name), tuple(values)) for name, values in by_layer))
        hash(tuple(pairs.items()))
    except (TypeError, ValueError):
        raise ConfigError("by_layer has to be pairs of a field and its values, one a layer") from None
    for name, values in pairs.items():
        if name not in DIFFERING:
            raise ConfigError(f"{name} does not differ by layer", did_you_mean(name, DIFFERING))
        if len(values) != n_layers:
            raise ConfigError(f"by_layer has {len(values)} values of {name} for {n_layers} layers")
    return pairs


def _of_layers(words: Sequence[str]) -> str:
    """What is said of every layer, and then what of some, with their number."""
    each = [said.split(", ") for said in words]
    of_all = [phrase for phrase in each[0] if all(phrase in phrases for phrases in each)]
    kinds = Counter(", ".join(phrase for phrase in phrases if phrase not in of_all) for phrases in each)
    some = (f"{said} in {count} of the layers" if len(kinds) > 1 else said for said, count in kinds.items() if said)
    return "; ".join([", ".join(of_all)] * bool(of_all) + list(some))


def _of_layer(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of one layer that differ from the model's, given those that are said to."""
    return {"rope_scaling": "none", **values} if values.get("positions") == "none" else dict(values)


@lru_cache(maxsize=1024)
def _at(config: ModelConfig, layer: int) -> ModelConfig:
    return replace(config, blocks=(config.blocks[layer],) * config.n_layers)
