"""A prompt without a terminal: keys go in through a pipe, and what the session ran can be read."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from tinytf_cli.repl.prompt import Prompt
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import VERBS
from tinytf_cli.repl.streams import Capture

ALT = {"up": "\x1b[1;3A", "down": "\x1b[1;3B", "right": "\x1b[1;3C"}
UP, TAB, LEAVE, CANCEL, ENTER = "\x1b[A", "\t", "\x04", "\x03", "\r"


def pasted(text: str) -> str:
    """A text as a terminal sends it when it is pasted."""
    return f"\x1b[200~{text}\x1b[201~"


@dataclass
class Typist:
    """A prompt and its keys."""

    prompt: Prompt
    keys: PipeInput
    out: Capture
    err: Capture

    def __call__(self, keys: str) -> int:
        """Type keys, leave, and answer with the status."""
        typing = threading.Thread(target=self.keys.send_text, args=(keys + LEAVE,), daemon=True)
        typing.start()  # a pipe takes some 64 kB before it is read
        return self.prompt.talk()

    @property
    def lines(self) -> list[str]:
        """What was run."""
        return [entry.line for entry in self.prompt.session.log.lines]


@contextmanager
def typist(folder: Path, monkeypatch: pytest.MonkeyPatch, session: Session | None = None) -> Iterator[Typist]:
    """A user at a prompt whose history is in ``folder``."""
    monkeypatch.setattr("tinytf_cli.repl.prompt.history_path", lambda: folder / "tinytf" / "history")
    out, err = Capture(), Capture()
    session = session or Session(VERBS)
    session.streams.stdout, session.streams.stderr = out, err
    with create_pipe_input() as keys:
        yield Typist(Prompt(session, input=keys, output=DummyOutput()), keys, out, err)
