"""What a recording will hold, known before it is made, and whether there is room for it."""

import math
from collections.abc import Collection

import torch

from tinytf.config import ModelConfig
from tinytf.errors import MemoryShortage
from tinytf.memory import UNASKED, free_bytes, in_gib
from tinytf.steps.operations import Add
from tinytf.steps.table import table_of


def recording_bytes(config: ModelConfig, tokens: int, rows: int, itemsize: int, layers: Collection[int]) -> int:
    """Bytes that ``record`` keeps of ``tokens`` tokens: the embeddings, ``layers``, the last norm, ``rows`` of logits.

    What goes into a block is what came out of the one before; it is held once. The last block's output is always kept.
    """
    table, sizes = table_of(config), {"token": tokens, "query": tokens, "key": tokens, **config.sizes}
    kept = {table.output: config.n_layers - 1}
    total = 0
    for step, layer in table.rows:
        wanted = layer is None or layer in layers or kept.get(step.name) == layer
        if not (step.recorded and step.is_tensor and wanted) or (step.from_stream and layer == 0):
            continue  # what goes into the first block is the embeddings
        if step.from_stream and layer is not None and layer - 1 in layers:
            continue  # and into another what came out before
        if step.name == table.embedded and len(table.sources(step, None)) == 1 and isinstance(step.operation, Add):
            continue  # with nothing added, the sum is the token embeddings themselves
        shape = {**sizes, "token": rows} if step.is_vocabulary else sizes
        total += math.prod(shape[axis] for axis in step.axes)
    return itemsize * total


def require_room(needed: int, one_layer: int, device: torch.device, tokens: int, layers: int) -> None:
    """Raise MemoryShortage, with both figures and what would fit, where a recording is larger than the free memory."""
    if needed < UNASKED or needed <= (free := free_bytes(device)):
        return
    words = f"{tokens:,} tokens through {layers} layer{'s' if layers > 1 else ''}"
    smaller = f"one layer holds {in_gib(one_layer)}: choose one, such as --layer 0 --step weights, or "
    fits = smaller if layers > 1 and one_layer < free else ""
    raise MemoryShortage(
        f"recording {words} holds {in_gib(needed)}, and {in_gib(free)} are free",
        f"{fits}cut the text with --truncate; --force records anyway",
    )
