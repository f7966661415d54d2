"""``tinytf tokens``: how a text becomes tokens."""

from dataclasses import dataclass

from tinytf_cli.command import command, option
from tinytf_cli.host import given, host
from tinytf_cli.options import DEFAULT_MODEL, Texts, complete_model, default_model
from tinytf_cli.output import Output


@dataclass(frozen=True)
class Asked:
    """The options of this command alone."""

    model: str = option(
        "-m", "--model", metavar="MODEL", default=default_model, show_default=DEFAULT_MODEL,
        shell_complete=complete_model, help="Whose tokenizer.",
    )  # fmt: skip


@command("tokens")
def tokens(asked: Asked, texts: Texts, output: Output) -> int:
    """Tokens that the tokenizer adds of itself are marked."""
    from tinytf.analysis.tokens import Tokenized
    from tinytf.errors import UsageError
    from tinytf.sources import find_source
    from tinytf_cli.joining import show_views
    from tinytf_cli.views.tokens import TokensView

    lender = host()
    if lender is not None and not given("model"):
        name, context = lender.model.name, lender.model.config.context
        tokenizer, note = lender.model.tokenizer, lender.model.tokenizer_note
    else:
        source = find_source(asked.model)
        name, context = source.name, source.config().context
        tokenizer, note = source.vocabulary().tokenizer, source.vocabulary().note
    views = []
    for text in texts:
        if text == "":
            raise UsageError("the text is empty", "give a few characters, such as: The cat sat")
        encoding = tokenizer.encode(text) if isinstance(text, str) else tokenizer.converse(text)
        if texts.truncate:
            encoding = encoding.truncated(context)
        views.append(TokensView(Tokenized(name, tokenizer, note, encoding)))
    return show_views(output, views, "texts", texts.lines)
