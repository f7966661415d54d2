"""Recording: run a text through a model once and keep the steps that would be expensive to recompute."""

import math
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.errors import MemoryShortage, UsageError
from tinytf.memory import UNASKED, free_bytes, in_gib
from tinytf.model.batches import batches, padded, typed
from tinytf.model.transformer import Transformer
from tinytf.model.turn import in_turn
from tinytf.parts.row import TEXT_AXES
from tinytf.steps.operations import Add, Same
from tinytf.steps.table import table_of
from tinytf.text.tokenizer import Encoding
from tinytf.trace.hooks import recording_hooks
from tinytf.trace.trace import Recording, Trace


def record(
    model: Transformer,
    encoding: Encoding,
    mask_id: int | None = None,
    *,
    layers: Collection[int] | None = None,
    force: bool = False,
    grad: bool = False,
) -> Trace:
    """Run ``encoding`` through ``model`` once, with fused attention, and record ``layers`` (None: all of them).

    Logits are computed for the last position of a decoder, for the ``mask_id`` positions of an encoder (every position
    if it has none), and for the positions that a classification head reads; elsewhere they are derived on request. All
    hooks are removed again.

    Raises UsageError for an empty or too long sequence, and MemoryShortage if the recording would not fit into the free
    memory, unless ``force`` is true. With ``grad`` every step carries gradients, to weights and edits that need them.
    """
    (trace,) = record_all(model, [encoding], mask_id, layers=layers, force=force, grad=grad)
    return trace


@in_turn
def record_all(
    model: Transformer,
    encodings: Sequence[Encoding],
    mask_id: int | None = None,
    *,
    layers: Collection[int] | None = None,
    force: bool = False,
    grad: bool = False,
) -> list[Trace]:
    """Record each of ``encodings``, in batches; shorter texts are padded on the right, and the padding is masked."""
    texts = [_require_tokens(model, encoding) for encoding in encodings]
    read_positions = [_positions_read(model.config, ids, mask_id) for ids in texts]
    asked = set(range(model.config.n_layers) if layers is None else layers)
    taken = (table_of(model.config).taken(layer).values() for layer in asked)  # such as the keys of an earlier layer
    chosen = tuple(sorted(asked | {at for places in taken for _, at in places if at is not None}))
    lengths, device = [len(ids) for ids in texts], next(model.parameters()).device
    if texts and not force:
        _require_room(model, sum(lengths), sum(map(len, read_positions)), chosen)
    recorded: list[dict[str, Tensor]] = [{} for _ in texts]
    for batch in batches(lengths, model):
        first, *others = (recorded[n] for n in batch)
        ids, padding_mask = padded([texts[n] for n in batch], model.config, device)
        with recording_hooks(model, first, chosen, others), torch.set_grad_enabled(grad):
            types = typed([encodings[n].types for n in batch], device)
            hidden = model.hidden(ids, padding_mask=padding_mask, token_types=types)  # (B, T, C)
            for row, n in enumerate(batch):
                text_hidden, rows = hidden[row, : lengths[n]], read_positions[n]
                if rows:  # (rows, V)
                    recorded[n]["logits"] = model.unembed(
                        text_hidden if len(rows) == len(text_hidden) else text_hidden[list(rows)]
                    )
        for n in batch:
            if lengths[n] < ids.shape[1]:
                _drop_padding(recorded[n], model.config, lengths[n])
    source = _changed_source(model)
    return [
        Trace(model, encoding, Recording(tensors, rows, chosen, model.exchanged, model.edited, grad), source)
        for encoding, tensors, rows in zip(encodings, recorded, read_positions, strict=True)
    ]


def _drop_padding(keep: dict[str, Tensor], config: ModelConfig, length: int) -> None:
    """Drop the padding of a text from its recorded steps."""
    for step, layer in table_of(config).rows:
        name = step.full_name(layer)
        for number, axis in enumerate(step.axes if name in keep and not step.is_vocabulary else ()):
            if axis in ("token", "query", "key"):
                keep[name] = keep[name].narrow(number, 0, length)


@torch.no_grad()
def walk(model: Transformer, encoding: Encoding, *, force: bool = False) -> Iterator[Trace]:
    """Record a text in parts, one layer at a time: the embeddings, each layer, then the final norm.

    Each part is a Trace of its own steps only, without logits. The model has no hooks between the parts. Raises
    UsageError and MemoryShortage like ``record``.
    """
    ids, weight = _require_tokens(model, encoding), next(model.parameters())
    if not force:
        _require_room(model, len(ids), 0, (0,))
    config, last = model.config, model.config.n_layers - 1
    keep: dict[str, Tensor] = {}
    with recording_hooks(model, keep, ()):
        given = torch.tensor([ids], device=weight.device)
        types = typed([encoding.types], weight.device)
        embedded = model.embed(given, types)  # (1, T, C)
        carried = model.carried(given, embedded, types)
        x = model.streams(embedded)
    yield Trace(model, encoding, Recording(keep, (), ()))
    for layer, block in enumerate(model.blocks):
        keep = {}
        with recording_hooks(model, keep, (layer,)):
            x = block(x, 0, None, None, carried)
        yield Trace(model, encoding, Recording(keep, (), (layer,)))
    keep = {f"L{last}.{table_of(config).output}": x[0]}
    with recording_hooks(model, keep, ()):
        model.finish(x)
    yield Trace(model, encoding, Recording(keep, (), ()))


def _positions_read(config: ModelConfig, ids: Sequence[int], mask_id: int | None) -> tuple[int, ...]:
    """The positions whose logits are computed: those that the model's head is for."""
    if config.head.kind == "none":
        return ()
    if config.labels:
        row = config.head.row_read
        return tuple(range(len(ids))) if row is None else (row % len(ids),)
    if config.causal:
        return (len(ids) - 1,)
    return tuple(position for position, token in enumerate(ids) if token == mask_id) or tuple(range(len(ids)))


def _changed_source(model: Transformer) -> Trace | None:
    """The trace of what the model reads, by an encoder that was changed since it was bound: steps replaced, or numbers
    of another precision. None for one that is as it was.
    """
    read, encoder = None if model.reads is None else model.reads.trace, model.encoder
    if read is None or encoder is None:
        return None
    if not encoder.exchanged and read.last_hidden.dtype is next(encoder.parameters()).dtype:
        return None
    return record(encoder, read.encoding)


def _require_tokens(model: Transformer, encoding: Encoding) -> list[int]:
    """The ids of a text. Raises UsageError for none, and for more than the model's context."""
    if not encoding.ids:
        raise UsageError("the text is empty", "give at least one token")
    if len(encoding.ids) > model.config.context:
        raise UsageError(f"{len(encoding.ids)} tokens are more than the model's context of {model.config.context}")
    return encoding.ids


def recording_bytes(
    config: ModelConfig, tokens: int, rows: int, itemsize: int, layers: Collection[int], source: int = 0
) -> int:
    """Bytes of a recording of ``tokens`` tokens that read ``source`` others: the embeddings, ``layers``, the last norm,
    and ``rows`` of logits.

    A block's input is the previous block's output, and counts once. The last block's output is always recorded.
    """
    table, text_axes = table_of(config), {**dict.fromkeys(TEXT_AXES, tokens), "source": source}
    always = {table.output: config.n_layers - 1}
    total = 0
    for step, layer in table.rows:
        in_layers = layer is None or layer in layers or always.get(step.name) == layer
        if not (step.recorded and step.is_tensor and in_layers) or (step.from_stream and layer == 0):
            continue  # the input of the first block is the embeddings
        if step.from_stream and layer is not None and layer - 1 in layers:
            continue  # the input of a later block is the output of the one before
        whole = layer is None or layer in layers
        sources = table.sources(step, layer)  # none where another stack gives them
        repeats = isinstance(step.operation, Same) and sources and all(table.at(*at).recorded for at in sources)
        if repeats and whole and not (step.from_stream or step.below):
            continue  # the numbers of another step, which is recorded
        if layer is None and step.axes and len(table.sources(step, None)) == 1 and isinstance(step.operation, Add):
            continue  # with nothing added, the sum is the token embeddings themselves
        shape = {**text_axes, **config.at(layer).sizes} | ({"token": rows} if step.is_vocabulary else {})
        total += math.prod(shape[axis] for axis in step.axes)
    return itemsize * total


def _require_room(model: Transformer, tokens: int, rows: int, layers: Collection[int]) -> None:
    weight, count = next(model.parameters()), len(layers)
    needed, one_layer = (
        recording_bytes(model.config, tokens, rows, weight.itemsize, subset, model.tokens_read)
        for subset in (layers, (0,))
    )
    if needed < UNASKED or needed <= (free := free_bytes(weight.device)):
        return
    fewer_layers = f"one layer needs {in_gib(one_layer)}: choose one, such as --layer 0 --step weights, or "
    raise MemoryShortage(
        f"recording {tokens:,} tokens through {count} layer{'s' if count > 1 else ''} needs {in_gib(needed)}, and "
        f"{in_gib(free)} are free",
        f"{fewer_layers if count > 1 and one_layer < free else ''}cut the text with --truncate; --force records anyway",
    )
