"""The text of a command: from its argument, from ``-``, or from a pipe."""

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tinytf.errors import UsageError
from tinytf.files import CONFIGURATION, read_bytes, read_standard_input
from tinytf_cli.host import host

if TYPE_CHECKING:
    from tinytf.bulk.folder import RecordedCorpus
    from tinytf.loading import Model
    from tinytf.text.chat import Conversation, Written
    from tinytf.text.corpus import Corpus, Reading


_MESSAGES = "the messages, a list of objects with role and content"


def read_texts(words: tuple[str, ...], *, lines: bool) -> list[str]:
    """Read the text in ``words`` or from standard input; with ``lines`` one text per line, skipping blank lines.

    Raises UsageError if there is no text, if it is not UTF-8, and if it names a file or a run.
    """
    from tinytf.runs.run_files import is_run

    for word in words:
        if "." in word and os.path.isfile(word):
            from tinytf.compare.dumps.read import is_dump

            hint = "tinytf diff --versus compares it" if is_dump(word) else f"- < {word} reads the text in it"
            raise UsageError(f"{word} is a file, and this takes a text", hint)
        if os.sep in word and is_run(Path(word)):
            hint = f"-m {word} TEXT opens its model, and tinytf runs {word} shows its training"
            raise UsageError(f"{word} is a training run, and this takes a text", hint)
    text = " ".join(words) if words and words != ("-",) else _standard_input(is_requested=bool(words))
    if not lines:
        return [text]
    texts = [line for line in text.splitlines() if line.strip()]
    if not texts:
        raise UsageError("the text has no line with a word in it", "give one text per line")
    return texts


def read_conversations(words: tuple[str, ...], *, lines: bool, system: str | None = None) -> "list[Conversation]":
    """Read a conversation, or with ``lines`` one per line: messages as JSON, or one user message.

    A single word that ends in .json is a file. Piped text that begins like JSON is read as JSON.
    """
    file = len(words) == 1 and words[0].lower().endswith(".json")
    texts = [file_text(Path(words[0]), _MESSAGES)] if file else read_texts(words, lines=lines)
    if not file and words not in ((), ("-",)):
        from tinytf.text.chat import Conversation

        return [Conversation.of(text, system) for text in texts]
    return [conversation_in(text, system, json=file) for text in texts]


def conversation_in(text: str, system: str | None, *, json: bool = False) -> "Conversation":
    """The conversation in a text: its messages if it is ``json`` or begins like it, otherwise one user message."""
    from tinytf.text.chat import Conversation

    is_json = json or re.match(r"\s*(\[\s*)?\{", text)
    return (Conversation.from_json if is_json else Conversation.of)(text, system)


def file_text(path: Path, content: str) -> str:
    """The text of a file; ``content`` says what it should hold. Raises UsageError."""
    try:
        return read_bytes(path, CONFIGURATION).decode("utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"there is no {path}", f"it holds {content}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def _standard_input(*, is_requested: bool) -> str:
    if host() is not None:
        raise UsageError("a session reads no text from standard input", "type the text, or name a file")
    if sys.stdin is None or (sys.stdin.isatty() and not is_requested):
        raise UsageError("there is no text", 'give it in quotes, such as "The cat sat", or pipe it in')
    read_standard_input()
    data = sys.stdin.buffer.read()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"standard input is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start:,}",
            "re-encode it, for example with iconv -t utf-8",
        ) from None
    if text.endswith("\r\n"):
        return text[:-2]
    return text.removesuffix("\n")


def with_session_text(words: tuple[str, ...], count: int) -> "tuple[Written, ...]":
    """Put the session's text, or its source, first if exactly one of the ``count`` texts is missing."""
    session = host()
    if session is None or len(words) != count - 1:
        return words
    return (session.require_source(), *words)


def corpus_files(paths: tuple[Path, ...], words: tuple[str, ...], reading: "Reading | None" = None) -> "Corpus":
    """The corpus at these paths, cut into documents by a ``reading``. ``-`` is standard input, read as one text."""
    from tinytf.text.corpus import Reading, find_files

    reading = reading or Reading()
    if Path("-") not in paths:
        return find_files(paths, reading)
    if len(paths) > 1:
        raise UsageError("- is a whole corpus, and there is another one", "leave one of them out")
    if words in ((), ("-",)):
        raise UsageError("a pipe holds one text, and both TEXT and the corpus are -", "give TEXT in quotes")
    return find_files(read_texts(("-",), lines=False)[0], reading)


def corpus_or_recorded(paths: tuple[Path, ...], words: tuple[str, ...], model: "Model") -> "Corpus | RecordedCorpus":
    """The corpus at these paths, as ``model`` reads it, or what ``tinytf record`` wrote, if that is the only path."""
    from tinytf.bulk.folder import is_recorded, recorded

    if len(paths) == 1 and is_recorded(paths[0]):
        return recorded(paths[0])
    return corpus_files(paths, words, read_by(model))


def read_by(model: "Model", reading: "Reading | None" = None) -> "Reading":
    """How ``model`` reads a corpus: as ``reading`` says, or in pairs of a source and a target if it has two stacks."""
    from tinytf.text.corpus import Reading

    reading = reading or Reading()
    return Reading(reading.document, reading.field or "", "pair") if model.config.d_source else reading


def whole_text(path: Path) -> str:
    """A text file as one text, or standard input for ``-``. Raises UsageError, as ``find_files`` does."""
    if path == Path("-"):
        return read_texts(("-",), lines=False)[0]
    from tinytf.text.corpus import find_files
    from tinytf.text.stream import cut_anywhere

    return "".join(find_files([path]).whole_files().documents().texts(cut_anywhere))


def line_texts(path: Path) -> list[str]:
    """The non-blank lines of a text file, or of standard input for ``-``.

    Raises UsageError, as ``find_files`` does.
    """
    if path == Path("-"):
        return read_texts(("-",), lines=True)
    return [line for line in whole_text(path).splitlines() if line.strip()]
