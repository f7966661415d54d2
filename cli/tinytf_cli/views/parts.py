"""Blocks that many views share: a note, a verdict, bars on both sides of 0, a map of every head."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from rich.cells import cell_len, set_cell_size

from tinytf.sentences import NOT_FINITE, first_of
from tinytf_cli.numbers import number
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import (
    ABOVE,
    BELOW,
    Array,
    Bar,
    Bars,
    Block,
    Cell,
    Column,
    Figure,
    Grid,
    Heat,
    Line,
    Meter,
    Piece,
    Signed,
    Span,
    Table,
    Values,
    Words,
)

if TYPE_CHECKING:
    from tinytf.estimate import Estimate
    from tinytf.loading import Model

DIMS = 8
"""The numbers of a row that are shown where no other number is asked for."""
SCREEN = 16
"""The rows of a table that are shown on a screen."""
WHOLE = 1000
"""The most numbers of a tensor that is shown whole where its address was asked for, as in numpy."""
LONG_STACK = 12
"""A stack of more layers is folded, or drawn small, unless all are asked for."""


BLANK = "______"
"""Room for a number that a reader is to work out."""
BY_HAND = 10
"""The most rows and columns of a matrix that is worked out by hand, or set on a page."""


def _pieces(words: Words) -> Sequence[Piece]:
    return [words] if isinstance(words, str | Span) else words


def note(words: Words, advice: str = "") -> Line:
    """A dim line about the numbers above or below, and which options of the command line show more."""
    pieces = [Span(piece, "dim") if isinstance(piece, str) else replace(piece, role="dim") for piece in _pieces(words)]
    return Line([*pieces, *([Span(f"; {advice}" if words else advice, "advice")] if advice else [])], indent=2)


def titled(title: str, words: Words, role: str = "strong") -> Line:
    """A line that begins with its coloured subject."""
    return Line([Span(title, role), *_pieces(words)])


def verdict(holds: bool, words: Words, good: str = "checked", bad: str = "check failed", indent: int = 0) -> Line:
    """The outcome of a check in one line."""
    return Line([Span(good, "good") if holds else Span(bad, "bad"), ": ", *_pieces(words)], indent, sound=holds)


def not_finite(step: str, also: str = "") -> Line:
    """A failed check: the first step where a number is NaN or ∞."""
    return verdict(False, f"first at {step}, where not every number is finite{also}")


def apart(difference: float, form: str = "%.1e", role: str = "") -> Figure | Span:
    """A difference, in words where it is not finite."""
    return Figure(difference, form, role) if math.isfinite(difference) else Span(NOT_FINITE, "bad")


def shortened(name: str, most: int) -> str:
    """A name cut to at most ``most`` columns."""
    return name if cell_len(name) <= most else f"{set_cell_size(name, most - 1).rstrip()}…"


def row_limit(terminal: Terminal, requested: int | None, screen: int = SCREEN) -> int | None:
    """The most rows of a table: the requested number (0: all), else what suits a screen; None for all."""
    return (requested if requested is not None else screen if terminal.cuts else 0) or None


@dataclass(frozen=True)
class Extent:
    """How much of a tensor is shown: ``dims`` numbers of a row and ``rows`` rows; 0 for all, None for what suits it.

    A tensor of at most ``WHOLE`` numbers is whole where its address was ``asked`` for; others are folded, and more on a
    ``screen``.
    """

    dims: int | None = None
    rows: int | None = None
    screen: bool = False

    def whole(self, values: Array, asked: bool = True) -> bool:
        """Whether all numbers of each row are shown, at any width."""
        return self.dims == 0 or (asked and self.dims is None and values.size <= WHOLE)

    def first(self, values: Array, asked: bool = True) -> int:
        """How many numbers of each row are shown."""
        width: int = values.shape[-1]
        return width if self.whole(values, asked) else min(width, self.dims or DIMS)

    def most(self, values: Array, asked: bool = True) -> int | None:
        """The most rows that are shown; None for all."""
        if self.rows is not None:
            return self.rows or None
        return SCREEN if self.screen and not self.whole(values, asked) else None


def most_rows(requested: int | None, usual: int) -> int | None:
    """The most rows of a table that is folded in a pipe too: the requested number (0: all), else ``usual``."""
    return (usual if requested is None else requested) or None


def middle_out(count: int, most: int | None) -> list[int]:
    """The indices of at most ``most`` of ``count`` rows, half from the start and half from the end.

    A single row is not folded, since the note about it would take its line.
    """
    if most is None or count <= most + 1:
        return list(range(count))
    return [*range(most - most // 2), *range(count - most // 2, count)]


def spread(count: int, most: int) -> list[int]:
    """The indices of at most ``most`` of ``count`` rows, evenly spaced from the first to the last."""
    most = min(count, most)
    return [round(i * (count - 1) / max(1, most - 1)) for i in range(most)]


def folded(
    block: Table | Heat | Grid | Bars | Values,
    names: Sequence[object],
    most: int | None,
    noun: str,
    remedy: str = "--all",
) -> Iterator[Block]:
    """A block with one row per name, cut to at most ``most`` rows; a note names the rows left out."""
    keep = middle_out(len(names), most)
    yield block.only(keep)
    yield from fold_note(names, keep, noun, remedy)


def fold_note(names: Sequence[object], keep: Sequence[int], noun: str, remedy: str = "--rows 0") -> Iterator[Block]:
    """A note on the rows that are left out, if any: from which to which, where they are one after the other."""
    first, count = (
        next((row for row, index in enumerate(keep) if index != row), len(keep)),
        len(names) - len(keep),
    )
    if count:
        one_run = first + count == len(names) or first + count in keep
        ends = f", {names[first]} to {names[first + count - 1]}" if one_run else ""
        yield note(f"folded: {count:,} of {len(names):,} {noun}{ends}", f"{remedy} shows them")


def coloured_text(names: Sequence[str], roles: Sequence[str], most: int | None = 48, gap: str = "") -> Line:
    """A text token by token, each in its colour; in a long text a count replaces the middle."""
    keep = middle_out(len(names), most)
    words: list[Span] = []
    for previous, token in zip([-1, *keep], keep, strict=False):
        if token != previous + 1:
            words.append(Span(f" … {token - previous - 1:,} tokens … ", "dim"))
        words += [Span(names[token], roles[token]), Span(gap)]
    return Line(words, indent=2)


def opening_of(model: "Model") -> tuple[str, ...]:
    """The options by which a command opens a model in the same way: those that are not the defaults."""
    from tinytf.loading import pick_device

    weight = next(model.transformer.parameters())
    dtype, place = str(weight.dtype).removeprefix("torch."), model.source if os.sep in model.source else model.name
    options = {
        "-m": place if place != "tiny" else "",
        "--dtype": dtype if dtype != "float32" else "",
        "--device": weight.device.type if weight.device.type != pick_device("auto").type else "",
    }
    return tuple(word for name, value in options.items() if value for word in (name, value))


def next_lines(terminal: Terminal, *lines: tuple[str, str]) -> Iterator[Block]:
    """Command lines to type next, each with what it shows if there is room."""
    if not terminal.advises:
        return
    width = max(len(command) for command, _ in lines)
    fits = width + 6 + max(len(purpose) for _, purpose in lines) <= terminal.width
    for command, purpose in lines:
        explanation = [Span(f"   {purpose}", "dim")] if fits or terminal.plain else []
        yield Line([Span(f"  {command.ljust(width)}"), *explanation], single=not terminal.cuts)


def full_scale(values: Iterable[float]) -> float:
    """The value of a whole bar: the largest finite magnitude, or 1 if all are 0."""
    return max((abs(value) for value in values if math.isfinite(value)), default=0.0) or 1.0


def side(value: float) -> str:
    """The role of a number above or below 0."""
    return BELOW if value < 0 else ABOVE


def signed(value: float | None, form: str = "%+.3f") -> str:
    """A number with its sign; empty for None."""
    return "" if value is None else number(value, form)


def bar_column(
    title: str, shares: Sequence[float], shown: Sequence[str | Figure], role: str, said: str | None = None
) -> Column:
    """Numbers, each with its share of 1 as a bar."""
    return Column(title, [Meter(share, text, role) for share, text in zip(shares, shown, strict=True)], said=said)


def size_column(
    title: str, sizes: Sequence[float], role: str, form: str = "", full: float | None = None, said: str | None = None
) -> Column:
    """Sizes in one notation, each with a bar, whole at ``full`` or at the largest."""
    whole, form = full_scale(sizes) if full is None else full, form or one_form(sizes)
    return bar_column(title, [size / whole for size in sizes], [Figure(size, form) for size in sizes], role, said)


def share_column(
    title: str, shares: Sequence[float], role: str, said: str | None = None, like: Sequence[float] = ()
) -> Column:
    """Shares of 1, each with its bar, in one notation: three digits after the point, as many as the smallest needs.

    Below one in a million all are in powers of ten. The digits suit the shares in ``like`` too.
    """
    least = min((share for share in (*shares, *like) if share > 0), default=1.0)
    digits = max(3, -math.floor(math.log10(least)))
    return size_column(title, shares, role, f"%.{digits}f" if digits <= 6 else "%.1e", 1.0, said)


def signed_bars(title: str, values: Sequence[float], form: str = "%+.3f", full: float | None = None) -> Column:
    """Numbers, each with a bar on its own side of 0, whole at ``full`` or at the largest."""
    full = full_scale(values) if full is None else full
    return Column(title, [Signed(value, full, shown_in(form, full)) for value in values])


def shown_in(form: str, largest: float) -> str:
    """A printf format, or powers of ten where the ``largest`` of the figures has fewer than two digits in it."""
    is_small = form.endswith("f") and 0 < abs(largest) < 10 ** (1 - int(form[-2]))
    return f"{form.split('.')[0]}.1e" if is_small else form


def one_form(values: Iterable[float | None], sign: bool = False) -> str:
    """One printf format for figures of any size: two digits or more of each, in powers of ten if need be."""
    sizes = [abs(value) for value in values if value and math.isfinite(value)]
    digits = max(2 - math.floor(math.log10(max(sizes))), 1 - math.floor(math.log10(min(sizes))), 0) if sizes else 0
    return f"%{'+' * sign}.{digits}f" if digits <= 5 and max(sizes, default=0) < 1e5 else f"%{'+' * sign}.1e"


def figures(values: Sequence[float | None], sign: bool = False) -> list[Cell]:
    """Cells with figures of any size in one notation; None is an empty cell."""
    form = one_form(values, sign)
    return ["" if value is None else Figure(value, form) for value in values]


def interval(mean: "Estimate | None", form: str) -> Cell:
    """The bootstrap interval of a mean; empty where there is none."""
    if mean is None or mean.low is None or mean.high is None:
        return ""
    return [Figure(mean.low, form), " … ", Figure(mean.high, form)]


def end_bars(ends: Iterable[tuple[str, Iterable[tuple[int, float]]]], shown: Callable[[int], object]) -> Bars:
    """A bar for each token at either end of a direction, after the word of that end."""
    tokens = [(f"{word} {shown(token)}", value) for word, end in ends for token, value in end]
    values = [value for _, value in tokens]
    form = one_form(values, sign=True)
    return Bars([Bar(label, value, Figure(value, form)) for label, value in tokens], full_scale(values), signed=True)


def numbered(sign: str, count: int) -> list[str]:
    """``L0``, ``L1`` …"""
    return [f"{sign}{number}" for number in range(count)]


NO_NUMBER = "no number"
"""The text of a map cell without a layer, head or measure."""


def map_digits(most: float) -> int:
    """Digits after the point of a map: two, or as many as show two figures of its largest number."""
    return 2 if not most or most >= 0.1 else min(9, 1 - math.floor(math.log10(most)))


def stopped(
    interrupted: bool, done: int, of: int, noun: str, rest: str = "; --resume FILE keeps what is measured"
) -> Iterator[Block]:
    """A note if Ctrl-C ended a measurement, with the ``rest`` of its sentence."""
    if interrupted:
        yield note(f"stopped after {done:,} of {of:,} {noun}{rest}")


def uneven(lines: Sequence[int], of: str = "") -> Iterator[Block]:
    """A note about pairs, ``of`` a file, that were left out: their lines."""
    if lines:
        named = first_of([f"{line:,}" for line in lines], 8)
        texts = f"{'its' if len(lines) == 1 else 'their'} texts have different numbers of tokens, or the same"
        yield note(f"left out line{'s' * (len(lines) > 1)} {named}{of}, as {texts}")


def head_map(
    values: Array, scale: str, limit: float, digits: int | None = None, whole: bool = False
) -> Iterator[Block]:
    """A number for every head: layers down, heads across. A long stack, unless ``whole``, is a small map of all.

    NaN marks a head that a layer lacks, or that has no such number.
    """
    visible = ~np.isnan(values) if np.isnan(values).any() else None
    if whole or len(values) <= LONG_STACK:
        rows, columns = numbered("L", len(values)), numbered("H", values.shape[1])
        yield Heat(values, rows, columns, scale, visible, limit, asked=True, digits=digits, hidden=NO_NUMBER)
        return
    seen = None if visible is None else visible.T
    rows, columns = numbered("H", values.shape[1]), numbered("L", len(values))
    yield Heat(values.T, rows, columns, scale, seen, limit, most=LONG_STACK, hidden=NO_NUMBER)
    yield note(f"heads down, layers 0 to {len(values) - 1} across", "--all shows numbers")
