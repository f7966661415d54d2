"""Decoders that score a pair of texts: by the logits of one or two tokens, after a template around both texts."""

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tinytf.checkpoints.huggingface.table import Family
from tinytf.checkpoints.load import Checkpoint, Shapes, WeightFiles
from tinytf.checkpoints.table import Stored
from tinytf.errors import CheckpointError
from tinytf.fields import Fields
from tinytf.text.pair import PairTemplate

RELEVANT, NOT_RELEVANT = "relevant", "not relevant"
_DECODER = "score"
"""The module of the rows, under the name that they have in a decoder with a head of classes."""


def read_logit_score(checkpoint: Checkpoint, keys: Fields) -> Checkpoint | str:
    """The decoder as a classifier of pairs, whose logits are its own of two tokens; ``keys`` are those of LogitScore.

    With the token of a relevant pair alone, its logit is the score. Returns why it cannot be read, if so.
    """
    config, family = checkpoint.config, checkpoint.table
    assert isinstance(family, Family)
    if config.head.kind != "lm" or not config.causal:
        return "LogitScore needs the next-token logits of a decoder"
    if config.logit_cap or config.logit_scale != 1 or config.head_bias or config.head_dense or config.head_norm:
        return "LogitScore on capped, scaled, biased or transformed logits is not implemented"
    if keys.text("module_input_name", "causal_logits") != "causal_logits":
        return "LogitScore on something else than the logits is not implemented"
    named = {RELEVANT: keys.index("true_token_id", config.vocab_size)}
    if named[RELEVANT] is None:
        raise keys.fault("true_token_id is missing")
    named[NOT_RELEVANT] = keys.index("false_token_id", config.vocab_size)
    tokens = {label: token for label, token in named.items() if token is not None}
    own = family.prefixed(family.stored["embed.tokens" if config.tied_head else "head.decoder"].module + ".weight")
    if own not in checkpoint.weights.shapes:
        raise CheckpointError(f"{checkpoint.source} lacks {own}")
    head = {"head": "sequence", "labels": tuple(tokens), "head_reads": "last", "tied_head": False,
            "decides": "one" if len(tokens) > 1 else "number"}  # fmt: skip
    stored = {**family.stored, "head.decoder": Stored(_DECODER)}
    return replace(
        checkpoint,
        table=replace(family, stored=stored, copies={}, outside=(*family.outside, f"{_DECODER}.")),
        config=config.but(**head),
        weights=_WithScore(checkpoint.weights, own, tuple(tokens.values()), config.tied_head),
    )


class _WithScore:
    """The weights of a decoder with some rows of its unembedding in place of all."""

    def __init__(self, main: WeightFiles, own: str, rows: tuple[int, ...], tied: bool) -> None:
        self.main, self.own, self.rows = main, own, list(rows)
        self.dropped = {name for name in main.shapes if "lm_head" in name} if tied else {own}
        self.shapes: Shapes = {name: shape for name, shape in main.shapes.items() if name not in self.dropped}
        self.shapes[f"{_DECODER}.weight"] = (len(rows), main.shapes[own][1])
        self.mapped = getattr(main, "mapped", ())

    def stored(self, name: str) -> Tensor:
        return self.main.stored(self.own)[self.rows] if name == f"{_DECODER}.weight" else self.main.stored(name)

    def takes(self, dtype: torch.dtype) -> int:
        return self.main.takes(dtype)

    def tensors(self, dtype: torch.dtype, pieces: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.main.tensors(dtype, pieces):
            if name == self.own:
                yield f"{_DECODER}.weight", tensor[self.rows]
            if name not in self.dropped:
                yield name, tensor


def pair_template(transformer: Fields, prompt: str) -> PairTemplate | None:
    """How the folder renders a pair, by the settings of its transformer; None where the tokenizer joins the texts."""
    modalities = transformer.object("modality_config")
    message = None if modalities is None else modalities.object("message")
    if message is None:
        return None
    processing = transformer.object("processing_kwargs")
    chat = None if processing is None else processing.object("chat_template")
    variables: Mapping[str, Any] = {} if chat is None else chat.data
    return PairTemplate(
        {name: value for name, value in variables.items() if name != "restore_suffix"},
        message.text("format", "auto") == "structured",
        prompt,
    )
