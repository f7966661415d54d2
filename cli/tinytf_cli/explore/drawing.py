"""Placing the panes, and drawing those of the view itself: text, steps, numbers, heads and prediction."""

from collections.abc import Mapping, Sequence

from textual.geometry import Region

from tinytf_cli.explore import clicks
from tinytf_cli.explore.clicks import Click
from tinytf_cli.explore.lists import head_list, next_blocks, outline, text_line
from tinytf_cli.explore.maps import map_title, step_map, word_blocks
from tinytf_cli.explore.pane import Pane
from tinytf_cli.explore.scene import Look
from tinytf_cli.views.blocks import Piece, Span
from tinytf_cli.views.parts import shortened

_BANNER_WIDTH = 26
"""The columns right of the text, for the time and the number of the step."""

_RULE, _SHORTEST = 16, 6
"""The columns that the rule around the title of the steps takes, and the fewest of the model's name."""


def text_width(width: int) -> int:
    """The columns of the text, of a screen ``width`` columns wide."""
    return max(20, width - _BANNER_WIDTH)


def place_panes(panes: Mapping[str, Pane], regions: Mapping[str, Region], active: str) -> None:
    """Give the visible panes their regions, with rules that meet; hide the others. ``active`` is the marked pane."""
    beside = (region.x for name, region in regions.items() if name not in ("text", "status", "steps") and region.x)
    left_edge = min(beside, default=0)
    for name, pane in panes.items():
        region = regions.get(name)
        pane.display = region is not None
        if region is None:
            continue
        pane.active = name == active
        top, left = region.y == 1, region.x == left_edge
        corner = "┌" if top and left else "┬" if top or (not left and name == "next") else "├"
        if name in ("text", "status"):
            corner = ""
        elif name in ("steps", "tour") or (name == "next" and not region.x):
            corner = "─"
        pane.place(region, corner)


def draw_panes(look: Look, panes: Mapping[str, Pane], width: int, banner: Sequence[Piece]) -> dict[str, Click]:
    """Draw the view in the visible panes of a screen ``width`` columns wide: what a click on each chooses.

    ``banner`` stands at the right end of the text.
    """
    panes["text"].show([text_line(look, width, _BANNER_WIDTH, banner)])
    on = {"text": clicks.on_text(look, width - _BANNER_WIDTH), "steps": _draw_steps(look, panes["steps"])}
    if panes["main"].display:
        on |= _draw_numbers(look, panes["main"])
    if panes["heads"].display:
        cursors, heads = head_list(look, panes["heads"].room)
        panes["heads"].show(heads, [Span("heads", "attention"), Span(f" by {look.measure} (s)", "dim")])
        on["heads"] = clicks.on_heads(cursors)
    if panes["next"].display:
        first = look.predicted[:1]
        subtitle = f"   after {first[0].shown}" if first and first[0].what == "next" else ""
        title = [Span(first[0].title if len(look.predicted) == 1 else "next", "output"), Span(subtitle, "dim")]
        panes["next"].show(next_blocks(look.scene, look.predicted, panes["next"].room - 1), title)
    return on


def _draw_steps(look: Look, pane: Pane) -> Click:
    """Draw the steps, scrolled to the layer and the present step."""
    rows = look.scene.trace.steps.rows
    lines, steps = outline(look)
    present_line = max((line for line, row in enumerate(lines) if row == look.cursor.row), default=0)
    layer = look.cursor.at(look.scene.trace)[1]
    first_line = next((line for line, row in enumerate(lines) if rows[row][1] == layer), 0)
    column_title = "   moved by" if look.comparing else "   guess" if look.overview else ""
    name = shortened(look.scene.model.name, max(_SHORTEST, pane.extent.width - _RULE - len(column_title)))
    pane.show([steps], [Span(name, "strong"), Span(column_title, "dim")], keep=(first_line, present_line))
    return clicks.on_steps(look, lines)


def _draw_numbers(look: Look, pane: Pane) -> dict[str, Click]:
    """Draw the map of the present step, or its words."""
    drawn = step_map(look, pane.terminal.width, pane.room)
    if drawn is None:
        pane.show(word_blocks(look), map_title(look))
        return {}
    pane.show([drawn.axes, drawn.heat, *drawn.below], drawn.title)
    return {"main": clicks.on_cells(look, drawn, pane.terminal)}
