"""What an export wrote, and how to open it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tinytf.checkpoints.huggingface.export import Exported
from tinytf.loading import Model
from tinytf.report import SCHEMA_VERSION
from tinytf.text.printable import printable
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Line, Span

_OPENED_BY = {
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForMaskedLM": "AutoModelForMaskedLM",
}


class ExportView:
    """The files that were written, in every form."""

    def __init__(self, model: Model, exported: Exported, directory: Path) -> None:
        self.model, self.exported, self.directory = model, exported, directory
        endings = (opener for ending, opener in _OPENED_BY.items() if exported.architecture.endswith(ending))
        self.opener = next(endings, "AutoModel")

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """One line a file, then the line of Python that opens them."""
        name = printable(self.model.name, spaces=False)
        yield Line([Span(name, "strong"), Span(f" · written as {self.exported.family} ({self.exported.architecture})")])
        for file in self.exported.files:
            yield Line([Span(printable(str(file), spaces=False)), Span(f"  {file.stat().st_size:,} bytes", "dim")], 2)
        yield Line(
            [Span("open it with ", "dim"), Span(f"transformers.{self.opener}.from_pretrained({str(self.directory)!r})")]
        )

    def data(self) -> dict[str, Any]:
        """The same as one JSON object."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "export",
            "model": self.model.name,
            "family": self.exported.family,
            "architecture": self.exported.architecture,
            "files": [{"path": str(file), "bytes": file.stat().st_size} for file in self.exported.files],
        }

    def events(self) -> Iterator[dict[str, Any]]:
        """One event: there is nothing that comes bit by bit."""
        data = self.data()
        yield {"type": data.pop("kind"), **data}
