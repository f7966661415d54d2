"""A corpus as a stream: text files, the documents in them, and which of those are held out.

Only a buffer of a file, or one document of it, is ever in memory.
"""

import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from tinytf.errors import UsageError
from tinytf.text.rows import TABLES, is_table, row_texts, text_field
from tinytf.text.stream import (
    ByteSource,
    Cut,
    Piece,
    anywhere,
    between_words,
    decoded,
    documents_of,
    in_two,
    lengths,
    marked,
    nowhere,
)

SUFFIXES = (".txt", ".md")
DOCUMENTS = ("paragraph", "line", "file")
BUFFER = 1 << 16  # the library takes some 300 bytes for each character of a text that it encodes
_HEAD = 8192  # bytes in which a NUL makes a file a binary one
OnRead = Callable[[int, int], None]
"""Told how many bytes have been read, and of how many."""


@dataclass(frozen=True)
class Reading:
    """What is a document of a corpus: a paragraph, a line or all of a text, and a ``field`` of each row of a table.

    Without a field (None) tables are read as any text; an empty one stands for the only field that is a text. With
    ``chat`` the field is a list of messages, and the document is JSON.
    """

    document: str = "paragraph"
    field: str | None = None
    chat: bool = False


@dataclass(frozen=True)
class TextFile:
    """A file of a corpus, hashed and counted: ``characters`` in all of it, ``paragraph_characters`` in documents.

    ``paragraphs`` are its documents. ``field`` is that of a table.
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

    ``buffer`` is how many bytes are read at a time, and from how many characters on a document may be cut into pieces.
    Every pass reads the files again, and raises UsageError for one that has changed: size, modification time and inode
    stand for the contents within one process. Fingerprints are made of hashes of all bytes, never of a date. With
    ``weights``, a number of files and a weight each, it is several corpora.
    """

    files: tuple[TextFile, ...]
    skipped: tuple[Skipped, ...] = ()
    reading: Reading = Reading()
    buffer: int = BUFFER
    weights: tuple[tuple[int, float], ...] = ()

    def groups(self) -> list["Corpus"]:
        """The corpora that have weights, else this one alone."""
        stops = accumulate(count for count, _ in self.weights)
        return [
            replace(self, files=self.files[stop - count : stop], weights=())
            for stop, (count, _) in zip(stops, self.weights, strict=True)
        ] or [self]

    @property
    def by_file(self) -> bool:
        """Whether each file is one document."""
        return self.reading.document == "file"

    def whole_files(self) -> "Corpus":
        """The corpus with one document for each file, for a tokenizer of characters."""
        return replace(self, reading=replace(self.reading, document="file"))

    def documents(self) -> "Documents":
        """All documents; each pass reads them again."""
        return Documents(self, 0, self._count())

    def split(self, share: float) -> tuple["Documents", "Documents"]:
        """The documents to train on, and those held out: the last ones, ``share`` of all characters.

        At least one is trained on and one held out, if there are two. A single whole file is cut between characters.
        """
        inside = [file for file in self.files if file.paragraphs]
        if self.by_file and len(inside) == 1 and not inside[0].field:
            at = max(1, round(inside[0].characters * (1 - share)))
            return Documents(self, 0, 1, at), Documents(self, 1, 2, at)
        border = self._border(share)
        return Documents(self, 0, border), Documents(self, border, self._count())

    def documents_in(self, file: TextFile) -> int:
        """How many documents a file has; none if it has no word."""
        return min(1, file.paragraphs) if self.by_file and not file.field else file.paragraphs

    def pieces_of(self, file: TextFile, cut: Cut) -> Iterator[Piece]:
        """The documents of one file that have a word in them."""
        if file.field:
            apart = "\n\n" if self.by_file else ""  # for a tokenizer of characters, which has no end token
            pieces: Iterator[Piece] = (
                (text + apart, True) for text in row_texts(file.source, file.field, self.reading.chat)
            )
        else:
            pieces = marked(decoded(file.source.name, file.source.read(self.buffer)), self.reading.document)
        return documents_of(pieces, cut, self.buffer)

    def _count(self) -> int:
        return sum(map(self.documents_in, self.files))

    def _characters_in(self, file: TextFile) -> int:
        if self.by_file and not file.field:
            return file.characters if file.paragraphs else 0
        return file.paragraph_characters

    def _border(self, share: float) -> int:
        """How many documents to train on; reads only the file that the border falls into."""
        most, limit = self._count() - 1, sum(map(self._characters_in, self.files)) * (1 - share)
        kept = count = 0
        for file in self.files:
            documents, characters = self.documents_in(file), self._characters_in(file)
            if count + documents <= most and kept + characters <= limit:
                kept, count = kept + characters, count + documents
                continue
            for length in lengths(self.pieces_of(file, anywhere)):
                if count >= most or kept + length > limit:
                    return max(1, count)
                kept, count = kept + length, count + 1
        return max(1, count)


@dataclass(frozen=True)
class Documents:
    """Documents ``first`` to before ``stop`` of a corpus, read anew in each pass; ``at`` splits a single one in two.

    They come whole, or cut into texts where ``cut`` allows it.
    """

    corpus: Corpus
    first: int
    stop: int
    at: int | None = None
    cut: Cut = nowhere

    def __iter__(self) -> Iterator[str]:
        return (text for text, _ in self.pieces(self.cut))

    def __len__(self) -> int:
        """The number of documents, also where they are cut."""
        return self.stop - self.first

    def texts(self, cut: Cut = between_words) -> "Documents":
        """All characters in texts of bounded length, for TRAINERS: none of them looks beyond a word.

        A trainer that looks at characters alone can take a ``cut`` of ``anywhere``, for scripts without spaces.
        """
        return replace(self, cut=cut)

    def pieces(self, cut: Cut) -> Iterator[Piece]:
        """The documents in pieces, long ones cut where ``cut`` allows it; files before ``first`` are not read."""
        number = 0
        for file in self.corpus.files:
            inside = self.corpus.documents_in(file) * (1 if self.at is None else 2)
            if number + inside <= self.first:
                number += inside
                continue
            if number >= self.stop:
                return
            pieces = self.corpus.pieces_of(file, cut)
            for text, ends in pieces if self.at is None else in_two(pieces, self.at):
                if self.first <= number < self.stop:
                    yield text, ends
                number += ends
                if number >= self.stop:
                    return


def unheard(done: int, of: int) -> None:
    """What is told to nobody."""


def find_files(
    paths: Sequence[Path] | str,
    reading: Reading = Reading(),
    *,
    skip_unreadable: bool = False,
    buffer: int = BUFFER,
    on_read: OnRead = unheard,
) -> Corpus:
    """The corpus of files and folders (in folders every .txt and .md file, sorted), or of one text given as a str.

    In folders tables are read where their field is named.

    Each file is read once here, so that its faults are known before training. Raises UsageError for a file that is
    missing, unreadable, binary or not UTF-8, for a folder without a text file, and for a corpus without a word. With
    ``skip_unreadable`` such files inside folders are skipped and listed instead.
    """
    files, skipped, chosen = [], [], list[tuple[Path, bool]]()

    def skip(path: Path, why: str) -> None:
        if not skip_unreadable:
            raise UsageError(why, "move it out of the folder, or let unreadable files be skipped") from None
        skipped.append(Skipped(path, why))

    if isinstance(paths, str):
        files, paths = [_scanned(ByteSource("the text", data=_encoded(paths)), reading, buffer, lambda _: None)], ()
    suffixes = (*SUFFIXES, *(TABLES if reading.field or reading.chat else ()))
    for given in paths:
        if not os.path.isdir(given):
            chosen.append((given, False))
            continue
        unreadable: list[OSError] = []
        walk = os.walk(given, onerror=unreadable.append)
        inside = sorted(Path(at, name) for at, _, names in walk for name in names if Path(name).suffix in suffixes)
        for denied in unreadable:
            skip(Path(denied.filename), f"cannot read the folder {denied.filename}: {denied.strerror}")
        if not inside:
            raise UsageError(
                f"the folder {given} holds no {' or '.join(suffixes)} file", "name files of another kind one by one"
            )
        chosen += [(path, True) for path in inside]
    before, total = 0, sum(_size(path) for path, _ in chosen)

    def heard(done: int) -> None:
        on_read(before + done, total)

    for path, in_folder in chosen:
        try:
            files.append(_opened(path, reading, buffer, heard))
        except UsageError as error:
            if not in_folder:
                raise
            skip(path, error.message)
        before += _size(path)
    if not any(file.paragraphs for file in files):
        raise UsageError("the corpus has no word in it", "give one that is more than white space")
    return Corpus(tuple(files), tuple(skipped), reading, buffer)


def _size(path: Path) -> int:
    """The bytes of a file; 0 where they are not known."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _opened(path: Path, reading: Reading, buffer: int, on_read: Callable[[int], None]) -> TextFile:
    try:
        return _scanned(ByteSource.of(path), reading, buffer, on_read)
    except OSError as error:
        hint = "" if os.path.lexists(path) else "is its name right?"
        hint = "start what writes to it first" if error.errno == errno.ENXIO else hint
        raise UsageError(f"cannot read {path}: {error.strerror}", hint) from None


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        place = f"U+{ord(text[error.start]):04X}) at character {error.start:,}"
        raise UsageError(f"the text has a lone surrogate ({place}", "it was not valid UTF-8; re-encode it") from None


def _scanned(source: ByteSource, reading: Reading, buffer: int, on_read: Callable[[int], None]) -> TextFile:
    """Go through a source once: hash it, decode it, count its characters and documents.

    ``on_read`` hears of the bytes so far; of a table, which is parsed after it was hashed, of the characters parsed.
    """
    digest = hashlib.sha256()
    size = characters = documents = document_characters = 0
    table = reading.field is not None and is_table(source)

    def hashed() -> Iterator[bytes]:
        nonlocal size
        for data in source.read(buffer):
            if not table and size < _HEAD and (place := data[: _HEAD - size].find(0)) >= 0:
                hint = "give text files, in UTF-8"
                raise UsageError(f"{source.name} is binary: it has a NUL byte at byte {size + place:,}", hint)
            digest.update(data)
            size += len(data)
            if not table:
                on_read(size)
            yield data

    def counted() -> Iterator[str]:
        nonlocal characters
        for text in decoded(source.name, hashed()):
            characters += len(text)
            yield text

    field = ""
    if table:
        for _ in hashed():
            pass
        field = text_field(source, reading.field or "", reading.chat)
        pieces = documents_of(((text, True) for text in row_texts(source, field, reading.chat)), anywhere, buffer)
    elif reading.chat:
        kinds = ", ".join(TABLES)
        raise UsageError(f"{source.name} holds no conversations", f"give a table with a field messages: {kinds}")
    else:
        what = "paragraph" if reading.document == "file" else reading.document
        pieces = documents_of(marked(counted(), what), anywhere, buffer)
    for length in lengths(pieces):
        documents, document_characters = documents + 1, document_characters + length
        if table:
            on_read(min(document_characters, size))
    characters = document_characters if table else characters
    return TextFile(source, size, digest.hexdigest(), characters, documents, document_characters, field)
