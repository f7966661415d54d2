"""The models at hand, a line each."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from tinytf.catalogue import Entry
from tinytf.report import SCHEMA_VERSION
from tinytf.text.printable import printable
from tinytf_cli.numbers import in_bytes
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import count
from tinytf_cli.views.blocks import Block, Column, Heading, Line, Span, Table

_PLACES = {
    "built in": "built in",
    "preset": "presets: architectures with random weights",
    "folder": "in {folder}",
    "hub cache": "in the cache of the Hugging Face hub",
}


class ModelsView:
    """A catalogue, in every form."""

    def __init__(self, entries: Sequence[Entry], folder: Path) -> None:
        self.entries, self.folder = entries, folder

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """A table for each place."""
        for place, found in groupby(self.entries, lambda entry: entry.place):
            entries = list(found)
            yield Heading(_PLACES[place].format(folder=printable(str(self.folder.resolve()), spaces=False)))
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
        if not any(entry.place in ("folder", "hub cache") for entry in self.entries):
            where = printable(str(self.folder.resolve()), spaces=False)
            yield Line([Span(f"no others in {where} or in the cache of the Hugging Face hub", "dim")])

    def data(self) -> dict[str, Any]:
        """The same as one JSON object."""
        return {"schema_version": SCHEMA_VERSION, "kind": "models", "models": [_data(entry) for entry in self.entries]}

    def events(self) -> Iterator[dict[str, Any]]:
        """One event a model."""
        for entry in self.entries:
            yield {"type": "model", **_data(entry)}


def _size(entry: Entry) -> str:
    return f"{entry.config.n_layers} × {entry.config.n_heads}" if entry.config else ""


def _opens(entry: Entry) -> Span:
    return Span(f"no: {printable(entry.problem, spaces=False)}", "bad") if entry.problem else Span("yes", "good")


def _data(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "place": entry.place,
        "family": entry.family,
        "opens": not entry.problem,
        "problem": entry.problem,
        "parameters": entry.parameters,
        "bytes": entry.bytes,
        "config": entry.config.to_dict() if entry.config else None,
    }
