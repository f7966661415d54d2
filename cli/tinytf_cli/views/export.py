"""What an export wrote, and how to open it."""

from collections.abc import Iterator

from tinytf.checkpoints.huggingface.export import Exported
from tinytf.text.printable import printable
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Line, Span

_OPENED_BY = {
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForMaskedLM": "AutoModelForMaskedLM",
}


class ExportView:
    """The files that were written, drawn."""

    def __init__(self, found: Exported) -> None:
        self.found = found

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """One line per file, then the line of Python that opens them."""
        found = self.found
        name = printable(found.model, spaces=False)
        yield Line([Span(name, "strong"), Span(f" · written as {found.family} ({found.architecture})")])
        for path, size in found.files:
            yield Line([Span(printable(str(path), spaces=False)), Span(f"  {size:,} bytes", "dim")], 2)
        endings = (opener for ending, opener in _OPENED_BY.items() if found.architecture.endswith(ending))
        call = f"transformers.{next(endings, 'AutoModel')}.from_pretrained({str(found.directory)!r})"
        yield Line([Span("open it with ", "dim"), Span(call)])
