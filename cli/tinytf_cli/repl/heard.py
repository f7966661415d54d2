"""What a line wrote, kept so that it can be piped, written to a file, or paged."""

import io
from dataclasses import dataclass, field
from typing import Any, TextIO, cast

from tinytf_cli.output import Output, Result


class Ear(io.TextIOBase):
    """A stream that keeps what it is given, and passes it on to ``through`` where there is one."""

    def __init__(self, through: TextIO | None = None, *, terminal: bool = False, encoding: str = "utf-8") -> None:
        super().__init__()
        self._through, self._terminal, self._encoding = through, terminal, encoding
        self._parts: list[str] = []

    def write(self, text: str) -> int:
        if not isinstance(text, str):  # click tries out whether a stream takes bytes
            raise TypeError(f"a text stream takes str, and not {type(text).__name__}")
        self._parts.append(text)
        if self._through is not None:
            self._through.write(text)
        return len(text)

    def flush(self) -> None:
        if self._through is not None:
            self._through.flush()

    def isatty(self) -> bool:
        return self._terminal if self._through is None else self._through.isatty()

    def fileno(self) -> int:
        return super().fileno() if self._through is None else self._through.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding if self._through is None else self._through.encoding

    @property
    def stream(self) -> TextIO:
        """Itself, as what it can be used for."""
        return cast(TextIO, self)

    @property
    def text(self) -> str:
        return "".join(self._parts)


@dataclass
class Heard:
    """The results of one line, each with the form in which it was asked for, and the text that was written."""

    ear: Ear
    results: list[tuple[Result, str]] = field(default_factory=list)


@dataclass(frozen=True)
class HeardOutput(Output):
    """An output whose results are remembered."""

    heard: Any = None

    def show(self, result: Result) -> None:
        """Write one result, and remember it."""
        if self.heard is not None:
            self.heard.results.append((result, self.format))
        super().show(result)
