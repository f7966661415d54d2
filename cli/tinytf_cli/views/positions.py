"""A model's positions: the waves as a picture, some as curves, and their wavelengths."""

from collections.abc import Iterator

import numpy as np

from tinytf.look.positions import DISTANCES, Positions
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import model_words
from tinytf_cli.views.blocks import Array, Block, Column, Curve, Curves, Figure, Heading, Heat, Line, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import note, share_column, spread, titled, verdict
from tinytf_cli.views.steps import as_array, largest

_POSITIONS, _WAVES = 20, 6
_ROLES = ("q", "k", "v", "ffn", "output", "attention")


@draws(Positions)
def positions(report: Positions, terminal: Terminal, display: Display) -> Iterator[Block]:
    """The kind of positions, the picture, some curves, the wavelengths, and the check."""
    waves = report.waves
    yield Line(model_words(model_of(report)), lead=True)
    yield Line("")
    yield titled(f"{report.how} positions", f": {report.formula}")
    if report.how != "learned":
        ends = [_length(wave.wavelength) for wave in (waves[0], waves[-1])]
        yield note(f"{len(waves)} waves, {ends[0]} to {ends[1]} positions long; the context has {report.context:,}")
    yield from _picture(report, terminal.width)
    yield from _curves(report)
    yield from _lengths(report)
    if report.check is not None:
        yield Line("")
        off = Figure(report.check.difference, "%.1e")
        yield verdict(report.check.holds, [f"{report.check.what}, largest difference ", off])


def _picture(report: Positions, width: int) -> Iterator[Block]:
    """The tables side by side: positions down, and as many dimensions across as fit in ``width``."""
    tables = {name: as_array(table) for name, table in report.table.items()}
    room = max(4, (width - 14) // 2 // len(tables))
    chosen = {name: spread(table.shape[1], room) for name, table in tables.items()}
    count = len(next(iter(tables.values())))
    rows = spread(count, _POSITIONS) if "learned" in tables else list(range(min(count, _POSITIONS)))
    picture: Array = np.concatenate([table[rows][:, chosen[name]] for name, table in tables.items()], axis=1)
    across = " | ".join(f"{name}, {len(chosen[name])} of {table.shape[1]}" for name, table in tables.items())
    order = "" if "learned" in tables else ", the fastest first"
    yield Heading("waves" if order else "table", f"position down; {across}{order}", "embed")
    columns = [_name(report, name, index) for name, indices in chosen.items() for index in indices]
    yield Heat(picture, [str(row) for row in rows], columns, "signed", limit=largest(picture) or 1.0)


def _name(report: Positions, table: str, index: int) -> str:
    """The dimension shown in a column of a table, such as ``d3``."""
    dimensions = report.waves[index].dimensions if report.waves else (index,)
    return f"d{dimensions[-1 if table == 'cosines' and report.how == 'sinusoidal' else 0]}"


def _shown(report: Positions) -> list[int]:
    """The waves to show: spread over all, or the learned dimensions with the clearest period."""
    waves = report.waves
    if report.how == "learned":
        return sorted(range(len(waves)), key=lambda index: -waves[index].share)[:_WAVES]
    return spread(len(waves), _WAVES)


def _curves(report: Positions) -> Iterator[Block]:
    name, table = next(iter(report.table.items()))
    x = np.arange(len(table))
    curves = [
        Curve(_name(report, name, index), x, table[:, index].double().numpy(), role)
        for index, role in zip(_shown(report)[:4], _ROLES, strict=False)
    ]
    if curves:
        yield Heading("curves", "some of the waves, along the positions", "embed")
        yield Curves(curves, "position", name, height=9)


def _lengths(report: Positions) -> Iterator[Block]:
    """The wavelengths of the shown waves, then the similarity of positions by distance."""
    waves = [report.waves[index] for index in _shown(report)]
    measured = report.how == "learned"
    if waves:
        dimensions = [", ".join(f"d{dimension}" for dimension in wave.dimensions) for wave in waves]
        turns = [_length(report.context / wave.wavelength) for wave in waves]
        columns = [
            Column("dimensions", dimensions),
            Column("radians a position", [Figure(wave.frequency, "%.4g") for wave in waves], "right"),
            Column("wavelength", [_length(wave.wavelength) for wave in waves], "right"),
            Column("turns in the context", turns, "right", drop=1),
        ]
        if measured:
            columns.append(share_column("share of variance", [wave.share for wave in waves], "embed"))
        yield Heading("wavelengths", "in positions" + (", measured; the clearest" if measured else ""), "embed")
        yield Table(columns)
    measure = "mean cosine of the angles between" if report.how == "rotary" else "cosine of two positions"
    yield note(f"{measure}, by distance")
    pairs = zip(DISTANCES, report.similarity, strict=False)
    yield Line("  ".join(f"{distance}: {cosine:.3f}" for distance, cosine in pairs), indent=2)


def _length(wavelength: float) -> str:
    return f"{wavelength:,.0f}" if wavelength >= 1000 else f"{wavelength:.3g}"
