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
    from tinytf.text.chat import Conversation, Written
    from tinytf.text.corpus import Corpus


def read_texts(words: tuple[str, ...], *, lines: bool) -> list[str]:
    """The given text, or with ``lines`` one text per line (blank lines are skipped).

    Raises UsageError where there is none, where it is not UTF-8, and where it is the name of a file.
    """
    for word in words:
        if "." in word and os.path.isfile(word):
            from tinytf.compare.dumps.read import is_dump

            hint = "tinytf diff --versus compares it" if is_dump(word) else f"- < {word} reads a text from it"
            raise UsageError(f"{word} is a file, and a text is wanted here", hint)
    text = " ".join(words) if words and words != ("-",) else _standard_input(asked=bool(words))
    if not lines:
        return [text]
    texts = [line for line in text.splitlines() if line.strip()]
    if not texts:
        raise UsageError("the text has no line with a word in it", "give one text per line")
    return texts


def read_conversations(words: tuple[str, ...], *, lines: bool, system: str | None = None) -> "list[Conversation]":
    """The given conversation, or with ``lines`` one per line: the messages of JSON, or a message of the user.

    One word that ends in .json is a file, and what begins as JSON does from a pipe is JSON.
    """
    file = len(words) == 1 and words[0].lower().endswith(".json")
    texts = [_file_text(Path(words[0]))] if file else read_texts(words, lines=lines)
    if not file and words not in ((), ("-",)):
        from tinytf.text.chat import Conversation

        return [Conversation.of(text, system) for text in texts]
    return [conversation_in(text, system, json=file) for text in texts]


def conversation_in(text: str, system: str | None, *, json: bool = False) -> "Conversation":
    """What a text of a file or pipe holds: messages, if it is ``json`` or begins so, or a message of the user."""
    from tinytf.text.chat import Conversation

    begins = json or re.match(r"\s*(\[\s*)?\{", text)
    return (Conversation.from_json if begins else Conversation.of)(text, system)


def _file_text(path: Path) -> str:
    try:
        return read_bytes(path, CONFIGURATION).decode("utf-8-sig")
    except FileNotFoundError:
        raise UsageError(
            f"there is no {path}", "it holds the messages, a list of objects with role and content"
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def _standard_input(*, asked: bool) -> str:
    if host() is not None:
        raise UsageError("a session reads no text from standard input", "give the text itself, or name a file")
    if sys.stdin is None or (sys.stdin.isatty() and not asked):
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


def with_session_text(words: tuple[str, ...], wanted: int) -> "tuple[Written, ...]":
    """Inside a session, where one of the ``wanted`` texts is missing, the session's text comes first."""
    session = host()
    if session is None or len(words) != wanted - 1:
        return words
    return (session.require_text(), *words)


def corpus_files(paths: tuple[Path, ...], words: tuple[str, ...]) -> "Corpus":
    """The corpus at these paths; ``-`` is standard input, which holds one text."""
    from tinytf.text.corpus import find_files

    if Path("-") not in paths:
        return find_files(paths)
    if len(paths) > 1:
        raise UsageError("- is the whole corpus, and there is another one", "leave one of them out")
    if words in ((), ("-",)):
        raise UsageError("a pipe holds one text, and both TEXT and the corpus are -", "give TEXT in quotes")
    return find_files(read_texts(("-",), lines=False)[0])


def line_texts(path: Path) -> list[str]:
    """The lines of a text file that have a word in them, or of standard input, which is ``-``.

    Raises UsageError as ``find_files`` does.
    """
    if path == Path("-"):
        return read_texts(("-",), lines=True)
    from tinytf.text.corpus import find_files
    from tinytf.text.stream import anywhere

    whole = "".join(find_files([path]).whole_files().documents().texts(anywhere))
    return [line for line in whole.splitlines() if line.strip()]
