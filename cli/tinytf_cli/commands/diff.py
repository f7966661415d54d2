"""``tinytf diff``: two texts, two models, or two dtypes of one model, step by step."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tinytf.errors import UsageError
from tinytf_cli.inputs import read_texts, with_session_text
from tinytf_cli.options import TRUNCATE, Opening, asks, model_options, option, output_options, recording_options
from tinytf_cli.output import Output, Result

if TYPE_CHECKING:
    from tinytf.loading import Model

_HOW = 'tinytf diff "The cat sat" "The dog sat", or tinytf diff --model A --versus B "The cat sat"'


def _no_nan(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is no limit")
    return value


@dataclass(frozen=True)
class Against:
    """The other model."""

    versus: str | None = option(
        metavar="MODEL", help="Compare with this model, or this checkpoint of a run, on one text."
    )
    versus_dtype: str | None = option(
        type=click.Choice(["float32", "bfloat16", "float16", "float64"]),
        help="Compare with the model in this dtype, on one text.",
    )  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """The options of this command alone."""

    tolerance: float | None = option(
        type=click.FloatRange(0), callback=_no_nan,
        help="Relative difference that is none yet.  [default: what rounding may cost in the dtype]",
    )  # fmt: skip
    head: str | None = option(
        metavar="ADDRESS", help="Show the weights of this head, such as L3H5, not of the worst one."
    )
    top: int = option(type=click.IntRange(1), shown=5, help="Most probable tokens of either.")
    rows: int | None = option(type=click.IntRange(0), help="Positions shown in a table (0: all; on a screen 16).")
    fail_over: float | None = option(
        type=click.FloatRange(0), callback=_no_nan, metavar="TOL",
        help="Exit 1 if a step differs by more than TOL of a token's largest number.",
    )  # fmt: skip
    full: bool = option(is_flag=True, help="Show every step, not of each layer the one that differs most.")


@click.command("diff")
@click.argument("texts", nargs=-1, metavar="TEXT [TEXT]")
@asks(Against, "against")
@TRUNCATE
@model_options
@recording_options
@asks(Asked)
@output_options
def command(
    texts: tuple[str, ...],
    against: Against,
    truncate: bool,
    opening: Opening,
    force: bool,
    asked: Asked,
    output: Output,
) -> int:
    """Show where two runs begin to differ, and by how much at every step.

    \b
    Two texts on one model     tinytf diff "The cat sat" "The dog sat"
    Two models, one text       tinytf diff --model A --versus B "The cat sat"
    Two checkpoints of a run   tinytf diff -m RUN/checkpoints/step-000250 --versus RUN "The cat sat"
    Two dtypes of one model    tinytf diff --versus-dtype bfloat16 "The cat sat"

    One of the texts may be -, which is read from a pipe.
    """
    from tinytf_cli.views.difference import DifferenceChoice, DifferenceView

    first, second = _texts(texts, against.versus is not None or against.versus_dtype is not None)
    model = opening.open()
    other = model if second is not None else _other(opening, against)
    found = model.diff(
        first, second if second is not None else other,
        tolerance=asked.tolerance, head=asked.head, top=asked.top, fail_over=asked.fail_over,
        truncate=truncate, force=force,
    )  # fmt: skip
    output.show(Result.of(DifferenceView((model, other), found, DifferenceChoice(asked.rows, asked.full))))
    return 0 if found.holds else 1


def _texts(words: tuple[str, ...], versus: bool) -> tuple[str, str | None]:
    """The text, or with no other model the two of them."""
    words = with_session_text(words, 1 if versus else 2)
    if versus and len(words) > 1:
        raise UsageError(
            f"{len(words)} texts and another model are two comparisons at once",
            "compare two texts on one model, or two models on one text (in quotes)",
        )
    if not versus and len(words) != 2:
        said = "there is nothing to compare with" if len(words) < 2 else f"these are {len(words)} texts"
        raise UsageError(said, f"{_HOW}; quote a text of several words")
    if words.count("-") > 1:
        raise UsageError("a pipe holds one text, and both are -", "give one of them in quotes")
    read = [read_texts((word,), lines=False)[0] for word in words or ("-",)]
    return read[0], read[1] if len(read) > 1 else None


def _other(opening: Opening, against: Against) -> "Model":
    """The model to compare with: ``--versus`` or the same, on the same device, in its dtype or another."""
    from tinytf.loading import load

    name = opening.model if against.versus is None else against.versus
    return load(name, device=opening.device, dtype=against.versus_dtype or opening.dtype, seed=opening.seed)
