"""``tinytf neighbours --texts``: how alike texts are, by the vectors of an embedding model."""

from dataclasses import dataclass
from pathlib import Path

import click

from tinytf.errors import UsageError
from tinytf.parts.pooling import FORMULAS
from tinytf_cli.command import argument, command, option
from tinytf_cli.inputs import line_texts, with_session_text
from tinytf_cli.options import FoldOptions, ModelOptions
from tinytf_cli.output import Output
from tinytf_cli.ranges import Whole


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    texts: tuple[str, ...] = argument(nargs=-1, metavar="FIRST SECOND | QUERY")
    listed: Path | None = option(
        "--file", type=click.Path(path_type=Path), metavar="LIST",
        help="Compare QUERY with every line of this file instead, the nearest first; - is standard input.",
    )  # fmt: skip
    pooling: str | None = option(
        type=click.Choice(tuple(FORMULAS)), help="Make one vector of the tokens this way, not the model's own."
    )
    prompts: str | None = option(
        metavar="A,B",
        help="Names of the model's prompts before the first text and before the others.  [default: its default one; "
        "with --file those for a query and a document]",
    )
    top: int | None = option(
        type=Whole(1), help="Pairs shown, or lines of LIST.  [default: 8 pairs on a screen, and every line]"
    )
    truncate: bool = option(is_flag=True, help="Cut texts that are longer than the model's context.")


@command("neighbours --texts")
def neighbours_texts(options: Options, fold: FoldOptions, model_options: ModelOptions, output: Output) -> int:
    """Compares the vectors of two texts by their cosine, and splits it into what each pair of words adds: the sum of
    all pairs is the cosine. Needs a model that says how the tokens of a text become one vector, as folders of
    sentence-transformers do, or --pooling. A model of late interaction, such as ColBERT, takes a query and a document,
    and shows which token of the document each token of the query finds.
    """
    from tinytf_cli.views.similar import SimilarDisplay

    count = 1 if options.listed else 2
    texts = [text for text in with_session_text(options.texts, count) if isinstance(text, str)]
    if len(texts) != count:
        wants = "one QUERY with --file" if options.listed else "two texts"
        raise UsageError(
            f"this takes {wants}, not {len(texts)}", 'tinytf neighbours --texts "A dog barks." "The puppy is loud."'
        )
    lines = None if options.listed is None else line_texts(options.listed)
    if lines == []:
        raise UsageError(f"{options.listed} has no line with a word in it", "give one text per line")
    names = None if options.prompts is None else tuple(name or None for name in options.prompts.split(","))
    if names is not None and len(names) != 2:
        raise UsageError("--prompts names two prompts", "such as query,document, or document,document")
    model = model_options.open(because="the vector of a whole text is its encoder's")
    if lines is not None:
        ranked = model.most_similar(
            texts[0], lines, top=options.top, pooling=options.pooling, prompts=names, truncate=options.truncate
        )
        output.draw(ranked)
        return 0
    if model.late is not None and options.pooling is None:
        if names is not None:
            raise UsageError("a model of late interaction has prompts of its own", "leave out --prompts")
        from tinytf_cli.views.interaction import InteractionDisplay

        output.draw(model.interaction(*texts), InteractionDisplay(fold.rows(options.top)))
        return 0
    report = model.similar(*texts, pooling=options.pooling, prompts=names or (None, None), truncate=options.truncate)
    return output.draw_checked(report, SimilarDisplay(fold.rows(options.top)))
