"""Where each pane stands: by the size of the terminal and the panes that are open. Free of drawing."""

from collections.abc import Mapping, Sequence

from textual.geometry import Region

_NARROW, _LOW = 100, 32
"""Below so many columns or rows there are the steps and one pane."""
_TREELESS = 60
"""Below so many columns there are no steps either."""
_WIDE, _HIGH = 130, 40
"""From so many columns right of the steps, and so many rows, panes stand in a column beside the map too."""
_NEXT, _HEADS, _EXTRA, _EACH = 30, 26, 52, 15
"""The columns of the prediction, the least ones of the heads and of another pane, and the least rows of one."""


def arranged(
    width: int, height: int, extras: Sequence[str], usual: Sequence[str], active: str, zoomed: bool
) -> Mapping[str, Region]:
    """The panes in sight, each with its place. ``extras`` are those that are open, the last opened first.

    The ``usual`` ones stand beside the map where there is room for more. ``zoomed``, or where there is little room, the
    ``active`` one has all of it.
    """
    found = {"text": Region(0, 0, width, 1), "status": Region(0, height - 1, width, 1)}
    tree = 0 if width < _TREELESS else 30 if width < _NARROW else 36
    if tree:
        found["steps"] = Region(0, 1, tree, height - 2)
    right = Region(tree, 1, width - tree, max(1, height - 2))
    if zoomed or width < _NARROW or height < _LOW:
        found[active if active in extras or active in ("heads", "next") else "main"] = right
        return found
    if right.width >= _WIDE and height >= _HIGH:
        right, side = right.split_vertical(right.width - max(_EXTRA + 8, right.width * 2 // 5))
        extras = list(dict.fromkeys((*extras, *usual)))
        found |= _stacked(side, extras[: max(1, side.height // _EACH)])
        extras = []
    low = min(16, right.height // 2) if extras else 14
    main, below = right.split_horizontal(right.height - low)
    found["main"] = main
    room = below.width - _NEXT
    shown = list(extras[: max(1, room // _EXTRA)])
    if room - len(shown) * _EXTRA >= _HEADS:
        shown.append("heads")
    at = below.x
    for left, name in zip(range(len(shown), 0, -1), shown, strict=True):
        wide = _HEADS if name == "heads" and len(shown) > 1 else (room - at + below.x) // left
        found[name] = Region(at, below.y, wide, below.height)
        at += wide
    found["next"] = Region(at, below.y, below.right - at, below.height)
    return found


def _stacked(where: Region, names: Sequence[str]) -> dict[str, Region]:
    """Panes one below the other, of about the same height."""
    edges = [where.y + where.height * number // len(names) for number in range(len(names) + 1)]
    return {
        name: Region(where.x, top, where.width, bottom - top)
        for name, top, bottom in zip(names, edges, edges[1:], strict=False)
    }
