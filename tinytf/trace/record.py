"""Recording: run a text through a model once and keep the steps that would be expensive to compute again."""

import math
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.errors import MemoryShortage, UsageError
from tinytf.memory import UNASKED, free_bytes, in_gib
from tinytf.model.batches import batches, padded
from tinytf.model.transformer import Transformer
from tinytf.steps.operations import Add
from tinytf.steps.table import table_of
from tinytf.text.tokenizer import Encoding
from tinytf.trace.hooks import watched
from tinytf.trace.trace import Recording, Trace


def record(
    model: Transformer,
    encoding: Encoding,
    mask_id: int | None = None,
    *,
    layers: Collection[int] | None = None,
    force: bool = False,
) -> Trace:
    """Run ``encoding`` through ``model`` once, with fused attention, and record ``layers`` (None: all of them).

    Logits are computed for the last position of a decoder, and for the ``mask_id`` positions of an encoder (every
    position when it has none), of classes where the head reads them; elsewhere they are derived on request. All hooks
    are removed again.

    Raises UsageError for an empty or too long sequence, and MemoryShortage where the recording would not fit into
    the free memory, unless ``force`` is true.
    """
    (found,) = record_all(model, [encoding], mask_id, layers=layers, force=force)
    return found


@torch.no_grad()
def record_all(
    model: Transformer,
    encodings: Sequence[Encoding],
    mask_id: int | None = None,
    *,
    layers: Collection[int] | None = None,
    force: bool = False,
) -> list[Trace]:
    """``record`` for each of ``encodings``, in batches: shorter texts are filled up on the right, and masked."""
    texts = [_require_tokens(model, encoding) for encoding in encodings]
    read = [_positions_read(model.config, ids, mask_id) for ids in texts]
    chosen = tuple(range(model.config.n_layers)) if layers is None else tuple(sorted(set(layers)))
    lengths, device = [len(ids) for ids in texts], next(model.parameters()).device
    if texts and not force:
        _require_room(model, sum(lengths), sum(map(len, read)), chosen)
    kept: list[dict[str, Tensor]] = [{} for _ in texts]
    for batch in batches(lengths, model):
        first, *others = (kept[number] for number in batch)
        ids, real = padded([texts[number] for number in batch], model.config, device)
        with watched(model, first, chosen, others):
            hidden = model.hidden(ids, padding_mask=real)  # (B, T, C)
            for row, number in enumerate(batch):
                own, rows = hidden[row, : lengths[number]], read[number]
                if rows:  # (rows, V)
                    kept[number]["logits"] = model.unembed(own if len(rows) == len(own) else own[list(rows)])
        for number in batch:
            if lengths[number] < ids.shape[1]:
                _cut(kept[number], model.config, lengths[number])
    return [
        Trace(model, encoding, Recording(keep, rows, chosen, model.exchanged, model.edited))
        for encoding, keep, rows in zip(encodings, kept, read, strict=True)
    ]


def _cut(keep: dict[str, Tensor], config: ModelConfig, length: int) -> None:
    """Leave out what filled up a text."""
    for step, layer in table_of(config).rows:
        name = step.full_name(layer)
        if name in keep and not step.is_vocabulary and "token" in step.axes:
            keep[name] = keep[name].narrow(step.axes.index("token"), 0, length)


def walk(model: Transformer, encoding: Encoding, *, force: bool = False) -> Iterator[Trace]:
    """Record a text in parts, one layer at a time: the embeddings, each layer, then the final norm.

    Each part is a Trace of its own steps alone, without logits. Between the parts the model has no hooks. Raises
    UsageError and MemoryShortage as ``record`` does.
    """
    ids, weight = _require_tokens(model, encoding), next(model.parameters())
    if not force:
        _require_room(model, len(ids), 0, (0,))
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


def _positions_read(config: ModelConfig, ids: Sequence[int], mask_id: int | None) -> tuple[int, ...]:
    """The positions whose logits the head of a model is for."""
    if config.head.kind == "none":
        return ()
    if config.labels:
        return {"first": (0,), "last": (len(ids) - 1,)}.get(config.head_reads, tuple(range(len(ids))))
    if config.causal:
        return (len(ids) - 1,)
    return tuple(place for place, token in enumerate(ids) if token == mask_id) or tuple(range(len(ids)))


def _require_tokens(model: Transformer, encoding: Encoding) -> list[int]:
    """The ids of a text that the model can read: at least one, and no more than its context."""
    if not encoding.ids:
        raise UsageError("the text is empty", "give at least one token")
    if len(encoding.ids) > model.config.context:
        raise UsageError(f"{len(encoding.ids)} tokens are more than the model's context of {model.config.context}")
    return encoding.ids


def recording_bytes(config: ModelConfig, tokens: int, rows: int, itemsize: int, layers: Collection[int]) -> int:
    """Bytes that a recording of ``tokens`` tokens holds: the embeddings, ``layers``, the last norm, ``rows`` of logits.

    A block's input is the previous block's output, and is held once. The last block's output is always kept.
    """
    table, texts = table_of(config), {"token": tokens, "query": tokens, "key": tokens}
    kept = {table.output: config.n_layers - 1}
    total = 0
    for step, layer in table.rows:
        wanted = layer is None or layer in layers or kept.get(step.name) == layer
        if not (step.recorded and step.is_tensor and wanted) or (step.from_stream and layer == 0):
            continue  # the input of the first block is the embeddings
        if step.from_stream and layer is not None and layer - 1 in layers:
            continue  # that of another is the output of the one before
        if step.name == table.embedded and len(table.sources(step, None)) == 1 and isinstance(step.operation, Add):
            continue  # with nothing added, the sum is the token embeddings themselves
        shape = {**texts, **config.at(layer).sizes} | ({"token": rows} if step.is_vocabulary else {})
        total += math.prod(shape[axis] for axis in step.axes)
    return itemsize * total


def _require_room(model: Transformer, tokens: int, rows: int, layers: Collection[int]) -> None:
    weight, count = next(model.parameters()), len(layers)
    needed, one_layer = (recording_bytes(model.config, tokens, rows, weight.itemsize, some) for some in (layers, (0,)))
    if needed < UNASKED or needed <= (free := free_bytes(weight.device)):
        return
    smaller = f"one layer holds {in_gib(one_layer)}: choose one, such as --layer 0 --step weights, or "
    raise MemoryShortage(
        f"recording {tokens:,} tokens through {count} layer{'s' if count > 1 else ''} holds {in_gib(needed)}, and "
        f"{in_gib(free)} are free",
        f"{smaller if count > 1 and one_layer < free else ''}cut the text with --truncate; --force records anyway",
    )
