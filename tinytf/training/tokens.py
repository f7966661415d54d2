"""A corpus tokenised once, into files that training maps into memory."""

import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from tinytf.errors import CheckpointError, TokenizerError, UsageError
from tinytf.files import read_json, replacing, to_json, write_whole
from tinytf.text.tokenizer import CHARACTERS, Tokenizer, library_errors
from tinytf.training.corpus import Corpus
from tinytf.training.masked import sentence_ends, sentences_of
from tinytf.training.stream import Cut, Piece, anywhere, between_words, nowhere

FORMAT = 2
BATCH = 1 << 16  # of single characters, 1.6 kB each while they are encoded
_INDEX, _PARTS = "index.json", ("train", "held_out")
_BLOCK = 1 << 20
_Ends = tuple[list[int], list[int]]


@dataclass(frozen=True)
class Tokens:
    """Token ids (N,) of what is trained on and of what is held out: read-only, of type uint16 or uint32, on disk.

    ``documents`` counts those of either side; ``reused`` says that the folder held all of it already.
    """

    train: NDArray[Any]
    held_out: NDArray[Any]
    documents: tuple[int, int]
    folder: Path
    reused: bool


def tokenise(
    corpus: Corpus, tokenizer: Tokenizer, folder: Path, *, held_out: float, sentences: bool = False, batch: int = BATCH
) -> Tokens:
    """The tokens of a corpus from a cache folder, which is filled first where it does not hold just these.

    ``train.bin`` and ``held_out.bin`` are little-endian ids, uint16 where the vocabulary fits and uint32 elsewhere,
    an end token behind each document where the tokenizer has one: what ``token_stream`` gives, or with ``sentences``
    what ``sentence_stream`` does. ``index.json``, written last, holds counts, checksums and a fingerprint of all bytes
    of the files in their order, the tokenizer, the share ``held_out`` and the format; another fingerprint, or files
    that do not add up, and everything is written anew.
    About ``batch`` characters are encoded at a time. One process at a time may fill a folder.

    Raises UsageError when the folder cannot be written or a file changes meanwhile, TokenizerError for a text that the
    tokenizer cannot take.
    """
    fingerprint, dtype = _fingerprint(corpus, tokenizer, held_out, sentences), _dtype(tokenizer)
    found = _trusted(folder, fingerprint, dtype)
    if found is not None:
        return found
    cut, ends, table = _cut(tokenizer), _ends(tokenizer, sentences), _ids_of_characters(tokenizer)
    index: dict[str, Any] = {
        "format": FORMAT,
        "fingerprint": fingerprint,
        "dtype": dtype.str,
        "held_out_share": held_out,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Without its index a folder is never trusted, so nothing that ends in the middle leaves a wrong one behind.
        for stale in (folder / _INDEX, *chain(*(folder.glob(f".{part}.bin.*.part") for part in _PARTS))):
            stale.unlink(missing_ok=True)
        for part, documents in zip(_PARTS, corpus.split(held_out), strict=True):
            pieces = sentences_of(documents) if sentences else documents.pieces(cut)
            encoded = (_encoded(some, tokenizer, table, dtype, ends) for some in _batches(pieces, batch))
            index[part] = {"documents": len(documents), **_written(folder / f"{part}.bin", encoded)}
        index["files"] = [
            {"name": _storable(file.source.name), "size": file.size, "sha256": file.sha256} for file in corpus.files
        ]
        write_whole(folder / _INDEX, to_json(index))
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}", "give a folder with room in it") from None
    return _opened(folder, index, dtype, reused=False)


def _fingerprint(corpus: Corpus, tokenizer: Tokenizer, held_out: float, sentences: bool) -> str:
    files = [[file.size, file.sha256] for file in corpus.files]
    said = [FORMAT, files, corpus.by_file, held_out, sentences, tokenizer.end_id, tokenizer.library.to_str()]
    return hashlib.sha256(json.dumps(said).encode("ascii")).hexdigest()


def _dtype(tokenizer: Tokenizer) -> np.dtype[Any]:
    """The smallest type for every id; ids may have gaps, so their number does not say it."""
    highest = max(tokenizer.library.get_vocab().values(), default=0)
    return np.dtype("<u2" if highest < 1 << 16 else "<u4")


def _cut(tokenizer: Tokenizer) -> Cut:
    """Where a long document can be encoded in pieces without a token coming out differently."""
    library = tokenizer.library
    if tokenizer.kind == CHARACTERS and library.normalizer is None:
        return anywhere
    added = library.get_added_tokens_decoder().values()
    if library.pre_tokenizer is None or any(t.lstrip or t.rstrip or " " in t.content for t in added):
        return nowhere
    whole, first, second = (_words(library, text) for text in ("one two", "one", " two"))
    return between_words if whole == first + second else nowhere


def _words(library: tokenizers.Tokenizer, text: str) -> list[str]:
    """What the model is given one by one: nothing that it makes of a word depends on another."""
    normal = text if library.normalizer is None else library.normalizer.normalize_str(text)
    return [word for word, _ in library.pre_tokenizer.pre_tokenize_str(normal)]


def _ends(tokenizer: Tokenizer, sentences: bool) -> _Ends:
    """What stands behind a piece, and behind the last one of a document."""
    if sentences:
        sep, cls = sentence_ends(tokenizer)
        return [sep], [sep, cls]
    return [], [] if tokenizer.end_id is None else [tokenizer.end_id]


def _written(path: Path, batches: Iterable[NDArray[Any]]) -> dict[str, int]:
    """Put ids into a file that is there whole or not at all; what the index says of it."""
    tokens = checksum = 0
    with replacing(path) as beside, beside.open("wb") as stream:
        for batch in batches:
            ids = batch.tobytes()
            stream.write(ids)
            checksum = zlib.crc32(ids, checksum)
            tokens += len(batch)
        stream.flush()
        os.fsync(stream.fileno())
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
    """Of every codepoint its id, −1 for those without one; None where a token is not just one character."""
    vocabulary = tokenizer.library.get_vocab()
    plain = tokenizer.kind == CHARACTERS and tokenizer.library.normalizer is None
    if not plain or tokenizer.library.get_added_tokens_decoder() or any(len(piece) != 1 for piece in vocabulary):
        return None
    table = np.full(max(map(ord, vocabulary)) + 2, -1, dtype=np.int64)
    for piece, token_id in vocabulary.items():
        table[ord(piece)] = token_id
    return table


def _looked_up(texts: list[str], table: NDArray[np.int64]) -> list[NDArray[np.int64]] | None:
    """What the library would say of texts of single characters, many times as fast; None where one is unknown."""
    points = (np.frombuffer(text.encode("utf-32-le"), dtype="<u4") for text in texts)
    found = [table[np.minimum(some, len(table) - 1)] for some in points]
    return None if any((ids < 0).any() for ids in found) else found


def _encoded(
    pieces: list[Piece], tokenizer: Tokenizer, table: NDArray[np.int64] | None, dtype: np.dtype[Any], ends: _Ends
) -> NDArray[Any]:
    """The ids of some pieces, with what stands behind each and behind the last of a document."""
    within, end = ends
    texts = [text for text, _ in pieces]
    found: list[Any] | None = None if table is None else _looked_up(texts, table)
    if found is None:
        with library_errors(TokenizerError, "the tokenizer cannot take this text"):
            encodings = tokenizer.library.encode_batch_fast(texts, add_special_tokens=False)
        found = [encoding.ids for encoding in encodings]
    parts = chain.from_iterable((ids, end if last else within) for ids, (_, last) in zip(found, pieces, strict=True))
    return np.concatenate([np.asarray(part, dtype=dtype) for part in parts])


def _trusted(folder: Path, fingerprint: str, dtype: np.dtype[Any]) -> Tokens | None:
    """What a folder holds, if it is whole and of this fingerprint."""
    try:
        index = read_json(folder / _INDEX)
        if index["format"] != FORMAT or index["fingerprint"] != fingerprint or index["dtype"] != dtype.str:
            return None
        for part in _PARTS:
            path, said = folder / f"{part}.bin", index[part]
            if path.stat().st_size != said["tokens"] * dtype.itemsize or _checksum(path) != said["crc32"]:
                return None
        return _opened(folder, index, dtype, reused=True)
    except (CheckpointError, OSError, LookupError, TypeError, ValueError):
        return None


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as stream:
        while data := stream.read(_BLOCK):
            checksum = zlib.crc32(data, checksum)
    return checksum


def _opened(folder: Path, index: dict[str, Any], dtype: np.dtype[Any], *, reused: bool) -> Tokens:
    train, held_out = (_mapped(folder / f"{part}.bin", index[part]["tokens"], dtype) for part in _PARTS)
    documents = (index["train"]["documents"], index["held_out"]["documents"])
    return Tokens(train, held_out, documents, folder, reused)


def _mapped(path: Path, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    if count:
        return np.memmap(path, dtype=dtype, mode="r", shape=(count,))
    empty = np.zeros(0, dtype=dtype)  # a file without a byte cannot be mapped
    empty.setflags(write=False)
    return empty


def _storable(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
