"""The files that an export wrote, and how to open them."""

from collections.abc import Iterator

from tinytf.checkpoints.huggingface.export import Exported
from tinytf.text.printable import printable
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Line, Span
from tinytf_cli.views.draw import Display, draws

_OPENED_BY = {
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "MTModel": "AutoModelForSeq2SeqLM",
}


@draws(Exported)
def export(report: Exported, terminal: Terminal, display: Display) -> Iterator[Block]:
    """One line per file, then a line of Python to open them."""
    name = printable(report.model, spaces=False)
    yield Line([Span(name, "strong"), Span(f" · written as {report.family} ({report.architecture})")])
    for path, size in report.files:
        yield Line([Span(printable(str(path), spaces=False)), Span(f"  {size:,} bytes", "dim")], 2)
    endings = (opener for ending, opener in _OPENED_BY.items() if report.architecture.endswith(ending))
    call = f"transformers.{next(endings, 'AutoModel')}.from_pretrained({str(report.directory)!r})"
    yield Line([Span("open it with ", "dim"), Span(call)])
