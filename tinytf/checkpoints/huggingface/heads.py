"""Heads of classes: how transformers names them, where their parts are stored, and what config.json says of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tinytf.checkpoints.table import Found, Stored, Tensors
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
    """One head of classes of a family: where its modules are stored, and what is the same in all of them.

    ``activation`` is that of its dense layer, a word of ours, or what was found where it is empty. It ``reads`` the
    first or the last token where its classes are of the text. ``only`` are keys that need one of these values.
    A family with two heads of one kind names that of ours in ``head``, how its class is called in ``ends``, and its
    ``labels``, each of which it decides alone.
    """

    stored: Mapping[str, Stored]
    activation: str = ""
    reads: str = "first"
    bias: bool = True
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    head: str = ""
    ends: str = ""
    labels: tuple[str, ...] = ()

    def read(self, head: str, fields: Fields, found: Found) -> dict[str, Any]:
        """Our fields, on top of those that were found of the body."""
        for name, allowed in self.only.items():
            fields.require(name, allowed)
        head = self.head or head
        labels = self.labels or (("start", "end") if head == "question" else _labels(fields))
        usual = "number" if len(labels) == 1 else "one"
        decides = fields.word("problem_type", {**_DECIDES, "": usual}, "") if head == "sequence" else "one"
        decides = "several" if self.labels else decides
        dense = "head.dense" in self.stored
        return {
            "head": head,
            "labels": labels,
            "head_reads": self.reads if head == "sequence" else "every",
            "head_dense": dense,
            "head_norm": "head.norm" in self.stored,
            "head_activation": (self.activation or found.get("head_activation", found["activation"]))
            if dense
            else "gelu",
            "head_bias": self.bias,
            "tied_head": False,
            "logit_cap": 0.0,
            "logit_scale": 1.0,
            "decides": decides,
        }


def stored_head(heads: Mapping[str, ClassHead], fields: Fields, tensors: Tensors) -> str:
    """The head of classes that the file's architecture names and whose tensors are stored; empty for none."""
    named = [str(one) for one in fields.array("architectures", str, ())]
    for head, one in heads.items():
        stored = f"{one.stored['head.decoder'].module}.weight" in tensors
        if stored and any(name.endswith(one.ends or _ENDS[head]) for name in named):
            return head
    return ""


def written_head(config: ModelConfig, default: str, one: ClassHead) -> dict[str, Any]:
    """The keys of config.json for a head of classes, whose class is called like the ``default`` one."""
    stem = re.sub(r"(For[A-Z]\w*|LMHeadModel|Model)$", "", default)
    named = {"architectures": [stem + (one.ends or _ENDS[config.head.kind])]}
    if one.labels:
        return named
    return {
        **named,
        "id2label": {str(number): label for number, label in enumerate(config.labels)},
        "label2id": {label: number for number, label in enumerate(config.labels)},
        "problem_type": next(word for word, ours in _DECIDES.items() if ours == config.decides),
    }


def _labels(fields: Fields) -> tuple[str, ...]:
    """The names of the classes by their numbers; without names they are ``LABEL_0`` and so on, two by default."""
    named = fields.object("id2label")
    if named is None:
        return tuple(f"LABEL_{number}" for number in range(fields.whole("num_labels", 2, least=1, most=10**6)))
    fields.asked.add("num_labels")
    count = len(named.data)
    wrong = sorted(set(named.data) - {str(number) for number in range(count)})
    if wrong or not count:
        raise fields.fault(f"id2label does not name the classes 0 to {max(count, 1) - 1}")
    return tuple(named.text(str(number)) for number in range(count))


DECODER_HEADS = {
    "sequence": ClassHead({"head.decoder": Stored("score")}, reads="last", bias=False),
    "token": ClassHead({"head.decoder": Stored("score")}),
}
"""The heads of most decoders."""
