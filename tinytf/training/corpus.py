"""A corpus that is read as a stream: text files, the documents in them, and which of those are held out.

What comes out is what ``paragraphs`` and ``split_held_out`` make of the same texts in memory; here only a buffer of a
file, or one document of it, is ever held.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tinytf.errors import UsageError
from tinytf.training.stream import (
    Cut,
    Piece,
    Source,
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
BUFFER = 1 << 16  # the library takes some 300 bytes for each character of a text that it encodes
_HEAD = 8192  # bytes in which a NUL makes a file a binary one


@dataclass(frozen=True)
class TextFile:
    """A file of a corpus: its bytes, counted and hashed. ``characters`` are all of it, the others its paragraphs'."""

    source: Source
    size: int
    sha256: str
    characters: int
    paragraphs: int
    paragraph_characters: int


@dataclass(frozen=True)
class Skipped:
    """A file or folder that was left out, and why."""

    path: Path
    why: str


@dataclass(frozen=True)
class Corpus:
    """Text files in their order. Their paragraphs are the documents, or with ``by_file`` each whole file is one.

    ``buffer`` is how many bytes are read at a time, and from how many characters on a document is cut into pieces
    where it may be. Every pass reads the files again, and raises UsageError when one is not what it was: size,
    modification time and inode stand for the contents, which were hashed when the file was found. That is safe
    enough within one process: what a fingerprint is made of is always a hash of all bytes, never a date.
    """

    files: tuple[TextFile, ...]
    skipped: tuple[Skipped, ...] = ()
    by_file: bool = False
    buffer: int = BUFFER

    def whole_files(self) -> "Corpus":
        """The same files with one document each, as a tokenizer of characters wants them."""
        return replace(self, by_file=True)

    def documents(self) -> "Documents":
        """All documents, a stream that can be gone through again and again."""
        return Documents(self, 0, self._count())

    def split(self, share: float) -> tuple["Documents", "Documents"]:
        """What is trained on and what is held out: the last documents, ``share`` of all characters.

        At least one document stays on either side. A single whole file is cut between two characters instead.
        """
        sizes = [file.characters for file in self.files if file.paragraphs]
        if self.by_file and len(sizes) == 1:
            at = max(1, round(sizes[0] * (1 - share)))
            return Documents(self, 0, 1, at), Documents(self, 1, 2, at)
        border = self._border(share)
        return Documents(self, 0, border), Documents(self, border, self._count())

    def documents_in(self, file: TextFile) -> int:
        """How many documents a file has; none where it has not a word."""
        return min(1, file.paragraphs) if self.by_file else file.paragraphs

    def pieces_of(self, file: TextFile, cut: Cut) -> Iterator[Piece]:
        """The documents of one file, those that have a word in them."""
        return documents_of(marked(decoded(file.source, self.buffer), self.by_file), cut, self.buffer)

    def _count(self) -> int:
        return sum(map(self.documents_in, self.files))

    def _characters_in(self, file: TextFile) -> int:
        if self.by_file:
            return file.characters if file.paragraphs else 0
        return file.paragraph_characters

    def _border(self, share: float) -> int:
        """How many documents are trained on; only the file that the border falls into is read."""
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
    """Documents ``first`` to before ``stop`` of a corpus, read anew each time; ``at`` cuts a single one in two."""

    corpus: Corpus
    first: int
    stop: int
    at: int | None = None

    def __iter__(self) -> Iterator[str]:
        """Whole documents, of whatever length."""
        parts: list[str] = []
        for text, ends in self.pieces(nowhere):
            parts.append(text)
            if ends:
                yield "".join(parts)
                parts = []

    def __len__(self) -> int:
        return self.stop - self.first

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

    def texts(self, cut: Cut = between_words) -> "Texts":
        """The same characters in texts of bounded length, for TRAINERS: none of them looks beyond a word.

        One that looks at characters alone may be given a ``cut`` of ``anywhere``, for scripts without spaces.
        """
        return Texts(self, cut)


@dataclass(frozen=True)
class Texts:
    """Documents in pieces, without their ends; a stream that can be gone through again and again."""

    documents: Documents
    cut: Cut

    def __iter__(self) -> Iterator[str]:
        return (text for text, _ in self.documents.pieces(self.cut))


def find_files(paths: Sequence[Path] | str, *, skip_unreadable: bool = False, buffer: int = BUFFER) -> Corpus:
    """The corpus of files and folders (in folders every .txt and .md file, sorted), or of one text given as a str.

    Each file is read once here, so that whatever is wrong with it is said before anything is trained on it. Raises
    UsageError for what is missing, unreadable or binary, for invalid UTF-8, for a folder without a text file, and
    for a corpus without a word. With ``skip_unreadable`` such files within folders are left out and listed instead.
    """
    if isinstance(paths, str):
        files = [_scanned(Source("the text", data=_encoded(paths)), buffer)]
        return _not_empty(Corpus(tuple(files), buffer=buffer))
    files, skipped = [], []
    for given in paths:
        if not os.path.isdir(given):
            files.append(_opened(given, buffer, "" if os.path.lexists(given) else "is its name right?"))
            continue
        unreadable: list[OSError] = []
        inside = _inside(given, unreadable.append)
        for denied in unreadable:
            why = f"cannot read the folder {denied.filename}: {denied.strerror}"
            skipped.append(_skipped(Path(denied.filename), why, skip_unreadable))
        if not inside:
            raise UsageError(
                f"the folder {given} holds no {' or '.join(SUFFIXES)} file", "name files of another kind one by one"
            )
        for path in inside:
            try:
                files.append(_opened(path, buffer))
            except UsageError as error:
                skipped.append(_skipped(path, error.message, skip_unreadable))
    return _not_empty(Corpus(tuple(files), tuple(skipped), buffer=buffer))


def _skipped(path: Path, why: str, allowed: bool) -> Skipped:
    if not allowed:
        raise UsageError(why, "move it out of the folder, or let unreadable files be skipped") from None
    return Skipped(path, why)


def _inside(folder: Path, on_error: Callable[[OSError], None]) -> list[Path]:
    """The text files of a folder and of the folders in it, sorted as paths."""
    found = [Path(at, name) for at, _, names in os.walk(folder, onerror=on_error) for name in names]
    return sorted(path for path in found if path.suffix in SUFFIXES)


def _opened(path: Path, buffer: int, hint: str = "") -> TextFile:
    try:
        return _scanned(Source.of(path), buffer)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint) from None


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        place = f"U+{ord(text[error.start]):04X}) at character {error.start:,}"
        raise UsageError(f"the text has a lone surrogate ({place}", "it was not valid UTF-8; re-encode it") from None


def _not_empty(corpus: Corpus) -> Corpus:
    if not any(file.paragraphs for file in corpus.files):
        raise UsageError("the corpus has no word in it", "give one that is more than white space")
    return corpus


def _scanned(source: Source, buffer: int) -> TextFile:
    """Go through a source once: hash it, decode it, count its characters and paragraphs."""
    digest = hashlib.sha256()
    size = characters = paragraphs = paragraph_characters = 0

    def hashed(data: bytes) -> None:
        nonlocal size
        if size < _HEAD and (place := data[: _HEAD - size].find(0)) >= 0:
            hint = "give text files, in UTF-8"
            raise UsageError(f"{source.name} is binary: it has a NUL byte at byte {size + place:,}", hint)
        digest.update(data)
        size += len(data)

    def counted() -> Iterator[str]:
        nonlocal characters
        for text in decoded(source, buffer, hashed):
            characters += len(text)
            yield text

    for length in lengths(documents_of(marked(counted(), by_file=False), anywhere, buffer)):
        paragraphs, paragraph_characters = paragraphs + 1, paragraph_characters + length
    return TextFile(source, size, digest.hexdigest(), characters, paragraphs, paragraph_characters)
