"""The table of a family of transformers, and what families share: activations, sizes, a head, harmless keys."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tinytf.checkpoints.huggingface.heads import ClassHead, named_head, stored_head, written_head
from tinytf.checkpoints.huggingface.sight import read_sight, write_sight
from tinytf.checkpoints.table import Draft, FamilyTable, Group, Key, Tensors
from tinytf.config import ModelConfig
from tinytf.errors import ConfigError
from tinytf.fields import Fields


@dataclass(frozen=True, kw_only=True)
class Family(FamilyTable):
    """One family of transformers.

    ``classes`` are the model classes of transformers, by our word for the head; the first is the default. ``needs`` are
    our fields that must not be 0. ``written`` keys are always written with the same value. ``heads`` are the
    classification heads, by our word. ``written_as`` gives words in names of tensors that a configuration replaces by
    others, whose ``spellings`` those are. ``older_keys`` are keys of the code that a model was first published with, by
    their names now, and ``keys_now`` makes keys of now of what that code says in another way. ``alone`` is the table of
    files that hold the encoder without its decoder; ``variants`` are the tables of configurations in which a key has a
    certain value. A family that ``unties`` has a head of its own where the file has one that differs from the
    embeddings, though the configuration says that they are tied. ``constants`` are small tensors that count as
    settings: their numbers are read like keys, under their own names. Beside a head of classes, names begin with
    ``body_prefix``. Where ``routes_scaled_after``, the module of the experts gives their sum before it is scaled.
    """

    model_type: str
    classes: Mapping[str, str]
    needs: tuple[str, ...] = ()
    written: Mapping[str, Any] = field(default_factory=dict)
    heads: Mapping[str, ClassHead] = field(default_factory=dict)
    written_as: Callable[[ModelConfig], Mapping[str, str]] = lambda _: {}
    older_keys: Mapping[str, str] = field(default_factory=dict)
    keys_now: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
    alone: "Family | None" = None
    variants: "Mapping[tuple[str, Any], Family]" = field(default_factory=dict)
    unties: bool = False
    constants: tuple[str, ...] = ()
    body_prefix: str = ""
    routes_scaled_after: bool = False

    def with_names_now(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """A configuration whose older keys are those of now, unless it has those too."""
        older = {old: now for now, old in self.older_keys.items() if now not in data}
        return self.keys_now({older.get(name, name): value for name, value in data.items()})

    def of_config(self, data: Mapping[str, Any]) -> "Family":
        """The table for a configuration with these keys, where the family has several."""
        return next((table for (key, value), table in self.variants.items() if data.get(key) == value), self)

    def of_file(self, names: Collection[str]) -> "Family":
        """The table for a file with tensors of these ``names``, which may hold the encoder of two stacks alone."""
        whole = self.alone is None or any(self.plain(name).startswith("decoder.") for name in names)
        return self if self.alone is None or whole else self.alone

    def read(self, fields: Fields, tensors: Tensors) -> ModelConfig:
        """Our configuration from the keys of a file; an ``is_causal: false`` that it cannot have is named."""
        draft = self.read_fields(fields, tensors)
        try:
            return ModelConfig.of(**draft)
        except ConfigError as error:
            if fields.data.get("is_causal", True):
                raise
            ModelConfig.of(**{**draft, "causal": True})  # raises for what has nothing to do with it
            raise fields.fault(f"is_causal False is not implemented here: {error.message}", error.hint) from None

    def read_fields(self, fields: Fields, tensors: Tensors) -> dict[str, Any]:
        """Our fields from a file, with those of its classification head, whose dense layer is then not the pooler."""
        draft = super().read_fields(fields, tensors)
        draft |= read_sight(fields, draft)
        head = stored_head(self.heads, fields, tensors)
        if not head:
            return draft
        head_modules = {layout.module for layout in self.heads[head].stored.values()}
        without_pooler = (
            {"pooler": False} if "pooler" in self.stored and self.stored["pooler"].module in head_modules else {}
        )
        return draft | without_pooler | self.heads[head].read(head, fields, draft)

    def with_head(self, config: ModelConfig) -> "Family":
        """The table including the classification head of this configuration."""
        head = self._head_of(config)
        return self if head is None else replace(self, stored={**self.stored, **head.stored})

    def head_of_class(self, name: str) -> str:
        """Our word for the head of a class of transformers; none for a class that is not in the table."""
        of_class = {theirs: ours for ours, theirs in self.classes.items()}
        masked = name.replace("ForPreTraining", "ForMaskedLM")  # BERT's and ALBERT's have that head too
        return of_class.get(name) or named_head(self.heads, name) or of_class.get(masked) or "none"

    def written_name(self, plain: str, config: ModelConfig) -> str:
        """The name under which a tensor is written."""
        for word, other in self.written_as(config).items():
            plain = plain.replace(f".{word}.", f".{other}.")
        of_body = config.labels and not plain.startswith(self.outside)
        return self.body_prefix * bool(of_body) + self.prefixed(plain)

    def _head_of(self, config: ModelConfig) -> ClassHead | None:
        """The classification head of a configuration, by its kind and whether it has a dense layer; None for others."""
        for name, head in self.heads.items():
            if (head.head or name) == config.head.kind and ("head.dense" in head.stored) == config.head_dense:
                return head
        return None

    def write(self, config: ModelConfig) -> dict[str, Any] | None:
        """The keys of config.json for our ``config``; None where the family cannot express it."""
        keys = self._write(config)
        attends_both_ways = not config.causal and "causal" not in self.fixed
        if keys is None or not attends_both_ways or _BOTH_WAYS & keys.keys():
            return keys
        try:
            causal = write_sight(config)
        except ConfigError:  # such as one with a head that fills masks
            return keys
        return {**(self._write(causal) or {}), "is_causal": False}

    def _write(self, config: ModelConfig) -> dict[str, Any] | None:
        head = self._head_of(config)
        needed = (*self.needs, *["d_ff"] * ("d_ff" not in self.fixed))
        if not all(getattr(config, name) for name in needed) or (config.labels and head is None):
            return None
        default_class = next(iter(self.classes.values()))
        keys: dict[str, Any] = {"architectures": [self.classes.get(config.head.kind, default_class)]}
        if head is not None:
            keys |= written_head(config, default_class, head)
        for setting in self.settings:
            for name, value in setting.write(config).items():
                keys[name] = {**keys.get(name, {}), **value} if isinstance(value, dict) else value
        return {**keys, **self.written}


_BOTH_WAYS = {"is_decoder", "use_bidirectional_attention"}
"""Keys by which a family says itself whether it attends both ways."""

SIZES = (
    Key("vocab_size"),
    Key("hidden_size", "d_model"),
    Key("num_hidden_layers", "n_layers"),
    Key("num_attention_heads", "n_heads"),
    Key("intermediate_size", "d_ff"),
)
"""The keys that most families share."""

ACTIVATIONS = {
    "relu": "relu",
    "relu2": "relu2",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
"""Our activations by their names in transformers; of several names, the first is written."""


def lm_head(tensor: str = "lm_head.weight", *, biased: bool = False) -> Group:
    """A next-token head, if it is tied to the embeddings or stored; in some families ``biased``."""

    def read(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
        present = draft["tied_head"] or tensor in tensors
        return {"head": "lm" if present else "none", "head_bias": biased and present}

    return Group(read)


def by_layer(field: str, values: Sequence[Any]) -> dict[str, Any]:
    """One of our fields with a value for each layer; a single value if they are all equal."""
    return {field: values[0]} if len(set(values)) == 1 else {"by_layer": ((field, tuple(values)),)}


def merge_fields(*groups: dict[str, Any]) -> dict[str, Any]:
    """Our fields from several groups in one, joining those that differ by layer."""
    merged = {name: value for group in groups for name, value in group.items()}
    return merged | {"by_layer": tuple(pair for group in groups for pair in group.get("by_layer", ()))}


def mixers(draft: Draft, kinds: Sequence[str], sizes: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """The mixer of each layer, and the ``sizes`` of its heads by kind of mixer; the draft has those of attention."""
    names = next(iter(sizes.values()))
    every = {**sizes, "attention": {name: draft.get(name, 0) for name in names}}
    by_size = (by_layer(name, [every[kind][name] for kind in kinds]) for name in names)
    return merge_fields(by_layer("mixer", kinds), *by_size)
