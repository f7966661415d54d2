"""The words, a line each; and what one word means, and where to read on."""

from collections.abc import Iterator

from tinytf.glossary import Glossary, Meanings
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Column, Heading, Line, Span, Table
from tinytf_cli.views.draw import Display, draws
from tinytf_cli.views.pairs import pairs_of


@draws(Glossary)
def words(report: Glossary, terminal: Terminal, display: Display) -> Iterator[Block]:
    """Each word with its meaning."""
    yield from pairs_of([(word.name, word.meaning) for word in report.words])


@draws(Meanings)
def meanings(report: Meanings, terminal: Terminal, display: Display) -> Iterator[Block]:
    """Each meaning of the word, with what there is to add; then the commands to read on with."""
    for word in report.meanings:
        yield Heading(word.name, "" if word.kind == "word" else word.kind, "attention")
        yield Line(word.meaning, indent=2)
        for label, fact in word.more:
            about = [] if label == "more" else [Span(f"{label}  ", "dim")]
            yield Line([*about, Span(fact)], indent=2)
    commands = list(dict.fromkeys(command for word in report.meanings for command in word.read))
    labels = [Span("read on" if not index else "", "dim") for index in range(len(commands))]
    spans = [Span(f"tinytf {command}", "strong") for command in commands]
    yield Line("")
    yield Table([Column("", labels), Column("", spans)], header=False)
