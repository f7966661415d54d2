"""What was recorded of a corpus: a row for each address, and how to read it again."""

from collections.abc import Iterator

from tinytf.bulk.record import CorpusRecording
from tinytf.tables import in_bytes
from tinytf.text.printable import printable
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Line, Span
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import folded, note
from tinytf_cli.views.records import record_table

_STEPS = 20


@draws(CorpusRecording)
def record(report: CorpusRecording, terminal: Terminal, display: Display) -> Iterator[Block]:
    """The addresses with the size of each, then the folder, and a line of Python to open it."""
    yield from banner(model_of(report))
    yield Line("")
    yield from folded(record_table(report.steps), [step.at for step in report.steps], _STEPS, "addresses", "--json")
    folder, at = printable(report.folder, spaces=False), report.steps[0].at
    beside = "ids, documents, positions and sources" if report.sources else "ids, documents and positions"
    shards = f"{plural(report.shards, 'shard')}, {in_bytes(report.bytes)} with {beside}"
    yield note([Span(folder, "strong"), f": {shards}"])
    if report.tokens:
        yield Line([Span("open it with ", "dim"), Span(f"tinytf.recorded({report.folder!r}).at({at!r})")], 2)
