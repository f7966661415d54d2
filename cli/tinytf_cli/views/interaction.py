"""The view of late interaction: which token of the document each token of the query found."""

from collections.abc import Iterator
from dataclasses import dataclass

from tinytf.look.interaction import Interaction
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Heading, Heat, Signed, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import fold_note, full_scale, note, row_limit
from tinytf_cli.views.steps import as_array


@dataclass(frozen=True)
class InteractionDisplay(Display):
    """``rows`` is the most tokens of the query in the table: 0 for all, None for as many as suit the terminal."""

    rows: int | None = None


@draws(Interaction, InteractionDisplay)
def interaction(report: Interaction, terminal: Terminal, display: InteractionDisplay) -> Iterator[Block]:
    """The cosines of all pairs of tokens, and the token that each token of the query found."""
    yield from banner(model_of(report), report.encoding)
    first, second = ([token.shown for token in text.tokens] for text in (report.encoding, report.other))
    yield Heading("cosines", "of each token of the query with each of the document", "attention")
    cosines, axes = as_array(report.cosines), "query down, document across"
    yield Heat(cosines, first, second, "signed", limit=1.0, digits=2, axes=axes)
    full = full_scale([find.cosine for find in report.finds])
    yield Heading("finds", f"the most alike token; they add up to {report.score:.3f}; a bar is {full:.2f}", "attention")
    table = Table([Column("query", [find.token for find in report.finds]),
                   Column("finds", [find.found_token for find in report.finds]),
                   Column("at", [f"{find.found:,}" for find in report.finds]),
                   Column("cosine", [Signed(find.cosine, full, "%.3f") for find in report.finds])])  # fmt: skip
    most = min(row_limit(terminal, display.rows, 12) or len(report.finds), len(report.finds))
    yield table.only(range(most))
    yield from fold_note([find.token for find in report.finds], range(most), "tokens", "--all")
    yield note(report.note)
