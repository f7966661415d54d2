"""The models at hand, a line each."""

from collections.abc import Iterator
from itertools import groupby

from tinytf.catalogue import AvailableModel, Catalogue
from tinytf.files import resolved
from tinytf.text.printable import printable
from tinytf_cli.numbers import count, in_bytes, plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Column, Heading, Line, Span, Table
from tinytf_cli.views.draw import Display, draws

_PLACES = {
    "built in": "built in",
    "preset": "presets: architectures with random weights",
    "folder": "in {folder}",
    "hub cache": "in the cache of the Hugging Face hub",
    "Ollama": "of Ollama",
    "LM Studio": "of LM Studio",
}


@draws(Catalogue)
def models(report: Catalogue, terminal: Terminal, display: Display) -> Iterator[Block]:
    """The number of models, then a table for each place where there are any."""
    folder = printable(str(resolved(report.folder)), spaces=False)
    yield Line([Span(plural(len(report.entries), "model"), "strong"), ", by the names that --model takes"])
    for place, group in groupby(report.entries, lambda entry: entry.place):
        entries = list(group)
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
    if all(entry.place in ("built in", "preset") for entry in report.entries):
        yield Line([Span(f"no others in {folder}, the cache of the Hugging Face hub, Ollama or LM Studio", "dim")])


def _size(entry: AvailableModel) -> str:
    return f"{entry.config.n_layers} × {entry.config.n_heads}" if entry.config else ""


def _opens(entry: AvailableModel) -> Span:
    return Span("yes", "good") if entry.opens else Span(f"no: {printable(entry.problem, spaces=False)}", "bad")
