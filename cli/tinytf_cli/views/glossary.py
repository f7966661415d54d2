"""The words by kind, a line each; and what one word means, and where to read on."""

from collections.abc import Iterator

from tinytf.glossary import OTHER_STEP, WAY, Glossary, Meanings
from tinytf_cli.host import host
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Column, Heading, Line, Span, Table
from tinytf_cli.views.draw import Display, draws
from tinytf_cli.views.names import pairs_of

_TITLES = {
    "word": "words of the field",
    "parameter": "learned matrices of the model",
    "head": "kinds of heads",
    "lesson": "lessons",
    "step": "steps of the model",
}


@draws(Glossary)
def words(report: Glossary, terminal: Terminal, display: Display) -> Iterator[Block]:
    """Each word with its meaning, by kind; the steps of other models by name alone."""
    for kind, title in _TITLES.items():
        pairs = [(word.name, word.meaning) for word in report.words if word.kind == kind]
        if pairs:
            yield Heading(title)
            yield from pairs_of(pairs)
    yield Heading("steps of other models", "tinytf help STEP says what one is")
    yield Line(", ".join(word.name for word in report.words if word.kind == OTHER_STEP), indent=2)


@draws(Meanings)
def meanings(report: Meanings, terminal: Terminal, display: Display) -> Iterator[Block]:
    """Each meaning of the word: a sentence, formula, shape, and what there is to add; then commands that show it."""
    if report.meanings[0].kind == WAY:
        for word in report.meanings:
            yield Line(Span(word.name, "strong"), single=True)
            yield Line(word.meaning, indent=4, hanging=0)
        return
    for word in report.meanings:
        yield Heading(word.name, "" if word.kind == "word" else word.kind, "attention")
        yield Line(word.meaning, indent=2, hanging=0)
        indent = max((len(label) for label, _ in word.more if label != "more"), default=0) + 2
        for before, (label, fact) in zip((("", ""), *word.more), word.more, strict=False):
            about = [] if label == "more" else [Span(("" if label == before[0] else label).ljust(indent), "dim")]
            yield Line([*about, Span(fact)], indent=2, hanging=indent if about else 0)
    commands = list(dict.fromkeys(command for word in report.meanings for command in word.read))
    labels = [Span("see it" if not index else "", "dim") for index in range(len(commands))]
    program = "" if host() else "tinytf "
    spans = [Span(f"{program}{command}", "strong") for command in commands]
    yield Line("")
    yield Table([Column("", labels), Column("", spans)], header=False)
