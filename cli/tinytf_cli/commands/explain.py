"""``tinytf explain``: the arithmetic behind one number."""

from dataclasses import dataclass

import click

from tinytf_cli.options import Opening, Texts, asks, option, output_options, traced_texts
from tinytf_cli.output import Output


@dataclass(frozen=True)
class Asked:
    """The options of this command alone."""

    depth: int = option(
        type=click.IntRange(1), shown=1, help="Steps explained: this one, then those of its largest term, and so on."
    )
    top: int = option(type=click.IntRange(1), shown=8, help="Terms shown; the rest is summed.")
    temperature: float = option(
        type=click.FloatRange(0, min_open=True), shown=1.0, help="What the logits are divided by, for a cell of probs."
    )


@click.command("explain")
@click.argument("address")
@traced_texts
@asks(Asked)
@output_options
def command(address: str, texts: Texts, opening: Opening, force: bool, asked: Asked, output: Output) -> int:
    """Show the arithmetic behind the number at ADDRESS in TEXT, and prove it.

    An ADDRESS is one cell of one step: 'L0H0.scores[The,cat]', 'L1.ffn[sat,17]', 'logits[sat,·on]'.
    """
    from tinytf_cli.joining import show_views
    from tinytf_cli.views.explain import ExplainView

    model = opening.open()

    def view_of(text: str) -> ExplainView:
        trace = model.trace(text, truncate=texts.truncate, force=force)
        found = model.explain(trace, address, depth=asked.depth, top=asked.top, temperature=asked.temperature)
        return ExplainView(model, found)

    return show_views(output, map(view_of, texts), "explanations", texts.lines)
