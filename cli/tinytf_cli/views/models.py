"""The models at hand, a line each."""

from collections.abc import Iterator
from itertools import groupby

from tinytf.catalogue import AvailableModel, Catalogue
from tinytf.files import resolved
from tinytf.text.printable import printable
from tinytf_cli.numbers import count, in_bytes, plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Column, Heading, Line, Span, Table

_PLACES = {
    "built in": "built in",
    "preset": "presets: architectures with random weights",
    "folder": "in {folder}",
    "hub cache": "in the cache of the Hugging Face hub",
    "Ollama": "of Ollama",
    "LM Studio": "of LM Studio",
}


class ModelsView:
    """A catalogue, drawn."""

    def __init__(self, found: Catalogue) -> None:
        self.found = found

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """A table for each place."""
        folder = printable(str(resolved(self.found.folder)), spaces=False)
        yield Line([Span(plural(len(self.found.entries), "model"), "strong"), ", by the names that --model takes"])
        for place, found in groupby(self.found.entries, lambda entry: entry.place):
            entries = list(found)
            yield Heading(_PLACES[place].format(folder=folder))
            yield Table(
                [
                    Column("model", [Span(printable(e.name, spaces=False), "strong") for e in entries], shrink=24),
                    Column("family", [e.family for e in entries]),
                    Column("layers × heads", [_size(e) for e in entries], "right", drop=1),
                    Column("parameters", [count(e.parameters) if e.parameters else "" for e in entries], "right"),
                    Column("on disk", [in_bytes(e.bytes) if e.bytes else "" for e in entries], "right"),
                    Column("opens", [_opens(e) for e in entries], shrink=12),
                ]
            )
        if all(entry.place in ("built in", "preset") for entry in self.found.entries):
            yield Line([Span(f"no others in {folder}, the cache of the Hugging Face hub, Ollama or LM Studio", "dim")])


def _size(entry: AvailableModel) -> str:
    return f"{entry.config.n_layers} × {entry.config.n_heads}" if entry.config else ""


def _opens(entry: AvailableModel) -> Span:
    return Span("yes", "good") if entry.opens else Span(f"no: {printable(entry.problem, spaces=False)}", "bad")
