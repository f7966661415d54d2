"""The arrangement of the panes, by the size of the terminal and the open panes. Free of drawing."""

from collections.abc import Mapping, Sequence

from textual.geometry import Region

_NARROW, _LOW = 100, 32
"""Below so many columns or rows, only the steps, the prediction and one pane are shown."""
_WITHOUT_STEPS = 60
"""Below so many columns, only that pane and the prediction below it."""
_WIDE, _HIGH = 130, 40
"""From so many columns right of the steps, and so many rows, further panes stand in a column beside the map."""
_NEXT_WIDTH, _HEADS_WIDTH, _EXTRA_WIDTH, _EXTRA_HEIGHT = 30, 26, 52, 20
"""The width of the prediction, the least widths of the heads and of another pane, and the least height of that."""


def is_single(width: int, height: int, zoomed: bool) -> bool:
    """Whether only the active pane is shown, beside the steps and the prediction."""
    return zoomed or width < _NARROW or height < _LOW


def arrange_panes(
    width: int, height: int, extras: Sequence[str], usual: Sequence[str], active: str, zoomed: bool
) -> Mapping[str, Region]:
    """The visible panes and their regions. ``extras`` are the open panes, the last opened first.

    The ``usual`` panes stand beside the map if there is room for more; then, and if there is one pane only, the
    prediction is below the steps, or below that pane where there are none. If ``zoomed``, or in a small terminal, the
    ``active`` pane takes all the other room.
    """
    regions = {"text": Region(0, 0, width, 1), "status": Region(0, height - 1, width, 1)}
    steps_width = 0 if width < _WITHOUT_STEPS else 30 if width < _NARROW else 36
    steps = Region(0, 1, steps_width, height - 2)
    right = Region(steps_width, 1, width - steps_width, max(1, height - 2))
    single = is_single(width, height, zoomed)
    shown = active if active in extras or active in ("heads", "next") else "main"
    wide = not single and right.width >= _WIDE and height >= _HIGH
    if steps_width:
        if wide or (single and shown != "next"):
            steps, regions["next"] = steps.split_horizontal(steps.height - max(1, steps.height // 3))
        regions["steps"] = steps
    elif shown != "next" and (lines := right.height // 4):
        right, regions["next"] = right.split_horizontal(right.height - lines)
    if single:
        regions[shown] = right
        return regions
    lower_height = min(16, right.height // 2) if extras else 14
    if wide:
        right, column = right.split_vertical(right.width - max(_EXTRA_WIDTH + 8, right.width * 2 // 5))
        below = int(right.width >= _HEADS_WIDTH + _EXTRA_WIDTH)
        visible = list(dict.fromkeys((*extras, *usual)))[: below + max(1, column.height // _EXTRA_HEIGHT)]
        visible.sort(key=lambda name: usual.index(name) if name in usual else len(usual))  # the usual stay in place
        regions |= _stack(column, visible[below:])
        extras = visible[:below]
        lower_height = min(_EXTRA_HEIGHT, right.height * 2 // 5)
    main, below_main = right.split_horizontal(right.height - lower_height)
    regions["main"] = main
    free_width = below_main.width - (0 if wide else _NEXT_WIDTH)
    shown_below = list(extras[: max(1, free_width // _EXTRA_WIDTH)])
    if free_width - len(shown_below) * _EXTRA_WIDTH >= _HEADS_WIDTH:
        shown_below.insert(0 if wide else len(shown_below), "heads")
    x = below_main.x
    for remaining, name in zip(range(len(shown_below), 0, -1), shown_below, strict=True):
        is_narrow = name == "heads" and len(shown_below) > 1
        pane_width = _HEADS_WIDTH if is_narrow else (free_width - x + below_main.x) // remaining
        regions[name] = Region(x, below_main.y, pane_width, below_main.height)
        x += pane_width
    if not wide:
        regions["next"] = Region(x, below_main.y, below_main.right - x, below_main.height)
    return regions


def _stack(region: Region, names: Sequence[str]) -> dict[str, Region]:
    """Stack panes in a region, with about equal heights."""
    edges = [region.y + region.height * number // len(names) for number in range(len(names) + 1)]
    return {
        name: Region(region.x, top, region.width, bottom - top)
        for name, top, bottom in zip(names, edges, edges[1:], strict=False)
    }
