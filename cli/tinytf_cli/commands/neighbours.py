"""``tinytf neighbours``: the tokens nearest to a word, or to the residual stream."""

from dataclasses import dataclass

import click

from tinytf.errors import UsageError
from tinytf_cli.command import argument, command, option
from tinytf_cli.options import Opening, Texts
from tinytf_cli.output import Output, Result


@dataclass(frozen=True)
class Asked:
    """The words and options of this command alone."""

    words: tuple[str, ...] = argument(nargs=-1, metavar="WORD… | TEXT --at ADDRESS")
    at: str | None = option(
        metavar="ADDRESS", help="Find the tokens nearest to this vector in TEXT, such as 'L2.out[sat]' or L*.out."
    )
    top: int = option(type=click.IntRange(1), shown=10, help="Neighbours of each.")
    rows: int | None = option(type=click.IntRange(0), help="Vectors in a table; 0 for all.  [default: 16 on a screen]")


@command("neighbours")
def neighbours(asked: Asked, opening: Opening, output: Output) -> int:
    """Compares embeddings, and unembeddings where the head has its own, by cosine. Of several words it also shows how
    similar each pair is. A word is one token, by its text or its number: cat, '#514'.
    """
    from tinytf_cli.views.neighbours import NeighboursView

    if asked.at is None and not asked.words:
        raise UsageError("there is no word", "name one or more, such as: tinytf neighbours cat dog")
    text = None if asked.at is None else Texts(asked.words, lines=False, truncate=False).given[0]
    words = asked.words if text is None else ()
    model = opening.open()
    found = model.neighbours(words, text=text, at=asked.at, top=asked.top)
    output.show(Result.of(NeighboursView(model, found, asked.rows)))
    return 0
