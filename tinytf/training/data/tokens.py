"""Tokenise a corpus once, into files that training maps into memory."""

import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from tinytf.errors import CheckpointError, UsageError
from tinytf.files import read_json, to_json
from tinytf.outputs import make_folder, remove, replacing, write_state, writing
from tinytf.text.corpus import Corpus, Documents
from tinytf.text.stream import Cut, Piece, cut_anywhere, cut_between_words, cut_nowhere
from tinytf.text.tokenizer import CHARACTERS, Tokenizer
from tinytf.training.data.cache import cached_entry, share_files
from tinytf.training.data.chats import conversation_ids
from tinytf.training.data.masked import sentence_ends, sentences_of
from tinytf.training.data.translation import pair_ids
from tinytf.version import __version__

FORMAT = 6
BATCH = 1 << 16  # characters; a single-character token takes 1.6 kB while it is encoded
_INDEX, _PARTS = "index.json", ("train", "held_out")
Stage = Callable[[str, int, int], None]
"""Called with the name of a stage, how much of it is done, and the total; 0 of 0 if unknown."""
_Ends = tuple[list[int], list[int]]
_IDS_OF = {"chat": conversation_ids, "pair": pair_ids}
"""How documents that are JSON become ids, uint32 with marks."""


@dataclass(frozen=True)
class Tokens:
    """Token ids (N,) to train on and held out: read-only, of type uint16 or uint32, mapped from disk.

    ``reused``: the folder held all of them already. ``cut``: the held-out ones begin inside a document. ``groups``
    counts the training tokens of each weighted corpus, in order.
    """

    train: NDArray[Any]
    held_out: NDArray[Any]
    reused: bool
    groups: tuple[int, ...] = ()
    cut: bool = False


def tokenise(
    corpus: Corpus,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    held_out: float,
    sentences: bool = False,
    batch: int = BATCH,
    on_progress: Stage = lambda *_: None,
) -> Tokens:
    """The tokens of a corpus from a folder, which is filled first unless it holds exactly these.

    The tokens of a large corpus also go to the cache, for other folders.

    ``train.bin`` and ``held_out.bin`` are little-endian ids, uint16 if the vocabulary fits, else uint32:
    all documents in order, an end token after each if the tokenizer has one, or with ``sentences`` the ids of
    ``sentence_ends`` after each sentence; conversations as ``conversation_ids`` makes them, pairs as ``pair_ids``.
    ``index.json``, written last, holds counts, checksums, the format, and a fingerprint of all bytes of the files in
    order, how they are read, the tokenizer and the share ``held_out``. A folder with another fingerprint, or with files
    that do not match it, is written again. About ``batch`` characters are encoded at a time. Only one process at a time
    may fill a folder.

    Raises UsageError if the folder cannot be written or a file changes meanwhile, TokenizerError for a text that the
    tokenizer cannot encode.
    """
    fingerprint = _fingerprint(corpus, tokenizer, held_out, sentences)
    dtype = np.dtype("<u4") if corpus.reading.form in _IDS_OF else _dtype(tokenizer)
    tokens = _read_intact(folder, fingerprint, dtype)
    if tokens is not None:
        return tokens
    arguments = (corpus, tokenizer, fingerprint, dtype, held_out, sentences, batch, on_progress)
    with cached_entry(fingerprint, sum(file.size for file in corpus.files)) as shared:
        stored = shared and _read_intact(shared, fingerprint, dtype)
        if shared is not None and stored is None:
            try:
                _fill(shared, *arguments)
            except (OSError, UsageError):  # no room in the cache, or a read-only file
                shared = None
        with writing(folder, "give another folder", UsageError):
            if shared is None:
                _fill(folder, *arguments)
            else:
                share_files(shared, folder, (*(f"{part}.bin" for part in _PARTS), _INDEX))
    return _open_tokens(folder, read_json(folder / _INDEX), dtype, reused=stored is not None)


def _fill(
    folder: Path,
    corpus: Corpus,
    tokenizer: Tokenizer,
    fingerprint: str,
    dtype: np.dtype[Any],
    held_out: float,
    sentences: bool,
    batch: int,
    on_progress: Stage,
) -> None:
    """Write the tokens of a corpus to a folder. Raises OSError."""
    cut, ends, table = _cut(tokenizer), _ends(tokenizer, sentences), _ids_of_characters(tokenizer)
    index: dict[str, Any] = {"format": FORMAT, "fingerprint": fingerprint, "dtype": dtype.str}
    make_folder(folder)
    # A folder without an index is never trusted, so remove the index first in case this process is killed.
    for stale in (folder / _INDEX, *chain(*(folder.glob(f".{part}.bin.*.part") for part in _PARTS))):
        remove(stale)
    done, total = 0, corpus.characters

    def count_characters(pieces: Iterable[Piece]) -> Iterator[Piece]:
        nonlocal done
        for piece in pieces:
            yield piece
            done += len(piece[0])
            on_progress("characters to tokens", min(done, total), total)

    def encode(documents: Documents) -> Iterator[NDArray[Any]]:
        marked_ids = _IDS_OF.get(corpus.reading.form)
        pieces = count_characters(
            sentences_of(documents) if sentences else documents.pieces(cut_nowhere if marked_ids else cut)
        )
        if marked_ids:
            return (marked_ids(tokenizer, text) for text, _ in pieces)
        return (_encode(batch_pieces, tokenizer, table, dtype, ends) for batch_pieces in _batches(pieces, batch))

    splits = [group.split(held_out) for group in corpus.groups()]
    index["cut"] = any(train.at is not None for train, _ in splits)
    for column, part in enumerate(_PARTS):
        documents_of_groups = [split[column] for split in splits]
        groups = [0] * len(documents_of_groups)

        def all_ids(
            documents_of_groups: list[Documents] = documents_of_groups, groups: list[int] = groups
        ) -> Iterator[NDArray[Any]]:
            for group, documents in enumerate(documents_of_groups):
                for ids in encode(documents):
                    groups[group] += len(ids)
                    yield ids

        index[part] = {
            "documents": sum(map(len, documents_of_groups)),
            **_write_ids(folder / f"{part}.bin", all_ids()),
            "groups": groups,
        }
    write_state(folder / _INDEX, to_json(index))


def _fingerprint(corpus: Corpus, tokenizer: Tokenizer, held_out: float, sentences: bool) -> str:
    files = [[file.size, file.sha256, file.field] for file in corpus.files]
    reading = [[count for count, _ in corpus.weights], files, corpus.reading.document, corpus.reading.form]
    chat = tokenizer.chat and [tokenizer.chat.stored, dict(tokenizer.chat.names)]
    contents = [FORMAT, __version__, reading, held_out, sentences, tokenizer.end_ids, tokenizer.library.to_str(), chat]
    return hashlib.sha256(json.dumps(contents).encode("ascii")).hexdigest()


def _dtype(tokenizer: Tokenizer) -> np.dtype[Any]:
    """The smallest type that holds every id."""
    return np.dtype("<u2" if tokenizer.largest_id < 1 << 16 else "<u4")


def _cut(tokenizer: Tokenizer) -> Cut:
    """The positions where a long document can be cut without changing its tokens."""
    library = tokenizer.library
    if tokenizer.kind == CHARACTERS and library.normalizer is None:
        return cut_anywhere
    added = library.get_added_tokens_decoder().values()
    if library.pre_tokenizer is None or any(t.lstrip or t.rstrip or " " in t.content for t in added):
        return cut_nowhere
    both, first, second = (_words(library, text) for text in ("one two", "one", " two"))
    return cut_between_words if both == first + second else cut_nowhere


def _words(library: tokenizers.Tokenizer, text: str) -> list[str]:
    """The words that the tokenizer encodes independently of each other."""
    normal = text if library.normalizer is None else library.normalizer.normalize_str(text)
    return [word for word, _ in library.pre_tokenizer.pre_tokenize_str(normal)]


def _ends(tokenizer: Tokenizer, sentences: bool) -> _Ends:
    """The ids that follow a piece, and those that follow the last piece of a document."""
    if sentences:
        sep, cls = sentence_ends(tokenizer)
        return [sep], [sep, cls]
    return [], [] if tokenizer.end_id is None else [tokenizer.end_id]


def _write_ids(path: Path, batches: Iterable[NDArray[Any]]) -> dict[str, int]:
    """Write ids to a file, complete or not at all; returns its entry in the index."""
    tokens = checksum = 0
    with replacing(path) as stream:
        for batch in batches:
            ids = batch.tobytes()
            stream.write(ids)
            checksum = zlib.crc32(ids, checksum)
            tokens += len(batch)
    return {"tokens": tokens, "crc32": checksum}


def _batches(pieces: Iterable[Piece], batch: int) -> Iterator[list[Piece]]:
    waiting: list[Piece] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece[0])
        if size >= batch:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting


def _ids_of_characters(tokenizer: Tokenizer) -> NDArray[np.int64] | None:
    """The id of every codepoint, −1 for those without one; None if some token is not a single character."""
    vocabulary = tokenizer.library.get_vocab()
    plain = tokenizer.kind == CHARACTERS and tokenizer.library.normalizer is None
    if not plain or tokenizer.library.get_added_tokens_decoder() or any(len(piece) != 1 for piece in vocabulary):
        return None
    table = np.full(max(map(ord, vocabulary)) + 2, -1, dtype=np.int64)
    for piece, token_id in vocabulary.items():
        table[ord(piece)] = token_id
    return table


def _look_up(texts: list[str], table: NDArray[np.int64]) -> list[NDArray[np.int64]] | None:
    """The ids of texts, one character a token, much faster than the library; None if a character is unknown."""
    points = (np.frombuffer(text.encode("utf-32-le"), dtype="<u4") for text in texts)
    ids_of_texts = [table[np.minimum(codepoints, len(table) - 1)] for codepoints in points]
    return None if any((ids < 0).any() for ids in ids_of_texts) else ids_of_texts


def _encode(
    pieces: list[Piece], tokenizer: Tokenizer, table: NDArray[np.int64] | None, dtype: np.dtype[Any], ends: _Ends
) -> NDArray[Any]:
    """The ids of some pieces, with the ids that follow each piece or document."""
    after_piece, after_document = ends
    texts = [text for text, _ in pieces]
    ids_of_pieces: list[Any] | None = None if table is None else _look_up(texts, table)
    if ids_of_pieces is None:
        ids_of_pieces = tokenizer.ids_of(texts)
    parts = chain.from_iterable(
        (ids, after_document if last else after_piece) for ids, (_, last) in zip(ids_of_pieces, pieces, strict=True)
    )
    return np.concatenate([np.asarray(part, dtype=dtype) for part in parts])


def _read_intact(folder: Path, fingerprint: str, dtype: np.dtype[Any]) -> Tokens | None:
    """The tokens in a folder; None unless they are intact and have this fingerprint."""
    try:
        index = read_json(folder / _INDEX)
        if (index["format"], index["fingerprint"], index["dtype"]) != (FORMAT, fingerprint, dtype.str):
            return None
        tokens = _open_tokens(folder, index, dtype, reused=True)
        for part, ids in zip(_PARTS, (tokens.train, tokens.held_out), strict=True):
            is_complete = (folder / f"{part}.bin").stat().st_size == ids.nbytes
            if not is_complete or zlib.crc32(ids.data) != index[part]["crc32"]:
                return None
    except (CheckpointError, OSError, LookupError, TypeError, ValueError):
        return None
    return tokens


def _open_tokens(folder: Path, index: dict[str, Any], dtype: np.dtype[Any], *, reused: bool) -> Tokens:
    train, held_out = (_map_file(folder / f"{part}.bin", index[part]["tokens"], dtype) for part in _PARTS)
    return Tokens(train, held_out, reused, tuple(index["train"]["groups"]), index["cut"])


def _map_file(path: Path, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    if count:
        return np.memmap(path, dtype=dtype, mode="r", shape=(count,))
    empty = np.zeros(0, dtype=dtype)  # an empty file cannot be mapped
    empty.setflags(write=False)
    return empty
