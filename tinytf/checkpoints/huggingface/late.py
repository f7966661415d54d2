"""Folders of late interaction: ColBERT's own, PyLate's, and those of sentence-transformers."""

import string
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tinytf.checkpoints.huggingface.table import Family
from tinytf.checkpoints.load import Checkpoint
from tinytf.checkpoints.table import Stored
from tinytf.errors import CheckpointError
from tinytf.fields import Fields
from tinytf.files import read_json
from tinytf.text.late import LateInteraction, Side

_METADATA = "artifact.metadata"
_MARKERS = "[unused0]", "[unused1]"
_FILLED = 32
"""The tokens of a query in ColBERT, where its files say nothing."""


def is_colbert(directory: Path) -> bool:
    """Whether a folder is one of ColBERT's own, with the projection beside the encoder."""
    path = directory / "config.json"
    return path.exists() and "HF_ColBERT" in (read_json(path).get("architectures") or ())


def read_colbert(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint of one of ColBERT's own folders, with its projection of each token."""
    family = checkpoint.table
    assert isinstance(family, Family)
    if "linear.weight" not in checkpoint.weights.shapes:
        raise CheckpointError(f"{checkpoint.source} lacks linear.weight, the projection of ColBERT")
    stored = {**family.stored, "pooling.dense": Stored("linear")}
    return replace(
        checkpoint,
        table=replace(family, stored=stored, outside=(*family.outside, "linear.")),
        config=checkpoint.config.but(
            pooling="tokens",
            pooled_dense=(checkpoint.weights.shapes["linear.weight"][0],),
            pooled_bias=False,
            unit_embedding=True,
            pooler=False,
        ),
    )


def colbert_reads(directory: Path) -> LateInteraction:
    """How one of ColBERT's own folders reads texts, by its artifact.metadata, or the defaults of ColBERT."""
    path = directory / _METADATA
    said = Fields(read_json(path) if path.exists() else {}, path)
    query, document = (
        said.text(key, default) for key, default in zip(("query_token_id", "doc_token_id"), _MARKERS, strict=True)
    )
    filled = said.whole("query_maxlen", _FILLED, least=1)
    return LateInteraction(
        Side(query, longest=filled, filled=filled, attends=said.flag("attend_to_mask_tokens", False)),
        Side(document, longest=said.whole("doc_maxlen", 0)),
        tuple(string.punctuation) if said.flag("mask_punctuation", True) else (),
    )


def pylate_reads(said: Fields, prompts: Mapping[str, str]) -> LateInteraction:
    """How a folder of PyLate reads texts, by its config_sentence_transformers.json."""
    query, document = (said.text(f"{side}_prefix", "") for side in ("query", "document"))
    longest = said.whole("query_length", _FILLED, least=1)
    fills = said.flag("do_query_expansion", True)
    skipped = said.array("skiplist_words", str, tuple(string.punctuation))
    return LateInteraction(
        Side(query, prompts.get("query", "").removeprefix(query), longest, longest if fills else 0,
             attends=said.flag("attend_to_expansion_tokens", False)),
        Side(document, prompts.get("document", "").removeprefix(document), said.whole("document_length", 0)),
        tuple(skipped),
    )  # fmt: skip


def reads(transformer: Fields, mask: Fields, prompts: Mapping[str, str]) -> LateInteraction:
    """How a folder of sentence-transformers with a MultiVectorMask reads texts, by the settings of its modules."""
    mask.require("keep_only_token_ids", ())
    mask.require("skiplist_tasks", (["document"],))
    query: dict[str, Any] = {"longest": transformer.whole("query_length", 0)}
    expansion = transformer.object("query_expansion")
    if expansion is not None:
        filled = expansion.whole("length", _FILLED, least=1)
        fixed = expansion.word("strategy", {"fixed": True, "min": False}, "fixed")
        query = {
            "longest": filled if fixed else max(query["longest"], filled) if query["longest"] else 0,
            "filled": filled,
            "filler": expansion.text("token", "") or None,
            "attends": expansion.flag("attend", False),
        }
    return LateInteraction(
        Side(prompt=prompts.get("query", ""), **query),
        Side(prompt=prompts.get("document", ""), longest=transformer.whole("document_length", 0)),
        tuple(mask.array("skiplist_words", str, ())),
    )
