"""The configuration of a transformer: a tree of parts, each checked once. Free of torch.

In files, recipes and options every setting has one flat name; ``by_layer`` there lists the settings that differ from
layer to layer, with one value a layer.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tinytf.errors import ConfigError
from tinytf.fields import REQUIRED, Field, Limits, require_fields
from tinytf.nearest import did_you_mean
from tinytf.parts import ngrams
from tinytf.parts.attention import LATENT_EPS, divisor_words
from tinytf.parts.block import MIXERS, BlockConfig
from tinytf.parts.embedding import Embedding
from tinytf.parts.head import CLASS_HEADS, Head
from tinytf.parts.norm import NORMED
from tinytf.parts.part import COUNT, LACKS, POSITIVE, ROUNDED, SHARE, Leaf, Part, build, leaf, leaves, listed, value_at
from tinytf.parts.pooling import Pooling

__all__ = [
    "CHOICES", "CLASS_HEADS", "DIFFERING", "ENC", "FIELDS", "LATENT_EPS", "LEFT_OUT", "ZEROS", "ModelConfig", "Rope",
]  # fmt: skip

MOST_LAYERS = 1024
ENC = "enc."
"""What the addresses of a stack begin with that another stack reads."""
LEFT_OUT: dict[str, dict[str, Any]] = {
    "scaling": {"attention_divisor": 1.0},
    "mask": {"mask": False, "window": 0, "chunk": 0},
    "positions": {
        "positions": "none", "position_offset": 0, "rope_scaling": "none",
        "distances": 0, "farthest": 0,
        **dict.fromkeys(("distance_norm", "distance_keys", "distance_queries", "distance_matrices",
                        "distance_waves"), False),
    },
}  # fmt: skip
"""The parts of attention that can be left out, and the settings of a configuration without them."""


class Rope(NamedTuple):
    """The RoPE settings: how the first ``width`` dimensions of a head are rotated.

    ``scaling`` stretches the angles to a context longer than ``original_context``, the one of training:

    - ``linear`` divides every frequency by ``factor``.
    - ``llama3`` and ``yarn`` divide by ``factor`` only the frequencies with fewer than ``low_frequency`` turns in the
      original context, and leave those with more than ``high_frequency`` turns unchanged. In between, llama3 blends by
      the number of turns, yarn by the index of the pair; with ``truncate`` yarn's range begins and ends at whole pairs.
    - ``longrope`` divides each frequency by its own entry of ``factors``, or of ``long_factors`` in a text longer than
      ``original_context``.
    - ``dynamic`` multiplies ``theta`` in a text of t > ``original_context`` tokens by (factor·t/original − factor +
      1)^(width/(width − 2)), so that every length turns by angles of its own.
    - ``proportional`` turns only the first ``turned`` pairs of dimensions, and divides their frequencies by ``factor``.

    yarn and longrope also multiply the rotated queries and keys by ``attention_factor``.
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
    turned: int = 0

    def of_text(self, length: int) -> "Rope":
        """The settings for a text of ``length`` tokens."""
        if length <= self.original_context:
            return self
        if self.scaling == "dynamic":
            stretch = self.factor * length / self.original_context - self.factor + 1
            return self._replace(theta=self.theta * stretch ** (self.width / (self.width - 2)), scaling="none")
        if not self.long_factors:
            return self
        return self._replace(factors=self.long_factors, long_factors=())


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Part):
    """Everything that decides the architecture and the parameter count of a model.

    ``blocks`` has one BlockConfig a layer; layers with equal parts share the object. ``at`` gives the configuration of
    one layer. ``encoder`` is the stack that this one reads, where there are two (with a
    ``d_source`` and none, its states are given); a target begins with ``start_id``,
    and with ``shares_embeddings`` both have one table of them.
    ``layer_groups`` is how many groups of layers share their weights (ALBERT). A flat name reads its setting
    anywhere in the tree: the value of the layers that have the feature, or the default where they differ.

    Raises ConfigError, with the numbers, for combinations that cannot be built.
    """

    d_model: int = leaf(limits=POSITIVE)
    context: int = leaf(limits=POSITIVE)
    causal: bool = leaf(True, said="the causal mask")
    layer_groups: int = leaf(0, COUNT, said="{} groups of layers that share weights")
    dropout: float = leaf(0.0, SHARE, said="a dropout of {}")
    shares_embeddings: bool = leaf(False, said="one table of embeddings for both stacks")
    start_id: int = leaf(0, COUNT, said="token {} at the start of a target")
    embedding: Embedding
    blocks: tuple[BlockConfig, ...]
    head: Head
    vector: Pooling = field(default_factory=Pooling)
    encoder: "ModelConfig | None" = None

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    else:

        def __getattr__(self, name: str) -> Any:
            if name not in LEAVES:
                raise AttributeError(f"a configuration has no {name!r}")
            value = self.__dict__[name] = self._read(LEAVES[name])
            return value

    def __hash__(self) -> int:
        if "_hash" not in self.__dict__:  # every lookup of a cached table hashes the configuration
            parts = (self.embedding, self.head, self.encoder, *self._distinct_blocks)
            self.__dict__["_hash"] = hash((self.d_model, self.context, *parts))
        return int(self.__dict__["_hash"])

    @classmethod
    def of(cls, *, n_layers: int, by_layer: Any = (), encoder: Any = None, **settings: Any) -> "ModelConfig":
        """Build a configuration from settings by flat name; ``by_layer`` pairs a name with one value a layer.

        ``encoder`` is another configuration, or its settings.

        ``d_head`` defaults to ``d_model / n_heads``, and ``d_expert`` to ``d_ff``.
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
        if all(block.mixer.called == "none" for block in kinds.values()):
            raise ConfigError("mixer is 'none' in all layers, so no token would see another")
        given, taken = ([kinds[values].memory.memory == word for values in layers] for word in ("gives", "takes"))
        if [False, *given] != [*taken, False]:
            raise ConfigError("what a layer gives, the layer above must take, and no other: see memory")
        model_settings = {
            name: flat[name]
            for name in ("d_model", "context", "causal", "layer_groups", "dropout", "shares_embeddings", "start_id")
            if name in flat
        }
        return cls(
            **model_settings,
            embedding=build(Embedding, flat),
            blocks=tuple(kinds[values] for values in layers),
            head=build(Head, flat),
            vector=build(Pooling, flat),
            encoder=cls.from_dict(encoder) if isinstance(encoder, Mapping) else encoder,
        )

    @property
    def stacks(self) -> dict[str, "ModelConfig"]:
        """The stacks by what their addresses begin with, in the order in which they run; the model itself is the last.

        Whatever is true of every stack is a loop over these: no other place need ask whether there are two.
        """
        return {"": self} if self.encoder is None else {ENC: self.encoder, "": self}

    @property
    def common_vocabulary(self) -> int:
        """The number of ids that every stack has: the vocabulary, or the smaller of two."""
        return min(stack.embedding.vocab_size for stack in self.stacks.values())

    def setting(self, name: str) -> Any:
        """The setting with this flat name; for ``head``, its kind rather than the part."""
        return self.head.kind if name == "head" else getattr(self, name)

    def but(self, **changes: Any) -> "ModelConfig":
        """The configuration with some settings changed in all layers, by flat name."""
        by_layer = tuple((name, values) for name, values in self.by_layer if name not in changes)
        return self.of(**{**self.to_dict(), "by_layer": by_layer, **changes})

    def require(self) -> None:
        kinds = self._distinct_blocks
        read, wide = {block.cross.d_source for block in kinds}, [of.d_model for at, of in self.stacks.items() if at]
        if len(read) > 1 or (wide and read != {*wide}):
            raise ConfigError(f"d_source {self.d_source} needs an encoder as wide, and it is {(*wide, 'missing')[0]}")
        tables = [(stack.embedding.vocab_size, stack.embed_width) for stack in self.stacks.values()]
        if self.shares_embeddings and tables != tables[:1] * 2:
            raise ConfigError("shares_embeddings needs an encoder with as many tokens, and embeddings as wide")
        for part in (self.embedding, *kinds, self.vector, self.head):
            part.fit(self.d_model, self.causal)
        if self.d_layer_input and self.embed_norm:
            raise ConfigError("d_layer_input projects the embeddings, but embed_norm norms them")
        if self.embed_norm and any(block.memory.memory != "none" for block in kinds):
            raise ConfigError("memory reads the embeddings, but embed_norm norms them")
        if self.head_reads == "mean" and self.pooling != "none":
            raise ConfigError(
                f"pooling {self.pooling!r} and a head that reads the mean of the tokens exclude each other"
            )
        if self.pooler and self.pooling != "none":
            raise ConfigError(f"pooling {self.pooling!r} and a pooler exclude each other", "a text has one vector")
        if self.embedding.position_offset and self.positions not in ("learned", "sinusoidal_halves"):
            raise ConfigError(f"position_offset {self.embedding.position_offset} needs learned positions")
        for name, values in self.by_layer:
            if not LEAVES[name].differs:
                raise ConfigError(f"{name} cannot differ by layer", did_you_mean(name, DIFFERING))
            if name == "experts" and len({*values} - {0}) > 1:
                raise ConfigError(f"a layer has {self.experts} experts or 0, and by_layer says {values}")
            if name == "norm_order" and "post" in values:
                raise ConfigError("norms that differ by layer cannot come after the residual sums in some of them")
            if name == "positions" and not {*values} <= {"rotary", "none"}:
                raise ConfigError("positions that differ by layer must be rotary in some and none in the others")
        if self.layer_groups and (self.layer_groups > self.n_layers or len(kinds) > 1):
            differing = " that differ by layer" if len(kinds) > 1 else ""
            raise ConfigError(f"layer_groups {self.layer_groups} do not fit {self.n_layers} layers{differing}")

    @cached_property
    def _distinct_blocks(self) -> tuple[BlockConfig, ...]:
        return tuple(dict.fromkeys(self.blocks))

    def _read(self, setting: Leaf) -> Any:
        if setting.path[0] != "blocks":
            value = value_at(self, setting.path)
            return setting.field.default if value is LACKS else value
        if self.is_even and (value := value_at(self.blocks[0], setting.path[1:])) is not LACKS:
            return value
        of_blocks = [(block.mixer, value_at(block, setting.path[1:])) for block in self._distinct_blocks]
        values_by_mixer = [(mixer, value) for mixer, value in of_blocks if value is not LACKS]
        first_kind = min((MIXERS.index(type(mixer)) for mixer, _ in values_by_mixer), default=0)
        of_mixer = setting.path[1] == "mixer" and setting.path[-1] != "called"
        found = dict.fromkeys(
            value for mixer, value in values_by_mixer if not of_mixer or type(mixer) is MIXERS[first_kind]
        )
        values = [value for value in found if setting.off is None or value != setting.off] or list(found)
        if not values and setting.off is not None:
            return setting.off
        if values and setting.field.name == "n_heads":
            return max(values)  # of views with a place for each head
        one = len(values) == 1 or (values and setting.field.name in _SIZES)
        return values[0] if one else setting.field.default

    @cached_property
    def by_layer(self) -> tuple[tuple[str, tuple[Any, ...]], ...]:
        """The settings that differ from layer to layer, by flat name, each with its value in every layer."""
        if self.is_even:
            return ()
        names = sorted(name for name, setting in LEAVES.items() if setting.path[0] == "blocks")
        in_layers = ((name, [value_at(block, LEAVES[name].path[1:]) for block in self.blocks]) for name in names)
        differing = ((name, values) for name, values in in_layers if len({*values} - {LACKS}) > 1)
        return tuple(
            (name, tuple(self._read(LEAVES[name]) if value is LACKS else value for value in values))
            for name, values in differing
        )

    @cached_property
    def is_even(self) -> bool:
        """Whether all layers have equal parts."""
        return len(self._distinct_blocks) == 1

    @property
    def n_layers(self) -> int:
        return len(self.blocks)

    @property
    def kind(self) -> str:
        """``decoder`` where a token sees only the past, else ``encoder``."""
        return "decoder" if self.causal else "encoder"

    @property
    def predicts_tokens(self) -> bool:
        """Whether the head has a logit for every token of the vocabulary."""
        return self.head.kind in ("lm", "mlm")

    @property
    def head_width(self) -> int:
        """The width of the hidden states that the head unembeds."""
        return self.d_unembed or (self.embed_width if self.predicts_tokens else self.d_model)

    @property
    def n_outcomes(self) -> int:
        """The number of tokens or classes that the head has logits for."""
        return len(self.labels) or self.vocab_size

    @property
    def looks_ahead(self) -> bool:
        """Whether a token sees later ones: in an encoder, and in a decoder without its mask."""
        return not (self.causal and self.mask)

    @property
    def heads_per_kv(self) -> int:
        """The number of query heads that share one key-value head."""
        return self.n_heads // (self.n_kv_heads or 1)

    @property
    def experts_by_id(self) -> bool:
        """Whether the id of a token chooses its experts in some layer."""
        return any(block.feed_forward.mixture.chosen_by_id for block in self.blocks)

    @property
    def heads_in_group(self) -> int:
        """The number of heads in a group of the output of attention."""
        return self.n_heads // self.o_groups

    @property
    def block_series(self) -> int:
        """How many vectors a token gives to blocks: one for its own and, where they overlap, one for the next."""
        return 1 + self.block_overlap

    @property
    def value_width(self) -> int:
        """The width of a head's values and output: ``d_value``, else ``d_head``."""
        return self.d_value or self.d_head

    @property
    def d_own(self) -> int:
        """The dimensions of a latent key that each head has to itself; RoPE turns the others, which all heads share."""
        return self.d_head - self.rope_width

    def at(self, layer: int | None) -> "ModelConfig":
        """The configuration of one layer; the model's own for None."""
        return self if layer is None or self.is_even else _at(self, layer)

    def heads_in(self, layers: Iterable[int]) -> list[tuple[int, int]]:
        """The layer and the number of every head of some layers."""
        return [(layer, head) for layer in layers for head in range(self.at(layer).n_heads)]

    def group_of(self, layer: int) -> int:
        """The index of the group of layers that share weights with this one; ``layer`` itself without groups."""
        # transformers divides floats too
        return int(layer / (self.n_layers / self.layer_groups)) if self.layer_groups else layer

    def first_of(self, layer: int) -> int:
        """The first layer with the same weights as this one."""
        group = self.group_of(layer)
        return next(first for first in range(layer + 1) if self.group_of(first) == group)

    @property
    def score_divisor(self) -> float:
        """The divisor of attention scores."""
        return self.attention_divisor or math.sqrt(self.d_head)

    @property
    def score_divisor_words(self) -> str:
        """The divisor of attention scores as an expression: √d_head, unless ``attention_divisor`` is set."""
        return divisor_words(self)

    @property
    def embed_width(self) -> int:
        """The width of token embeddings, and of the hidden states that a language-model head unembeds."""
        return self.d_embed or self.d_model

    @property
    def summed_width(self) -> int:
        """The width of the sum of embeddings: the stream's, unless the sum is normed and then projected."""
        return self.embed_width if self.embed_norm else self.d_model

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The size of every axis that does not depend on the text."""
        return {
            "d_model": self.d_model,
            "d_embed": self.embed_width,
            "d_unembed": self.d_unembed,
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
            "o_rank": self.o_rank,
            "d_heads_of_group": self.heads_in_group * self.value_width,
            "d_block": self.d_head * self.block_series,
            "d_index_block": self.index_width * self.block_series,
            "block place": self.block_size or self.index_block,
            "kv_rank": self.kv_rank,
            "index_head": self.index_heads,
            "index_width": self.index_width,
            "index_heads·index_width": self.index_heads * self.index_width,
            "n_kv_heads·index_width": self.n_kv_heads * self.index_width,
            "vocab": self.vocab_size,
            "d_dense": (*self.pooled_dense, self.d_model)[0],
            "d_vector": (self.d_model, *self.pooled_dense)[-1],
            "label": len(self.labels),
            "d_source": self.d_source,
            "position": self.context + self.position_offset,
            "type": self.n_token_types,
            "expert": self.experts,
            "learned expert": max(0, self.experts - self.identity_experts),
            "d_expert": self.d_expert,
            "d_layer_input": self.d_layer_input,
            "layer_vocab": self.layer_vocab or self.vocab_size,
            "laurel_rank": self.laurel_rank,
            "stream_rank": self.stream_rank,
            "ngram row": ngrams.rows_of(self),
            "d_ngram": self.d_ngram or self.d_model,
            "d_ngram/table": (self.d_ngram or self.d_model) // ngrams.tables_of(self),
            "stream": self.extra_streams + 1,
            "stream·stream": (self.extra_streams + 1) ** 2,
            "streams·d_model": (self.extra_streams + 1) * self.d_model,
            "others·d_model": self.extra_streams * self.d_model,
            "d_shared": self.d_shared,
            "switch": 1,
            "n_heads·switch": self.n_heads,
            "tap": self.conv_width,
            "ngram tap": self.ngram_conv,
            "dt_rank": self.dt_rank,
            "n_kv_heads·dt_rank": self.n_kv_heads * self.dt_rank,
            "d_scan": self.n_heads * self.value_width // self.scan_heads,
            "d_memory": 2 * self.d_model,
            "adapter_rank": self.adapter_rank,
            "sink": 1,
            "bucket": self.relative_buckets,
            "profile": self.profiles,
            "n_heads·profile": self.n_heads * self.profiles,
            "profile distance": self.profile_extent or self.context,
            "added tap": self.added_conv,
            "distance": 2 * self.distances,
            "d_model·near": self.d_model * self.side_width,
            f"d_model/{self.qkv_groups}": self.d_model // self.qkv_groups,
            f"d_model/{self.ffn_groups}": self.d_model // self.ffn_groups,
            f"d_ff/{self.ffn_groups}": self.d_ff // self.ffn_groups,
            "segment": 2,
        }

    @property
    def rope(self) -> Rope:
        """The RoPE settings of every head."""
        if self.rope_scaling == "none":
            return Rope(self.rope_width or self.d_head, self.rope_theta, "none", 1.0, 1.0, 4.0, 0)
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
            self.rope_short_factors if self.rope_scaling == "longrope" else (),
            self.rope_long_factors if self.rope_scaling == "longrope" else (),
            self.rope_turned if self.rope_scaling == "proportional" else 0,
        )

    @property
    def rope_switch(self) -> int:
        """The length in tokens beyond which a text is turned by other angles; 0 where all lengths are turned alike."""
        return self.rope_original_context if {"longrope", "dynamic"} & self._rope_scalings else 0

    def turned_alike_from(self, length: int) -> int:
        """The shortest text that is turned by the same angles as one of ``length`` tokens."""
        switch = self.rope_switch
        if not 0 < switch < length:
            return 1
        return length if "dynamic" in self._rope_scalings else switch + 1

    @property
    def _rope_scalings(self) -> set[str]:
        layers = range(self.n_layers) if self.by_layer else ()
        return {self.rope_scaling, *(self.at(layer).rope_scaling for layer in layers)}

    @property
    def rotary_layers(self) -> tuple[int, ...]:
        """The layers that rotate queries and keys."""
        return tuple(layer for layer in range(self.n_layers) if self.at(layer).positions == "rotary")

    @property
    def final_norm(self) -> bool:
        """Whether a norm follows the last block; a post-norm block already ends with one."""
        return self.norm_order != "post"

    @property
    def final_eps(self) -> float:
        """ε of the last norm."""
        return float(self.final_norm_eps or self.norm_eps)

    @property
    def norm_parameters(self) -> tuple[str, ...]:
        """The learned parameters of every norm: ``gain``, and for a LayerNorm ``bias``."""
        return self.blocks[0].norms.learned

    @property
    def normed(self) -> str:
        """Where a block applies its norms, in words."""
        return NORMED[self.norm_order]

    def described(self) -> dict[str, str]:
        """The description of the model by row, without the rows that do not apply."""
        descriptions = [block.words(self.causal) for block in self.blocks]
        layers = {row: _of_layers([words.get(row, "") for words in descriptions]) for row in _INFO_ROWS}
        groups = f"the layers with {self.layer_groups} sets of weights"
        overview = {
            "attention": listed(
                "bidirectional" if self.looks_ahead else "causal",
                f"{self.n_layers} layers" + f" × {layers['attention']}" * bool(layers["attention"]),
                bool(self.layer_groups) and (groups if self.layer_groups > 1 else "all layers with the same weights"),
            ),
            "widths": listed(f"d_model {self.d_model}", layers["widths"]),
            "vocabulary": listed(
                f"{self.embedding.vocab_size:,} tokens, context {self.context:,}",
                self.d_source > 0 and f"targets begin with token {self.start_id}",
                self.shares_embeddings and "one table for both stacks",
            ),
            "biases": layers["biases"] or "none",
        }
        if self.encoder is not None:
            of_encoder = self.encoder.described()
            overview["encoder"] = listed(of_encoder["attention"], of_encoder["widths"])
        embedding, head = self.embedding.words(self.causal), self.head.words(self.causal)
        positions = listed(layers["positions"], embedding["positions"])
        rows = {**layers, **embedding, **self.vector.words(self.causal), **head, **overview, "positions": positions}
        return {row: rows[row] for row in _INFO_ROWS if rows.get(row)}

    def differences(self, other: "ModelConfig", rounding: float = ROUNDED) -> dict[str, tuple[Any, Any]]:
        """The settings in which this model and ``other`` differ, by flat name, with both values.

        A setting that differs from layer to layer has a tuple of values. Those of the encoder begin with encoder; of
        an encoder that one of them lacks, its presence differs. ``rounding`` is relative.
        """
        sides = [{**side.to_dict(), **dict(side.by_layer)} for side in (self, other)]
        pairs = {name: (sides[0][name], sides[1][name]) for name in FIELDS if name != "by_layer"}
        found = {name: pair for name, pair in pairs.items() if not _agree(*pair, rounding)}
        read = [ENC in side.stacks for side in (self, other)]
        if not all(read):
            return found | ({"encoder": (read[0], read[1])} if any(read) else {})
        of_encoder = self.stacks[ENC].differences(other.stacks[ENC], rounding)
        return found | {f"encoder.{name}": pair for name, pair in of_encoder.items()}

    def to_dict(self) -> dict[str, Any]:
        """All settings by flat name, ready for JSON; those of the encoder under its name."""
        own = {name: self.setting(name) for name in FIELDS}
        return own if self.encoder is None else {**own, "encoder": self.encoder.to_dict()}

    def stated(self) -> dict[str, Any]:
        """All settings by flat name, without those that only follow from others: where a 0 would stand for them."""
        fields = self.to_dict()
        derived = [name for name in ZEROS if fields[name] and self._is_derived(name)]
        return {name: value for name, value in fields.items() if name not in derived}

    def _is_derived(self, name: str) -> bool:
        try:
            return ModelConfig.from_dict({**self.to_dict(), name: 0}) == self
        except ConfigError:
            return False

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "ModelConfig":
        """Build a configuration from flat settings. Raises ConfigError that names unknown and missing ones."""
        own = {name: value for name, value in fields.items() if name != "encoder" and (name, value) not in _RETIRED}
        encoder = fields.get("encoder")
        read = require_fields(own, FIELDS, "the model configuration")
        return cls.of(**read, encoder=None if encoder is None else cls.from_dict(encoder))


LEAVES: dict[str, Leaf] = {
    **leaves(ModelConfig),
    **{name: setting._replace(path=("blocks", *setting.path)) for name, setting in leaves(BlockConfig).items()},
}
DIFFERING = tuple(name for name, setting in LEAVES.items() if setting.differs)
"""The settings that may differ from layer to layer."""
ZEROS = {name: setting.zero for name, setting in LEAVES.items() if setting.zero}
"""What a 0 of a setting stands for, as an expression."""
_INFO_ROWS = (
    "attention", "recurrence", "convolution", "window", "chunks", "scores", "gates", "widths", "vocabulary",
    "embeddings", "embeddings of layers", "positions", "norm", "residual", "memory", "encoder", "cross-attention",
    "feed-forward", "biases", "pooling", "head",
)  # fmt: skip
"""The rows of ``described``, in their order."""
_MOST_KINDS = 4
"""How many kinds of layers ``described`` tells apart; of more it has the first and the last."""
_SIZES = ("n_kv_heads", "d_head", "d_value", "d_ff")
"""Sizes of which a flat name reads the first layer's where they differ."""
_RETIRED = (("choice_of_scores", True),)
"""Settings of earlier versions with the only value that is left."""
_FIRST = ("vocab_size", "d_model", "n_layers", "n_heads", "d_ff", "context")
_OF_LAYERS = {
    "n_layers": Field("n_layers", int, REQUIRED, Limits(least=1, most=MOST_LAYERS)),
    "by_layer": Field("by_layer", list, (), of=list),
}
FIELDS: dict[str, Field] = {
    name: _OF_LAYERS[name] if name in _OF_LAYERS else LEAVES[name].field
    for name in dict.fromkeys([*_FIRST, *LEAVES, *_OF_LAYERS])
}
"""The type and limits of each setting, by flat name."""
CHOICES = {name: field.limits.choices for name, field in FIELDS.items() if field.limits.choices}
"""The permitted words of each setting that is a choice."""


def _agree(one: Any, other: Any, rounding: float) -> bool:
    """Whether two values of a setting are equal, numbers up to ``rounding``."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(_agree(*pair, rounding) for pair in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=rounding)
    return bool(one == other)


def _pairs(by_layer: Any, n_layers: int) -> dict[str, tuple[Any, ...]]:
    """The values of every layer by setting name. Raises ConfigError for malformed pairs or unsuitable settings."""
    try:
        pairs = dict(sorted((str(name), tuple(values)) for name, values in by_layer))
        hash(tuple(pairs.items()))
    except (TypeError, ValueError):
        raise ConfigError("by_layer must be pairs of a setting and its values, one a layer") from None
    for name, values in pairs.items():
        if name not in DIFFERING:
            raise ConfigError(f"{name} cannot differ by layer", did_you_mean(name, DIFFERING))
        if len(values) != n_layers:
            raise ConfigError(f"by_layer has {len(values)} values of {name} for {n_layers} layers")
    return pairs


def _of_layers(words: Sequence[str]) -> str:
    """Merge the descriptions of all layers: what they share, then the rest with their number."""
    layers = [description.split(", ") for description in words]
    common = [phrase for phrase in layers[0] if all(phrase in phrases for phrases in layers)]
    kinds = Counter(", ".join(phrase for phrase in phrases if phrase not in common) for phrases in layers)
    rest = [f"{kind} in {count} of the layers" if len(kinds) > 1 else kind for kind, count in kinds.items() if kind]
    if len(rest) > _MOST_KINDS:
        rest[1:-1] = [f"{len(rest) - 2} others"]
    return "; ".join([", ".join(common)] * bool(common) + rest)


def _of_layer(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of one layer by its ``by_layer`` values; a layer without positions has no RoPE scaling."""
    return {"rope_scaling": "none", **values} if values.get("positions") == "none" else dict(values)


@lru_cache(maxsize=1024)
def _at(config: ModelConfig, layer: int) -> ModelConfig:
    return replace(config, blocks=(config.blocks[layer],) * config.n_layers)
