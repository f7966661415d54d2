"""The view of a model's positions: the waves as a picture, some as curves, and how long they are."""

from collections.abc import Iterator

import numpy as np

from tinytf.loading import Model
from tinytf.look.positions import DISTANCES, Positions
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import model_words
from tinytf_cli.views.blocks import Array, Block, Column, Curve, Curves, Figure, Heading, Heat, Line, Table
from tinytf_cli.views.parts import note, share_column, spread, titled, verdict
from tinytf_cli.views.steps import as_array, largest

_ROWS, _WAVES = 20, 6
_ROLES = ("q", "k", "v", "ffn", "output", "attention")


class PositionsView:
    """Positions down and dimensions across; then curves and numbers."""

    def __init__(self, model: Model, found: Positions) -> None:
        self.model, self.found = model, found

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """What the positions are, the picture, some waves, all wavelengths, and the check."""
        found, waves = self.found, self.found.waves
        yield Line(model_words(self.model))
        yield Line("")
        yield titled(f"{found.how} positions", f": {found.formula}")
        if found.how != "learned":
            ends = [_length(wave.wavelength) for wave in (waves[0], waves[-1])]
            yield note(f"{len(waves)} waves, {ends[0]} to {ends[1]} positions long; the context has {found.context:,}")
        yield from self._picture(terminal)
        yield from self._curves()
        yield from self._lengths()
        if found.check is not None:
            yield Line("")
            off = Figure(found.check.difference, "%.1e")
            yield verdict(found.check.holds, [f"{found.check.what}, largest difference ", off])

    def _picture(self, terminal: Terminal) -> Iterator[Block]:
        tables = {name: as_array(table) for name, table in self.found.table.items()}
        room = max(4, (terminal.width - 14) // 2 // len(tables))
        chosen = {name: spread(table.shape[1], room) for name, table in tables.items()}
        rows = spread(len(next(iter(tables.values()))), _ROWS) if "learned" in tables else list(range(_ROWS))
        rows = [row for row in rows if row < len(next(iter(tables.values())))]
        picture: Array = np.concatenate([table[rows][:, chosen[name]] for name, table in tables.items()], axis=1)
        across = " | ".join(f"{name}, {len(chosen[name])} of {table.shape[1]}" for name, table in tables.items())
        order = "" if "learned" in tables else ", the fastest first"
        yield Heading("waves" if order else "table", f"position down; {across}{order}", "embed")
        columns = [f"{self._name(name, place)}" for name, places in chosen.items() for place in places]
        yield Heat(picture, [str(row) for row in rows], columns, "signed", limit=largest(picture) or 1.0)

    def _name(self, table: str, place: int) -> str:
        dimensions = self.found.waves[place].dimensions if self.found.waves else (place,)
        return f"d{dimensions[-1 if table == 'cosines' and self.found.how == 'sinusoidal' else 0]}"

    def _shown(self) -> list[int]:
        """The waves to name: spread over all, or of learned dimensions those with the clearest period."""
        waves = self.found.waves
        if self.found.how == "learned":
            return sorted(range(len(waves)), key=lambda place: -waves[place].share)[:_WAVES]
        return spread(len(waves), _WAVES)

    def _curves(self) -> Iterator[Block]:
        found = self.found
        name, table = next(iter(found.table.items()))
        x = np.arange(len(table))
        curves = [
            Curve(self._name(name, place), x, table[:, place].double().numpy(), role)
            for place, role in zip(self._shown()[:4], _ROLES, strict=False)
        ]
        if curves:
            yield Heading("curves", "some of the waves, along the positions", "embed")
            yield Curves(curves, "position", name, height=9)

    def _lengths(self) -> Iterator[Block]:
        found = self.found
        waves = [found.waves[place] for place in self._shown()]
        measured = found.how == "learned"
        if waves:
            dimensions = [", ".join(f"d{one}" for one in wave.dimensions) for wave in waves]
            columns = [
                Column("dimensions", dimensions),
                Column("radians a position", [Figure(wave.frequency, "%.4g") for wave in waves], "right"),
                Column("wavelength", [_length(wave.wavelength) for wave in waves], "right"),
                Column("turns in the context", [_length(found.context / wave.wavelength) for wave in waves],
                       "right", drop=1),
            ]  # fmt: skip
            if measured:
                shares = [wave.share for wave in waves]
                columns.append(share_column("share of variance", shares, "embed"))
            yield Heading("wavelengths", "in positions" + (", measured; the clearest" if measured else ""), "embed")
            yield Table(columns)
        pairs = zip(DISTANCES, found.similarity, strict=False)
        what = "mean cosine of the angles between" if found.how == "rotary" else "cosine of two positions"
        said = "  ".join(f"{distance}: {cosine:.3f}" for distance, cosine in pairs)
        yield note(f"{what}, by distance")
        yield Line(said, indent=2)


def _length(wavelength: float) -> str:
    return f"{wavelength:,.0f}" if wavelength >= 1000 else f"{wavelength:.3g}"
