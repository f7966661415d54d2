"""A corpus as a stream: text files, their documents, and the documents that are held out.

Only one buffer or one document of a file is in memory at a time.
"""

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from tinytf.errors import UsageError
from tinytf.text.rows import MESSAGES, PAIR, TABLES, is_table, row_texts, text_field
from tinytf.text.stream import (
    ByteSource,
    Cut,
    Piece,
    cut_anywhere,
    cut_between_words,
    cut_nowhere,
    decoded,
    lengths,
    mark_ends,
    non_blank_documents,
    split_in_two,
)

SUFFIXES = (".txt", ".md")
DOCUMENTS = ("paragraph", "line", "file")
BUFFER = 1 << 16  # the library needs some 300 bytes for each character that it encodes
_HEAD = 8192  # a NUL in this many first bytes means a binary file
OnRead = Callable[[int, int], None]
"""A callback with the number of bytes read so far, and the total."""


@dataclass(frozen=True)
class Reading:
    """The documents of a corpus: paragraphs, lines or whole files of text; in tables, a ``field`` of each row.

    If the field is None, tables are read like any text; an empty one stands for the only field with a text. In the
    form ``chat`` the field is a list of messages, as a ``pair`` it is two; a document is then JSON.
    """

    document: str = "paragraph"
    field: str | None = None
    form: str = "text"


@dataclass(frozen=True)
class TextFile:
    """A file of a corpus, hashed and counted: ``characters`` in the file, ``paragraph_characters`` in its documents.

    ``paragraphs`` is the number of its documents, ``field`` the field of a table that holds them.
    """

    source: ByteSource
    size: int
    sha256: str
    characters: int
    paragraphs: int
    paragraph_characters: int
    field: str = ""


@dataclass(frozen=True)
class Skipped:
    """A file or folder that was skipped, and why."""

    path: Path
    why: str


@dataclass(frozen=True)
class Corpus:
    """Text files in order, cut into documents by a ``reading``.

    ``buffer`` is the number of bytes read at a time, and the length from which a document may be cut into pieces.
    Every pass reads the files again, and raises UsageError for a file that has changed in size, modification time or
    inode. Fingerprints are hashes of all bytes and never depend on dates. ``weights`` are pairs of a number of files
    and a weight; with them it is several corpora in one.
    """

    files: tuple[TextFile, ...]
    skipped: tuple[Skipped, ...] = ()
    reading: Reading = Reading()
    buffer: int = BUFFER
    weights: tuple[tuple[int, float], ...] = ()

    def groups(self) -> list["Corpus"]:
        """The corpora with their own weights, or just this one."""
        stops = accumulate(count for count, _ in self.weights)
        return [
            replace(self, files=self.files[stop - count : stop], weights=())
            for stop, (count, _) in zip(stops, self.weights, strict=True)
        ] or [self]

    @property
    def characters(self) -> int:
        """The number of characters in all documents."""
        return sum(map(self._characters_in, self.files))

    @property
    def by_file(self) -> bool:
        """Whether each file is one document."""
        return self.reading.document == "file"

    def whole_files(self) -> "Corpus":
        """The corpus with each file as one document, for a tokenizer of characters."""
        return replace(self, reading=replace(self.reading, document="file"))

    def documents(self) -> "Documents":
        """All documents; each pass reads them again."""
        return Documents(self, 0, self._count())

    def split(self, share: float) -> tuple["Documents", "Documents"]:
        """The documents to train on and those held out: the last ones, with ``share`` of all characters.

        Where whole documents would make that less than half or more than twice the ``share``, the one at the border is
        cut in two between characters, except for rows that are JSON. With two or more documents, neither part is empty.
        """
        document, at = self._border(share)
        if not at:
            return Documents(self, 0, document), Documents(self, document, self._count())
        cut = (document, at)
        return Documents(self, 0, document + 1, cut), Documents(self, document + 1, self._count() + 1, cut)

    def documents_in(self, file: TextFile) -> int:
        """The number of documents in a file; 0 for a blank file."""
        return min(1, file.paragraphs) if self.by_file and not file.field else file.paragraphs

    def pieces_of(self, file: TextFile, cut: Cut) -> Iterator[Piece]:
        """Yield the documents of one file that are not blank."""
        if file.field:
            separator = "\n\n" if self.by_file else ""  # for a tokenizer of characters, which has no end token
            pieces: Iterator[Piece] = (
                (text + separator, True) for text in row_texts(file.source, file.field, self.reading.form)
            )
        else:
            pieces = mark_ends(decoded(file.source.name, file.source.read(self.buffer)), self.reading.document)
        return non_blank_documents(pieces, cut, self.buffer)

    def _count(self) -> int:
        return sum(map(self.documents_in, self.files))

    def _characters_in(self, file: TextFile) -> int:
        if self.by_file and not file.field:
            return file.characters if file.paragraphs else 0
        return file.paragraph_characters

    def _border(self, share: float) -> tuple[int, int]:
        """How many documents come before the border, and how many characters of the next; reads only its file."""
        total, most = self.characters, self._count() - 1
        limit = total * (1 - share)
        n_characters = n_documents = 0
        for file in self.files:
            file_documents, file_characters = self.documents_in(file), self._characters_in(file)
            if n_documents + file_documents <= most and n_characters + file_characters <= limit:
                n_characters, n_documents = n_characters + file_characters, n_documents + file_documents
                continue
            for length in lengths(self.pieces_of(file, cut_anywhere)):
                if n_documents >= most or n_characters + length > limit:
                    held_out = total - (n_characters if n_documents else length)
                    fits = share / 2 * total <= held_out <= 2 * share * total
                    if fits or not share or length < 2 or self.reading.form != "text":
                        return max(1, n_documents), 0
                    return n_documents, min(max(round(limit) - n_characters, 1), length - 1)
                n_characters, n_documents = n_characters + length, n_documents + 1
        return max(1, n_documents), 0


@dataclass(frozen=True)
class Documents:
    """Documents ``first`` to ``stop`` (exclusive) of a corpus, read again in each pass.

    ``at`` splits a document, counted from 0, in two after so many characters; both count. Iteration yields whole
    documents, or pieces where ``cut`` allows.
    """

    corpus: Corpus
    first: int
    stop: int
    at: tuple[int, int] | None = None
    cut: Cut = cut_nowhere

    def __iter__(self) -> Iterator[str]:
        return (text for text, _ in self.pieces(self.cut))

    def __len__(self) -> int:
        """The number of documents, whether or not they are cut."""
        return self.stop - self.first

    def texts(self, cut: Cut = cut_between_words) -> "Documents":
        """The documents in texts of bounded length, for TRAINERS, none of which looks across words.

        A trainer of characters can use the ``cut`` ``cut_anywhere``, which also suits scripts without spaces.
        """
        return replace(self, cut=cut)

    def pieces(self, cut: Cut) -> Iterator[Piece]:
        """Yield the documents in pieces, long ones cut where ``cut`` allows; files before ``first`` are not read."""
        number = 0
        for file in self.corpus.files:
            n_documents = self.corpus.documents_in(file)
            split = None  # the document of this file that is split, and where
            if self.at is not None and number <= self.at[0] < number + n_documents:
                split, n_documents = (self.at[0] - number, self.at[1]), n_documents + 1
            if number + n_documents <= self.first:
                number += n_documents
                continue
            if number >= self.stop:
                return
            pieces = self.corpus.pieces_of(file, cut)
            for text, ends in pieces if split is None else split_in_two(pieces, *split):
                if self.first <= number < self.stop:
                    yield text, ends
                number += ends
                if number >= self.stop:
                    return


def ignore_progress(done: int, of: int) -> None:
    """The callback that ignores its arguments."""


def find_files(
    paths: Sequence[Path] | str,
    reading: Reading = Reading(),
    *,
    skip_unreadable: bool = False,
    buffer: int = BUFFER,
    on_read: OnRead = ignore_progress,
) -> Corpus:
    """The corpus of files and folders (their .txt and .md files, sorted), or of one text given as a str.

    Folders also include tables if their field is named.

    Each file is read once here, so that faults show up before training. Raises UsageError for a file that is missing,
    unreadable, binary or not UTF-8, for a folder without a text file, and for a blank corpus. With ``skip_unreadable``
    such files inside folders are skipped and listed instead.
    """
    files, skipped, chosen = [], [], list[tuple[Path, bool]]()

    def skip(path: Path, why: str) -> None:
        if not skip_unreadable:
            raise UsageError(why, "move it out of the folder, or skip unreadable files") from None
        skipped.append(Skipped(path, why))

    if isinstance(paths, str):
        files, paths = [_scan(ByteSource("the text", data=_encode(paths)), reading, buffer, lambda _: None)], ()
    suffixes = (*SUFFIXES, *(TABLES if reading.field or reading.form != "text" else ()))
    for root in paths:
        if not os.path.isdir(root):
            chosen.append((root, False))
            continue
        unreadable: list[OSError] = []
        walk = os.walk(root, onerror=unreadable.append)
        members = sorted(
            Path(folder, name) for folder, _, names in walk for name in names if Path(name).suffix in suffixes
        )
        for denied in unreadable:
            skip(Path(denied.filename), f"cannot read the folder {denied.filename}: {denied.strerror}")
        if not members:
            raise UsageError(
                f"the folder {root} holds no {' or '.join(suffixes)} file", "name files of another kind one by one"
            )
        chosen += [(path, True) for path in members]
    bytes_before, total = 0, sum(_size(path) for path, _ in chosen)

    def report(done: int) -> None:
        on_read(bytes_before + done, total)

    for path, in_folder in chosen:
        try:
            files.append(_scan_path(path, reading, buffer, report))
        except UsageError as error:
            if not in_folder:
                raise
            skip(path, error.message)
        bytes_before += _size(path)
    if not any(file.paragraphs for file in files):
        raise UsageError("the corpus has no word in it", "give a text that is more than white space")
    return Corpus(tuple(files), tuple(skipped), reading, buffer)


def find_rows(rows: Sequence[str | Mapping[str, Any]], reading: Reading = Reading()) -> Corpus:
    """The corpus of texts, or of rows of a data set, each a document. Raises UsageError for anything else."""
    tables = [{"text": row} if isinstance(row, str) else row for row in rows]
    if not tables or not all(isinstance(row, Mapping) for row in tables):
        raise UsageError("a corpus is texts, or rows with a field of text", "give a list of str, or of dict")
    lines = "".join(f"{json.dumps(dict(row))}\n" for row in tables)
    source = ByteSource("texts.jsonl", data=lines.encode("ascii"))
    return Corpus((_scan(source, reading, BUFFER, lambda _: None),), reading=reading)


def _size(path: Path) -> int:
    """The number of bytes of a file; 0 if it is not known."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _scan_path(path: Path, reading: Reading, buffer: int, on_read: Callable[[int], None]) -> TextFile:
    try:
        return _scan(ByteSource.of(path), reading, buffer, on_read)
    except OSError as error:
        hint = "" if os.path.lexists(path) else "is its name right?"
        hint = "first start the program that writes to it" if error.errno == errno.ENXIO else hint
        raise UsageError(f"cannot read {path}: {error.strerror}", hint) from None


def _encode(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        details = f"U+{ord(text[error.start]):04X}) at character {error.start:,}"
        raise UsageError(f"the text has a lone surrogate ({details}", "it was not valid UTF-8; re-encode it") from None


def _scan(source: ByteSource, reading: Reading, buffer: int, on_read: Callable[[int], None]) -> TextFile:
    """Read a source once: hash it, decode it, count its characters and documents.

    ``on_read`` gets the number of bytes so far; for a table, which is parsed after hashing, the characters so far.
    """
    digest = hashlib.sha256()
    size = characters = documents = document_characters = 0
    table = reading.field is not None and is_table(source)

    def hash_bytes() -> Iterator[bytes]:
        nonlocal size
        for data in source.read(buffer):
            if not table and size < _HEAD and (position := data[: _HEAD - size].find(0)) >= 0:
                hint = "give text files, in UTF-8"
                if data.startswith(b"GGUF"):
                    hint = f"it is a model: name it with --model {source.name}"
                raise UsageError(f"{source.name} is binary: it has a NUL byte at byte {size + position:,}", hint)
            digest.update(data)
            size += len(data)
            if not table:
                on_read(size)
            yield data

    def count_characters() -> Iterator[str]:
        nonlocal characters
        for text in decoded(source.name, hash_bytes()):
            characters += len(text)
            yield text

    field = ""
    if table:
        for _ in hash_bytes():
            pass
        field = text_field(source, reading.field or "", reading.form)
        pieces = non_blank_documents(
            ((text, True) for text in row_texts(source, field, reading.form)), cut_anywhere, buffer
        )
    elif reading.form != "text":
        chat, sides = reading.form == "chat", PAIR.replace(",", " and ")
        said, needs = ("conversations", f"a field {MESSAGES}") if chat else ("pairs", f"fields {sides}")
        raise UsageError(f"{source.name} holds no {said}", f"give a table with {needs}: {', '.join(TABLES)}")
    else:
        document = "paragraph" if reading.document == "file" else reading.document
        pieces = non_blank_documents(mark_ends(count_characters(), document), cut_anywhere, buffer)
    for length in lengths(pieces):
        documents, document_characters = documents + 1, document_characters + length
        if table:
            on_read(min(document_characters, size))
    characters = document_characters if table else characters
    return TextFile(source, size, digest.hexdigest(), characters, documents, document_characters, field)
