"""Whether what was looked for was found, and where first."""

from collections.abc import Iterator, Sequence

from tinytf.trace.faults import Fault
from tinytf_cli.views.blocks import Block, Line, Span


def fault_blocks(kinds: Sequence[str], found: Fault | None) -> Iterator[Block]:
    """The first fault in one line, or that there is none of these ``kinds``; nothing where none was looked for."""
    if not kinds:
        return
    if found is None:
        yield Line([Span("no fault", "good"), Span(f": looked for {', '.join(kinds)} at every step")])
    else:
        yield Line([Span(found.kind, "bad"), Span(f": {found.direction}, first at {found.step}: {found.evidence}")])
