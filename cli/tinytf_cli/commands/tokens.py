"""``tinytf tokens``: how a text becomes tokens."""

import click

from tinytf_cli.host import given, host
from tinytf_cli.options import Texts, output_options, text_options
from tinytf_cli.output import Output


@click.command("tokens")
@text_options
@click.option("--model", "-m", default="tiny", show_default=True, metavar="MODEL", help="Whose tokenizer.")
@output_options
def command(texts: Texts, model: str, output: Output) -> None:
    """Show the pieces, ids, offsets and bytes of TEXT, and what the tokenizer added."""
    from tinytf.analysis.tokens import Tokens
    from tinytf.errors import UsageError
    from tinytf.sources import find_source
    from tinytf_cli.joining import show_views
    from tinytf_cli.views.tokens import TokensView

    lender = host()
    if lender is not None and not given("model"):
        name, context = lender.model.name, lender.model.config.context
        tokenizer, note = lender.model.tokenizer, lender.model.tokenizer_note
    else:
        source = find_source(model)
        name, context = source.name, source.config().context
        tokenizer, note = source.vocabulary().tokenizer, source.vocabulary().note
    views = []
    for text in texts:
        if not text:
            raise UsageError("the text is empty", "give a few characters, such as: The cat sat")
        encoding = tokenizer.encode(text)
        if texts.truncate:
            encoding = encoding.truncated(context)
        views.append(TokensView(Tokens(name, tokenizer, note, encoding)))
    show_views(output, views, "texts", texts.lines)
