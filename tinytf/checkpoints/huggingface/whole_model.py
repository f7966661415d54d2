"""The text part of a model that takes images or sound too: where its tensors lie, and what its head is."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from tinytf.checkpoints.huggingface.table import Family
from tinytf.checkpoints.table import Draft, Group, Skip, Tensors
from tinytf.fields import Fields

_OUTSIDE = ("architectures", "tie_word_embeddings", "quantization_config")
"""Keys of the whole model, which count more than those of its text_config."""
SCALED_HEADS = frozenset(
    {"gemma3n", "gemma4", "gemma4_unified", "granite_docling", "hyperclovax_vision_v2", "paligemma"}
)
"""Whole models whose head applies the scale or the soft cap of the text_config; that of any other is a matrix alone."""
_HEAD = "lm_head"
_RENAMED = (
    (r"^(blocks|encoder\.layers)\.(?=\d)", "layers."),
    (r"\.to_([qkv])\.", r".\1_proj."),
    (r"\.to_out\.", ".o_proj."),
    (r"\.norm_([qk])\.", r".\1_norm."),
)
"""Words of a tower or of diffusers that transformers, saving some models, puts into the names of the text part."""


@dataclass(frozen=True, kw_only=True)
class TextPart(Family):
    """The table of a family as the text part of a whole model, which has a prefix, and its head another."""

    head_prefix: str = ""

    def of_file(self, names: Collection[str]) -> "TextPart":
        """The table for a file with tensors of these ``names``.

        The text part lies where its embeddings do; the head lies beside it or further out. All else is another part.
        """
        embeddings = f"{self.stored['embed.tokens'].module}.weight"
        prefixes = [
            name.removesuffix(embeddings) for name in names if re.search(rf"(^|\.){re.escape(embeddings)}$", name)
        ]
        if not prefixes:
            return self
        modules = {layout.module.split(".")[0] for layout in self.stored.values()}
        prefix = max(prefixes, key=lambda prefix: sum(_first(name, prefix) in modules for name in names))
        parents = [prefix[: dot.end()] for dot in re.finditer(r"\.", prefix)][::-1]
        head_prefix = next((parent for parent in parents if any(n.startswith(parent + _HEAD) for n in names)), "")
        inside = {first for name in names if (first := _first(name, prefix))} if prefix else modules
        inside = inside if any(not name.startswith((prefix, head_prefix + _HEAD)) for name in names) else modules
        text = "|".join(re.escape(module) for module in sorted({*inside, *modules, *self.outside}))
        return replace(
            self,
            prefix=prefix,
            head_prefix=head_prefix,
            skipped=(*self.skipped, Skip(rf"(?!({text})(\.|$)).*", "the parts for images or sound", noted=True)),
        )

    def plain(self, stored: str) -> str:
        """A stored name without the prefix of its part."""
        head = stored.removeprefix(self.head_prefix)
        if head.startswith(f"{_HEAD}."):
            return head
        if not stored.startswith(self.prefix):
            return stored.removeprefix("model.")
        for word, usual in _RENAMED if self.prefix else _RENAMED[1:]:
            stored = re.sub(word, usual, stored.removeprefix(self.prefix))
        return super().plain(stored)

    def prefixed(self, plain: str) -> str:
        """The stored name: with the prefix of the text part, or for its head with that of the head."""
        return (self.head_prefix if plain.startswith(self.outside) else self.prefix) + plain


def _first(name: str, prefix: str) -> str:
    """The first word of a name after the prefix; empty for a name without it."""
    return name.removeprefix(prefix).split(".")[0] if name.startswith(prefix) else ""


def keys_of_text(data: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the text part: those of its own table ``text``, and those of the whole model that count more."""
    keys = {**text, **{key: data[key] for key in _OUTSIDE if key in data}}
    if data.get("model_type") == "paligemma":  # its mask is made outside, and is causal but for a marked prefix
        keys.pop("use_bidirectional_attention", None)
    return keys


def notes_on(whole: Mapping[str, Any]) -> list[str]:
    """What else a user of a whole model should know."""
    if whole.get("model_type") != "paligemma":
        return []
    return ["a prompt is read causally, as the model does alone; PaliGemma's processor lets its tokens see later ones"]


def text_part(family: Family, whole: str) -> TextPart:
    """The table of a family as the text part of a whole model of this model_type, whose head it has."""
    plain_head = {} if whole in SCALED_HEADS else {"logit_cap": 0.0, "logit_scale": 1.0}

    def read(data: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
        stored = f"{_HEAD}.weight" in tensors
        classes = data.array("architectures", str, ())
        predicts = any(not name.endswith("Model") for name in classes)
        tied = not stored and (predicts or draft["tied_head"])  # transformers unties a stored head that differs
        if not (stored or tied):
            return {}
        return {"head": "lm", "tied_head": tied, "head_bias": f"{_HEAD}.bias" in tensors, **plain_head}

    values = {field.name: getattr(family, field.name) for field in fields(family)}
    return TextPart(**{**values, "settings": (*family.settings, Group(read))})
