"""A recording that is looked at while the model runs: one layer is held at a time, whatever the depth."""

from collections.abc import Iterator

import torch
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.steps.table import table_of
from tinytf.text.tokenizer import Encoding
from tinytf.trace.hooks import watched
from tinytf.trace.memory import recording_bytes, require_room
from tinytf.trace.trace import Recording, Trace


def walk(model: Transformer, encoding: Encoding, *, force: bool = False) -> Iterator[Trace]:
    """The steps of one text in parts: the embeddings, then every layer, then what comes behind the last one.

    Each part is a Trace that holds its own steps alone; no logits are among them. The model is as it was whenever
    this waits. Errors as of ``record``.
    """
    ids = encoding.ids
    if not ids:
        raise UsageError("the text is empty", "give at least one token")
    if len(ids) > model.config.context:
        raise UsageError(f"{len(ids)} tokens are more than the model's context of {model.config.context}")
    weight = next(model.parameters())
    if not force:
        needed = recording_bytes(model.config, len(ids), 0, weight.itemsize, (0,))
        require_room(needed, needed, weight.device, len(ids), 1)
    config, last = model.config, model.config.n_layers - 1
    keep: dict[str, Tensor] = {}
    with watched(model, keep, ()):
        x = model.embed(torch.tensor([ids], device=weight.device))  # (1, T, C)
    yield Trace(model, encoding, Recording(keep, (), ()))
    for layer, block in enumerate(model.blocks):
        keep = {}
        with watched(model, keep, (layer,)):
            x = block(x, 0, None)
        yield Trace(model, encoding, Recording(keep, (), (layer,)))
    keep = {f"L{last}.{table_of(config).output}": x[0]}
    with watched(model, keep, ()):
        model.final_norm(x)
    yield Trace(model, encoding, Recording(keep, (), ()))
