"""The view of a certificate: the verdict, a line for each check, and how the difference grows from layer to layer."""

import math
from collections.abc import Iterator

from tinytf.certification.certify import Certificate
from tinytf.certification.sides import Check
from tinytf.text.printable import printable
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Column, Line, Span, Table
from tinytf_cli.views.parts import folded, most_rows, note, verdict

_LAYERS = 6
"""The most layers shown, unless all are asked for."""


class CertifyView:
    """A model beside the same one of transformers, drawn."""

    def __init__(self, found: Certificate, rows: int | None) -> None:
        self.found, self.rows = found, rows

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """What was compared, whether it holds, every check, and every layer."""
        found = self.found
        assert found.about is not None
        name = printable(str(found.about.to_dict()["model"]["name"]), spaces=False)
        against = f" · against transformers {found.transformers}, eager, torch {found.torch} · "
        yield Line([Span(name, "strong"), Span(f"{against}{printable(str(found.versus), spaces=False)}", "dim")])
        yield self._verdict()
        yield Line("")
        checks = found.checks
        yield Table(
            [
                Column("check", [one.name for one in checks]),
                Column("dtype", [one.dtype for one in checks], drop=1),
                Column("texts", [f"{one.texts:,}" for one in checks], "right", drop=3),
                Column("tokens", [f"{one.tokens:,}" for one in checks], "right", drop=4),
                Column("worst", [_worst(one) for one in checks], "right"),
                Column("where", [printable(one.where, spaces=False) for one in checks], shrink=16, drop=2),
                Column("allowed", ["0" if not one.tolerance else f"{one.tolerance:.1e}" for one in checks], "right"),
                Column("", [Span("holds", "good") if one.holds else Span("fails", "bad") for one in checks]),
            ]
        )
        yield note("worst: in units of the largest number of its token so far; of ids, the texts that differ")
        for said in found.notes:
            yield note(printable(said, spaces=False))
        yield Line("")
        yield from self._layers()

    def _verdict(self) -> Line:
        found = self.found
        failing = [one for one in found.checks if not one.holds]
        if not failing:
            worst = max((one for one in found.checks if one.tolerance), key=lambda one: one.difference / one.tolerance)
            said = f"{plural(len(found.checks), 'check')} hold; nearest to its limit: {worst.name}"
            return verdict(
                True, f"{said} in {worst.dtype}, {worst.difference:.1e} of {worst.tolerance:.1e}", "certified"
            )
        one = failing[0]
        said = f"{plural(len(failing), 'check')} of {len(found.checks)}, first {one.name}: {_words(one)}"
        return verdict(False, said, bad="not certified")

    def _layers(self) -> Iterator[Block]:
        """The worst difference of each layer, in each dtype."""
        dtypes = list(dict.fromkeys(one.dtype for one in self.found.layers))
        steps = list(dict.fromkeys(one.step for one in self.found.layers))
        apart = {(one.step, one.dtype): one.difference for one in self.found.layers}
        columns = [Column("after", steps)]
        columns += [Column(dtype, [f"{apart[step, dtype]:.1e}" for step in steps], "right") for dtype in dtypes]
        yield from folded(Table(columns), steps, most_rows(self.rows, _LAYERS), "layers")


def _worst(check: Check) -> Span:
    """A difference; of ids, a count."""
    role = "" if check.holds else "bad"
    if not check.dtype:
        return Span(f"{check.difference:,.0f}", role)
    return Span(f"{check.difference:.1e}" if math.isfinite(check.difference) else "nan", role)


def _words(check: Check) -> str:
    """What is wrong at a check that fails."""
    where = printable(check.where, spaces=False)
    if not check.dtype:
        return f"{check.difference:,.0f} of {plural(check.texts, 'text')} have other ids, first {where}"
    return f"{_worst(check).text} at {where}, and {check.tolerance:.1e} is allowed"
