"""The available models, one per line."""

from collections.abc import Iterator
from itertools import groupby

from tinytf.files import resolve_links
from tinytf.models import Catalogue
from tinytf.text.printable import printable
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Heading, Line, Span
from tinytf_cli.views.draw import Display, draws
from tinytf_cli.views.records import record_table

_LOCATIONS = {
    "built in": "built in",
    "preset": "presets: architectures with random weights",
    "folder": "in {folder}",
    "hub cache": "in the cache of the Hugging Face hub",
    "Ollama": "of Ollama",
    "LM Studio": "of LM Studio",
}


@draws(Catalogue)
def models(report: Catalogue, terminal: Terminal, display: Display) -> Iterator[Block]:
    """The number of models, then a table for each location that has any."""
    folder = printable(str(resolve_links(report.folder)), spaces=False)
    yield Line([Span(plural(len(report.entries), "model"), "strong"), ", by the names that --model takes"])
    for location, group in groupby(report.entries, lambda entry: entry.place):
        entries = list(group)
        yield Heading(_LOCATIONS[location].format(folder=folder))
        yield record_table(entries)
    if all(entry.place in ("built in", "preset") for entry in report.entries):
        yield Line([Span(f"no others in {folder}, the cache of the Hugging Face hub, Ollama or LM Studio", "dim")])
