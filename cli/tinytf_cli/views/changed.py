"""What a model through transformers predicts before and after a change."""

from collections.abc import Iterator

from tinytf.sentences import first_of
from tinytf.through.changed import Changed
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Figure, Heading, Line
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.predictions import likely_blocks

_NAMED = 6


@draws(Changed)
def changed(report: Changed, terminal: Terminal, display: Display) -> Iterator[Block]:
    """Two predictions, and how far apart they are."""
    yield from banner(model_of(report), report.encoding)
    for title, seen in (("before", report.before), ("after", report.after)):
        note = f"with {report.how}: {first_of(report.modules, _NAMED)}" if title == "after" else f"at {seen.shown}"
        yield Heading(title, note if len(report.modules) > 1 or title == "before" else f"with {report.how}", "output")
        yield from likely_blocks([(likely.shown, likely) for likely in seen.top], digits=True)
    yield Line("")
    yield Line(["KL(before ‖ after) ", Figure(report.divergence, "%.4f", "strong"), " nats"])
