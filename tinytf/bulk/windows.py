"""Windows of a corpus: consecutive tokens of a document that go through a model together, and their passes."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from tinytf.bulk.folder import RecordedCorpus
from tinytf.errors import UsageError
from tinytf.files import parse_json
from tinytf.model.transformer import Source, Transformer
from tinytf.report import Progress, ignore_progress
from tinytf.text.corpus import Documents
from tinytf.text.stream import cut_between_words
from tinytf.text.tokenizer import Tokenizer
from tinytf.text.windows import known_ids
from tinytf.text_model import AnyModel, TextModel

BATCH = 8
"""Windows in one pass, where nothing else decides."""


@dataclass(frozen=True)
class Window:
    """Consecutive tokens of a document that go through the model together.

    ``own`` are the indices of the text's own tokens, without the added ones; the first of them is token ``start`` of
    document ``document``, which ``ends`` with the window or goes on. Of two stacks the document is a target, and
    ``source`` the tokens that the encoder reads.
    """

    ids: list[int]
    own: range
    document: int
    start: int
    ends: bool = True
    source: tuple[int, ...] = ()

    def read_by(self, model: AnyModel) -> AnyModel:
        """The model, which reads the source of the window if there is one."""
        return model.reading(model.encoder.trace(ids=self.source)) if self.source else model


def corpus_windows(
    model: TextModel,
    documents: Documents,
    window: int | None = None,
    on_progress: Progress = ignore_progress,
    *,
    longest: int = 128,
) -> Iterator[Window]:
    """Read documents as a stream, in windows of ``window`` tokens, by default the context and at most ``longest``.

    Of two stacks the corpus is pairs, each with its whole target in one window. ``on_progress`` receives the number of
    characters read. Raises UsageError as ``window_length`` and ``windows_of``, and for another form of corpus.
    """
    if require_form(model, documents):
        return pair_windows(model, documents, window, on_progress)
    length, total = window_length(model, window, longest), documents.corpus.characters

    def pieces() -> Iterator[tuple[str, bool]]:
        read = 0
        for text, is_end in documents.pieces(cut_between_words):
            yield text, is_end
            read += len(text)
            on_progress(min(read, total), total)

    return windows_of(model.tokenizer, pieces(), length, model.config.vocab_size)


def pair_windows(
    model: TextModel, documents: Documents, window: int | None, on_progress: Progress = ignore_progress
) -> Iterator[Window]:
    """The pairs of a corpus: a window for each target, of at most ``window`` tokens, by default the context.

    Raises UsageError for a corpus that is not of pairs, a longer target, and a decoder whose encoder is not opened.
    """
    require_form(model, documents)
    length, read = model.config.context if window is None else window, 0
    for number, text in enumerate(documents):
        source, target = parse_json(text)
        with at_pair(number):
            encoding = model.encode(target)
            if len(encoding.ids) > length:
                raise UsageError(
                    f"the target has {len(encoding.ids):,} tokens, and a window {length:,}", "choose a longer --window"
                )
            of_source = tuple(model.encoder.encode(source).ids)
        yield Window(encoding.ids, range(1, len(encoding.ids)), number, 0, source=of_source)
        on_progress(read := read + len(text), documents.corpus.characters)


def require_form(model: TextModel, documents: Documents) -> bool:
    """Whether the model reads pairs. Raises UsageError if these are none, or the encoder is not opened."""
    if not model.config.d_source:
        return False
    if model.transformer.encoder is None:
        raise UsageError(
            "the encoder of this model is not opened, so a corpus has no sources for it",
            "tinytf trace TARGET --source FILE -o FILE.safetensors keeps the steps of one target",
        )
    if documents.corpus.reading.form != "pair":
        raise UsageError(
            "this model reads a source and writes a target, and the corpus has one text in each document",
            "give a table with fields source and target; --stack encoder reads single texts",
        )
    return True


@contextmanager
def at_pair(number: int) -> Iterator[None]:
    """Name the pair, counted from 1, in an error about one of its texts."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"pair {number + 1:,}: {error.message}", error.hint) from None


def window_length(model: TextModel, window: int | None, longest: int) -> int:
    """``window``, by default the context and at most ``longest``.

    Raises UsageError for more than the context, and for no room for a token of the text.
    """
    length = min(model.config.context, longest) if window is None else window
    if length > model.config.context:
        raise UsageError(f"a window of {length:,} tokens is more than the model's context of {model.config.context:,}")
    _room(model.tokenizer, length)
    return length


def _room(tokenizer: Tokenizer, length: int) -> int:
    """The tokens of a text that a window has room for. Raises UsageError if there is none."""
    before, after = tokenizer.surrounding_ids()
    if (room := length - len(before) - len(after)) < 1:
        raise UsageError(f"a window of {length} tokens has no room for a token of the text", "choose a longer window")
    return room


def windows_of(
    tokenizer: Tokenizer, pieces: Iterable[tuple[str, bool]], length: int, vocab_size: int
) -> Iterator[Window]:
    """Cut documents into windows of at most ``length`` tokens; each piece says whether it ends its document.

    The tokens that the tokenizer adds to a text are added to each window. Raises UsageError if they leave no room,
    TokenizerError for a token outside a model's ``vocab_size``.
    """
    before, after = tokenizer.surrounding_ids()
    room, document, offset = _room(tokenizer, length), 0, 0
    for text, is_end in pieces:
        ids = known_ids(tokenizer, text, vocab_size)
        for start in range(0, len(ids), room):
            chunk = ids[start : start + room]
            own, ends = range(len(before), len(before) + len(chunk)), is_end and start + room >= len(ids)
            yield Window([*before, *chunk, *after], own, document, offset + start, ends)
        offset = 0 if is_end else offset + len(ids)
        document += is_end


def recorded_windows(corpus: RecordedCorpus, tokenizer: Tokenizer, first: int, start_id: int = 0) -> Iterator[Window]:
    """The windows of a recorded corpus of every token again, from row ``first`` on.

    A target begins with ``start_id``, and is one window.
    """
    sources = corpus.sources
    before, after = ([start_id], []) if sources else tokenizer.surrounding_ids()
    room = corpus.index["window"] - len(before) - len(after)
    while first < len(corpus):
        documents = corpus.documents[first : first + room]
        count = int((documents == documents[0]).sum())
        ids = [*before, *corpus.tokens[first : first + count].tolist(), *after]
        own = range(len(before), len(before) + count)
        source = sources.get(int(documents[0]), ())
        yield Window(ids, own, int(documents[0]), int(corpus.positions[first]), source=source)
        first += count


def own_mask(batch: Sequence[Window], ids: Tensor) -> Tensor:
    """Which ids (B, T) of windows are the text's own, (B, T)."""
    mask = torch.zeros(ids.shape, dtype=torch.bool)
    for row, window in enumerate(batch):
        mask[row, window.own.start : window.own.stop] = True
    return mask


def padded(texts: Sequence[Sequence[int]]) -> Tensor:
    """The ids of some texts (B, T), padded with −1."""
    length = max(map(len, texts))
    return torch.tensor([[*ids, *[-1] * (length - len(ids))] for ids in texts])


def run_all(model: Transformer, windows: Iterable[Window], last: int | None) -> Iterator[tuple[list[Window], Tensor]]:
    """Run windows up to layer ``last``, BATCH at a time, and yield each batch with its ids (B, T), padded with −1."""
    remaining = iter(windows)
    while batch := list(islice(remaining, BATCH)):
        yield batch, run_windows(model, batch, last)


def run_windows(model: Transformer, windows: Sequence[Window], last: int | None) -> Tensor:
    """Run one pass up to layer ``last``, or None for the final norm too, and return its ids (B, T), padded with −1."""
    ids = padded([window.ids for window in windows])
    real = ids >= 0
    device = model.embed.tokens.weight.device
    mask = None if not model.config.looks_ahead or bool(real.all()) else real.to(device)
    source = read_sources(model, windows)
    x = model.embed(ids.clamp(min=0).to(device), None, 0, mask)  # (B, T, C)
    carried = model.carried(ids.clamp(min=0).to(device), x, source=source)
    x = model.streams(x)
    for block in model.blocks[: None if last is None else last + 1]:
        x = block(x, 0, mask, None, carried)
    if last is None:
        model.finish(x, mask)
    return ids


def read_sources(model: Transformer, windows: Sequence[Window]) -> Source | None:
    """What the encoder gives for the sources of some windows; None for one stack."""
    ids = padded([window.source for window in windows])
    return model.read(ids.clamp(min=0), (ids >= 0).to(model.embed.tokens.weight.device))
