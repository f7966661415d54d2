"""``tinytf neighbours``: the tokens nearest to a word, or to the residual stream."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinytf.errors import UsageError
from tinytf_cli.command import argument, command, option
from tinytf_cli.options import ModelOptions, ResumeOptions
from tinytf_cli.output import Output
from tinytf_cli.ranges import Whole
from tinytf_cli.text_options import OptionalTextOptions

if TYPE_CHECKING:
    from tinytf.look.neighbours import Neighbours
    from tinytf.text.chat import Written


@dataclass(frozen=True)
class WordOptions(OptionalTextOptions):
    """Words to compare, or with --at the texts to look up the address in."""

    words: tuple[str, ...] = argument(nargs=-1, metavar="WORD… | TEXT")


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    at: str | None = option(
        metavar="ADDRESS", help="Find the tokens nearest to this vector in TEXT, such as 'L2.out[sat]' or L*.out."
    )
    toward: tuple[str, ...] = option(
        "--toward", multiple=True, metavar="WORD", help="With --at: how near each vector is to this word. Repeatable."
    )
    untrained: bool = option(
        is_flag=True, help="Also compare the words in a table of random numbers, as before training."
    )
    top: int | None = option(
        type=Whole(1), help="Neighbours of each word or vector.  [default: 10, or 4 if there are several]"
    )
    rows: int | None = option(type=Whole(0), help="Vectors in a table; 0 for all.  [default: 16 on a screen]")


@command("neighbours")
def neighbours(options: Options, words: WordOptions, model_options: ModelOptions, output: Output) -> int:
    """Compares embeddings by cosine, and unembeddings if the head has its own. For several words, also shows the
    similarity of each pair. A word is one token, by its text or id: cat, '#514'. With --at, give a TEXT.
    """
    from tinytf_cli.views.neighbours import NeighboursDisplay

    if options.at is None and not words.words:
        raise UsageError("there is no word", "name one or more, such as: tinytf neighbours cat dog")
    if (options.toward and options.at is None) or (options.untrained and options.at is not None):
        raise UsageError("--toward is for vectors at an address, --untrained for words", "leave it out")
    display = NeighboursDisplay(options.rows)
    if options.at is None:
        ResumeOptions(words.resume).checked_file("--at and --lines")
        report = model_options.open(two_stacks=True).neighbours(
            words.words, top=options.top, untrained=options.untrained
        )
        return output.draw_all([report], "neighbours", words.lines, display)
    words.items  # noqa: B018 - report a missing text before opening a model
    model = words.facing(model_options.open(two_stacks=True), output)

    def near_each(texts: "Sequence[Written]") -> "Iterator[Neighbours]":
        traces = (model.trace(text, truncate=words.truncate) for text in texts)
        return (model.neighbours(text=t, at=options.at, top=options.top, toward=options.toward) for t in traces)

    return words.answer(near_each, output, "neighbours", display, of=model.transformer)
