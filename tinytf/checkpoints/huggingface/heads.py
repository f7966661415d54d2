"""Classification heads: their class names in transformers, their stored tensors, and their keys in config.json."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tinytf.checkpoints.table import Draft, Stored, Tensors
from tinytf.config import ModelConfig
from tinytf.fields import Fields

_DECIDES = {
    "single_label_classification": "one",
    "multi_label_classification": "several",
    "regression": "number",
}
_ENDS = {
    "sequence": "ForSequenceClassification",
    "token": "ForTokenClassification",
    "question": "ForQuestionAnswering",
}


@dataclass(frozen=True)
class ClassHead:
    """One classification head of a family: where its modules are stored, and the settings that never vary.

    ``activation`` is our word for the activation of its dense layer; empty for the configuration's own. A head on the
    whole text ``reads`` the first or the last token, or what a key says: its name, its default, and our words for its
    values, in ``reads_by``. ``only`` are keys that must have one of these values. A family with two heads of one kind
    gives our word for the second in ``head``, the end of its class name in ``ends``, and its ``labels``, each decided
    independently.
    """

    stored: Mapping[str, Stored]
    activation: str = ""
    reads: str = "first"
    reads_by: tuple[str, str, Mapping[str, str]] = ("", "", {})
    bias: bool = True
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    head: str = ""
    ends: str = ""
    labels: tuple[str, ...] = ()

    def read(self, head: str, fields: Fields, draft: Draft) -> dict[str, Any]:
        """Our fields for the head, on top of the ``draft`` of the body."""
        for name, allowed in self.only.items():
            fields.require(name, allowed)
        head = self.head or head
        labels = self.labels or (("start", "end") if head == "question" else _labels(fields))
        default = "number" if len(labels) == 1 else "one"
        decides = fields.word("problem_type", {**_DECIDES, "": default}, "") if head == "sequence" else "one"
        decides = "several" if self.labels else decides
        dense = "head.dense" in self.stored
        return {
            "head": head,
            "labels": labels,
            "head_reads": self._reads(fields) if head == "sequence" else "every",
            "head_dense": dense,
            "head_norm": "head.norm" in self.stored,
            "head_activation": (self.activation or draft.get("head_activation", draft["activation"]))
            if dense
            else "gelu",
            "head_bias": self.bias,
            "tied_head": False,
            "logit_cap": 0.0,
            "logit_scale": 1.0,
            "decides": decides,
        }

    def _reads(self, fields: Fields) -> str:
        key, default, meanings = self.reads_by
        return str(fields.word(key, meanings, default)) if key else self.reads


def stored_head(heads: Mapping[str, ClassHead], fields: Fields, tensors: Tensors) -> str:
    """The classification head that the file's architecture names and whose tensors are stored; empty for none."""
    named = [str(class_head) for class_head in fields.array("architectures", str, ())]
    for head, class_head in heads.items():
        stored = f"{class_head.stored['head.decoder'].module}.weight" in tensors
        if stored and any(name.endswith(class_head.ends or _ENDS[head]) for name in named):
            return head
    return ""


def named_head(heads: Mapping[str, ClassHead], name: str) -> str:
    """Our word for the classification head that the class ``name`` of transformers has; empty for none."""
    for head, class_head in heads.items():
        if name.endswith(class_head.ends or _ENDS[head]):
            return class_head.head or head
    return ""


def written_head(config: ModelConfig, default_class: str, class_head: ClassHead) -> dict[str, Any]:
    """The keys of config.json for a classification head; its class name has the stem of ``default_class``."""
    stem = re.sub(r"(For[A-Z]\w*|LMHeadModel|(Encoder)?Model)$", "", default_class)
    keys = {"architectures": [stem + (class_head.ends or _ENDS[config.head.kind])]}
    if class_head.labels:
        return keys
    key, _, meanings = class_head.reads_by
    reads = {key: next((word for word, ours in meanings.items() if ours == config.head_reads), None)} if key else {}
    return {
        **keys,
        **reads,
        "id2label": {str(class_id): label for class_id, label in enumerate(config.labels)},
        "label2id": {label: class_id for class_id, label in enumerate(config.labels)},
        "problem_type": next(word for word, ours in _DECIDES.items() if ours == config.decides),
    }


def _labels(fields: Fields) -> tuple[str, ...]:
    """The class names in order of their ids; without names ``LABEL_0`` and so on, two by default."""
    id2label = fields.object("id2label")
    if id2label is None:
        return tuple(f"LABEL_{class_id}" for class_id in range(fields.whole("num_labels", 2, least=1, most=10**6)))
    fields.asked.add("num_labels")
    count = len(id2label.data)
    strays = sorted(set(id2label.data) - {str(class_id) for class_id in range(count)})
    if strays or not count:
        raise fields.fault(f"id2label does not name the classes 0 to {max(count, 1) - 1}")
    return tuple(id2label.text(str(class_id)) for class_id in range(count))


DECODER_HEADS = {
    "sequence": ClassHead({"head.decoder": Stored("score")}, reads="last", bias=False),
    "token": ClassHead({"head.decoder": Stored("score")}, only={"token_classification_bias": (True,)}),
}
"""The heads of most decoders."""
