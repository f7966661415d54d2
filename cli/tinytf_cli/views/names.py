"""Names with descriptions beside them."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from tinytf_cli.views.blocks import Line, Span

_MAX_INDENT = 18
"""The largest indent of a continued line, for narrow screens."""


def pairs_of(pairs: Sequence[tuple[str, str]]) -> Iterator[Line]:
    """Names in a column with their descriptions beside them, wrapped if long."""
    indent = max((cell_len(name) for name, _ in pairs), default=0) + 2
    for name, about in pairs:
        gap = " " * (indent - cell_len(name))
        heard = f"{name}, {about}{'' if about.endswith('.') else '.'}" if about else name
        yield Line(
            [Span(name, "strong"), Span(f"{gap}{about}")], indent=2, said=heard, hanging=min(indent, _MAX_INDENT)
        )
