"""Several reports of one command as one report, for JSON and for files."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tinytf.report import SCHEMA_VERSION, Report
from tinytf.tables import Array, Sheet, joined
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Line
from tinytf_cli.views.draw import Display, Shown, draws


@dataclass(frozen=True, kw_only=True)
class Joined(Report):
    """Several reports. ``kind`` is their plural, and the key of their list in JSON.

    ``parts`` may be an iterator, which one writing takes up; a file of tensors reads them twice.
    """

    KIND: ClassVar = "joined"

    kind: str
    parts: Iterable[Shown]

    @property
    def reports(self) -> Iterator[Report]:
        return (part.report for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        data = self.streamed()
        return {**data, self.kind: list(data[self.kind])}

    def streamed(self) -> dict[str, Any]:
        reports = (report.to_dict() for report in self.reports)
        return {"schema_version": SCHEMA_VERSION, "kind": self.kind, self.kind: reports}

    def events(self) -> Iterator[dict[str, Any]]:
        """The events of each report, with its number."""
        for number, report in enumerate(self.reports):
            for event in report.events():
                yield {"type": event["type"], "result": number, **event}

    def stored(self) -> list[Array]:
        """The tensors of each report; names are prefixed with its number."""
        return [
            replace(array, name=f"{number}/{array.name}")
            for number, report in enumerate(self.reports)
            for array in report.stored()
        ]

    def metadata(self) -> dict[str, Any]:
        return {"kind": self.kind, self.kind: [report.metadata() for report in self.reports]}

    def sheet(self, *, long: bool = False) -> Sheet | None:
        return joined(sheet for report in self.reports if (sheet := report.sheet(long=True)))


@draws(Joined)
def join(report: Joined, terminal: Terminal, display: Display) -> Iterator[Block]:
    """Each report as drawn alone, with an empty line between reports."""
    for number, part in enumerate(report.parts):
        if number:
            yield Line("")
        yield from part.blocks(terminal)
