"""``tinytf patch``: a corrupt text, run with activations of a clean one."""

from dataclasses import dataclass
from typing import Any

import click

from tinytf.errors import UsageError
from tinytf_cli.inputs import with_session_text
from tinytf_cli.options import Opening, asks, model_options, option, output_options, recording_options
from tinytf_cli.output import Output, Result


@dataclass(frozen=True)
class Asked:
    """The options of this command alone."""

    truncate: bool = option(is_flag=True, help="Cut texts that are longer than the model's context.")
    answer: str | None = option(
        metavar="A", help="The token that the clean text asks for: a word, or #ID; else its prediction."
    )
    versus: str | None = option(metavar="B", help="The one that CORRUPT asks for; else its prediction.")
    sweep: str | None = option(
        type=click.Choice(["residual", "heads", "attn", "ffn"]),
        help="What is patched, each by itself: residual (unless given), attn, ffn at each position; heads.",
    )  # fmt: skip
    addresses: tuple[str, ...] = option(
        "--at", multiple=True, metavar="ADDRESS",
        help="Patch just this: L3H5, L2.attn, L2.ffn, L2.in. Repeatable: all of them together.",
    )  # fmt: skip
    places: tuple[str, ...] = option(
        "--position", multiple=True, metavar="TOKEN", help="Only at this token, by text or number. Repeatable."
    )
    top: int | None = option(type=click.IntRange(1), help="Tokens shown, 5 unless given; of a sweep the strongest, 8.")


@click.command("patch")
@click.argument("clean")
@click.argument("corrupt", required=False)
@model_options
@recording_options
@asks(Asked)
@output_options
def command(clean: str, corrupt: str | None, opening: Opening, force: bool, asked: Asked, output: Output) -> int:
    """Run CORRUPT with activations of CLEAN put in, and show which of them bring the clean answer back.

    Measured by the difference of two logits, A − B, after the last token (in an encoder at [MASK]): 1 is the clean
    run's, 0 the corrupt one's. Both texts must have as many tokens.
    """
    from tinytf.analysis.interventions import UnevenTexts, require_even
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.patch import PatchedView, PatchSweepView, aligned_lines

    if asked.addresses and asked.sweep is not None:
        raise UsageError("--at and --sweep ask for two things at once", "leave one of them out")
    if asked.places and not asked.addresses:
        raise UsageError("--position goes with --at", "a sweep is over every position")
    texts = with_session_text((clean,), 2) if corrupt is None else (clean, corrupt)
    if len(texts) != 2:
        raise UsageError("CORRUPT is missing, the text that is patched", 'tinytf patch "The cat sat" "The dog sat"')
    model = opening.open()
    tokens: dict[str, Any] = {
        name: None if word is None else model.find_token(word, f"--{name}")
        for name, word in (("answer", asked.answer), ("versus", asked.versus))
    }
    try:
        require_even(*(model.encode(text, truncate=asked.truncate) for text in texts))
    except UnevenTexts as error:
        for line in aligned_lines(error.aligned, output.terminal.width):
            output.note(line)
        raise
    runs = [model.trace(text, truncate=asked.truncate, force=force) for text in texts]
    view: PatchedView | PatchSweepView
    if asked.addresses:
        positions = [runs[1].index(word, "token", len(runs[1].tokens)) for word in asked.places] or None
        found = model.patch(runs[0], runs[1], asked.addresses, positions=positions, top=asked.top or 5, **tokens)
        view = PatchedView(model, runs[0], runs[1], found)
    else:
        with progress_line(output.stderr, "patches:") as on_progress:
            swept = model.patch_sweep(runs[0], runs[1], asked.sweep or "residual", on_progress=on_progress, **tokens)
        view = PatchSweepView(model, runs[0], runs[1], swept, asked.top or 8)
    output.show(Result.of(view))
    return 0 if view.found.holds else 1
