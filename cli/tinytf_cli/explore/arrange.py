"""The arrangement of the panes, by the size of the terminal and the open panes. Free of drawing."""

from collections.abc import Mapping, Sequence

from textual.geometry import Region

_NARROW, _LOW = 100, 32
"""Below so many columns or rows, only the steps and one pane are shown."""
_WITHOUT_STEPS = 60
"""Below so many columns, the steps are hidden too."""
_WIDE, _HIGH = 130, 40
"""From so many columns right of the steps, and so many rows, further panes stand in a column beside the map."""
_NEXT_WIDTH, _HEADS_WIDTH, _EXTRA_WIDTH, _EXTRA_HEIGHT = 30, 26, 52, 15
"""The width of the prediction, the least widths of the heads and of another pane, and the least height of that."""


def arrange_panes(
    width: int, height: int, extras: Sequence[str], usual: Sequence[str], active: str, zoomed: bool
) -> Mapping[str, Region]:
    """The visible panes and their regions. ``extras`` are the open panes, the last opened first.

    The ``usual`` panes stand beside the map if there is room for more. If ``zoomed``, or in a small terminal, the
    ``active`` pane takes all the room.
    """
    regions = {"text": Region(0, 0, width, 1), "status": Region(0, height - 1, width, 1)}
    steps_width = 0 if width < _WITHOUT_STEPS else 30 if width < _NARROW else 36
    if steps_width:
        regions["steps"] = Region(0, 1, steps_width, height - 2)
    right = Region(steps_width, 1, width - steps_width, max(1, height - 2))
    if zoomed or width < _NARROW or height < _LOW:
        regions[active if active in extras or active in ("heads", "next") else "main"] = right
        return regions
    if right.width >= _WIDE and height >= _HIGH:
        right, column = right.split_vertical(right.width - max(_EXTRA_WIDTH + 8, right.width * 2 // 5))
        extras = list(dict.fromkeys((*extras, *usual)))
        regions |= _stack(column, extras[: max(1, column.height // _EXTRA_HEIGHT)])
        extras = []
    lower_height = min(16, right.height // 2) if extras else 14
    main, below = right.split_horizontal(right.height - lower_height)
    regions["main"] = main
    free_width = below.width - _NEXT_WIDTH
    shown = list(extras[: max(1, free_width // _EXTRA_WIDTH)])
    if free_width - len(shown) * _EXTRA_WIDTH >= _HEADS_WIDTH:
        shown.append("heads")
    x = below.x
    for remaining, name in zip(range(len(shown), 0, -1), shown, strict=True):
        pane_width = _HEADS_WIDTH if name == "heads" and len(shown) > 1 else (free_width - x + below.x) // remaining
        regions[name] = Region(x, below.y, pane_width, below.height)
        x += pane_width
    regions["next"] = Region(x, below.y, below.right - x, below.height)
    return regions


def _stack(region: Region, names: Sequence[str]) -> dict[str, Region]:
    """Stack panes in a region, with about equal heights."""
    edges = [region.y + region.height * number // len(names) for number in range(len(names) + 1)]
    return {
        name: Region(region.x, top, region.width, bottom - top)
        for name, top, bottom in zip(names, edges, edges[1:], strict=False)
    }
