"""Recording: one pass through a model that is watched, and what cannot be had again cheaply is kept."""

from collections.abc import Collection

import torch
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.text.tokenizer import Encoding
from tinytf.trace.hooks import watched
from tinytf.trace.memory import recording_bytes, require_room
from tinytf.trace.trace import Recording, Trace


@torch.no_grad()
def record(
    model: Transformer,
    encoding: Encoding,
    mask_id: int | None = None,
    *,
    layers: Collection[int] | None = None,
    force: bool = False,
) -> Trace:
    """Run ``encoding`` through ``model`` once and keep what cannot be had again cheaply.

    Attention stays fused. Logits are computed for the last position of a decoder, for the ``mask_id`` positions of
    an encoder (every position when it has none); elsewhere they are derived when asked for. Every hook is off
    again when this returns or raises. ``layers`` records those alone (None: all of them).

    Raises UsageError for an empty or too long sequence, MemoryShortage where the recording would not fit into the
    free memory, unless ``force`` is true.
    """
    ids = encoding.ids
    if not ids:
        raise UsageError("the text is empty", "give at least one token")
    masks = tuple(place for place, token in enumerate(ids) if token == mask_id)
    rows = (len(ids) - 1,) if model.config.causal else masks or tuple(range(len(ids)))
    if model.head is None:
        rows = ()
    chosen_layers = tuple(range(model.config.n_layers)) if layers is None else tuple(sorted(set(layers)))
    if not force:
        _require_room(model, len(ids), len(rows), chosen_layers)
    keep: dict[str, Tensor] = {}
    device = next(model.parameters()).device
    with watched(model, keep, chosen_layers):
        hidden = model.hidden(torch.tensor([ids], device=device))  # (1, T, C)
        if rows:
            chosen = hidden[0] if len(rows) == len(ids) else hidden[0, list(rows)]
            keep["logits"] = model.unembed(chosen)  # (rows, V)
    return Trace(model, encoding, Recording(keep, rows, chosen_layers, model.exchanged))


def _require_room(model: Transformer, tokens: int, rows: int, layers: Collection[int]) -> None:
    weight = next(model.parameters())
    needed, one = (recording_bytes(model.config, tokens, rows, weight.itemsize, some) for some in (layers, (0,)))
    require_room(needed, one, weight.device, tokens, len(layers))
