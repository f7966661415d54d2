"""``tinytf patch``: a corrupt text, run with activations from a clean one."""

from dataclasses import dataclass
from typing import Any

import click

from tinytf.errors import UsageError
from tinytf_cli.command import argument, command, option
from tinytf_cli.inputs import with_session_text
from tinytf_cli.options import ChatOptions, FoldOptions, ModelOptions, PairsOptions, ResumeOptions, require_only
from tinytf_cli.output import Output


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    chat: ChatOptions
    clean: str | None = argument(required=False)
    corrupt: str | None = argument(required=False)
    truncate: bool = option(is_flag=True, help="Cut texts that are longer than the model's context.")
    answer: str | None = option(
        metavar="A", help="The clean text's token: a word or #ID.  [default: the token predicted for it]"
    )
    versus: str | None = option(
        metavar="B", help="The corrupt text's token: a word or #ID.  [default: the token predicted for it]"
    )
    sweep: str | None = option(
        type=click.Choice(["residual", "heads", "attn", "ffn"]),
        help="Patch each one alone, and draw a map: residual, attn or ffn per layer and position, or heads.  "
        "[default: residual]",
    )  # fmt: skip
    addresses: tuple[str, ...] = option(
        "--at", multiple=True, metavar="ADDRESS",
        help="Patch only this: L3H5, L3E5, L2.attn, L2.ffn, L2.in. Repeatable, to patch several together.",
    )  # fmt: skip
    places: tuple[str, ...] = option(
        "--position",
        multiple=True,
        metavar="TOKEN",
        help="With --at: patch only at this token, by text or number. Repeatable.",
    )
    top: int | None = option(type=click.IntRange(1), help="Tokens shown, or rows of a sweep.  [default: 5, or 8]")
    force: bool = option(is_flag=True, help="Record even what is larger than the free memory.")


@command("patch")
def patch(
    options: Options,
    over: PairsOptions,
    resume_options: ResumeOptions,
    fold: FoldOptions,
    model_options: ModelOptions,
    output: Output,
) -> int:
    """Runs CORRUPT with activations from CLEAN patched in. The effect is measured by the difference of two logits, A −
    B, at the last token (in an encoder, at [MASK]), scaled so that 1 is the clean run and 0 the corrupt one. Both texts
    must have the same number of tokens. Ctrl-C ends a sweep early and shows what it has measured. With --pairs,
    every pair of a file is patched, and --sweep is by layer alone where the texts have several lengths.
    """
    from tinytf.cause.interventions import UnevenTexts, require_even
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.patch import PatchSweepDisplay, aligned_lines

    if options.addresses and options.sweep is not None:
        raise UsageError("--at and --sweep ask for two things at once", "leave one of them out")
    if over.pairs is not None:
        from tinytf.cause.over_pairs import patch_over

        if options.clean is not None:
            raise UsageError("--pairs and CLEAN are two things to ask about", "leave one of them out")
        require_only(("addresses", "sweep", "top"), (Options,), "--pairs")
        over_all = options.sweep or (None if options.addresses else "residual")
        return over.draw(
            patch_over, model_options, output, fold, options.top,
            at=options.addresses, sweep=over_all, resume=resume_options.checked_file(""),
        )  # fmt: skip
    if options.clean is None:
        raise UsageError("CLEAN and CORRUPT, the texts, are missing", 'tinytf patch "The cat sat" "The dog sat"')
    if options.places and not options.addresses:
        raise UsageError("--position goes with --at", "a sweep is over every position")
    resume = resume_options.checked_file("a sweep" if options.addresses else "")
    words = with_session_text((options.clean,), 2) if options.corrupt is None else (options.clean, options.corrupt)
    if len(words) != 2:
        raise UsageError("CORRUPT, the text to patch, is missing", 'tinytf patch "The cat sat" "The dog sat"')
    texts = options.chat.read_each(words)
    through = model_options.through_model(output)
    if through is not None:
        from tinytf.through.changing import patch_through

        require_only(("clean", "corrupt", "addresses", "truncate", "top", "chat", "system"), (Options, ResumeOptions))
        if not options.addresses:
            raise UsageError(
                "through transformers, a module is patched by its path", "name it with --at; try trace first"
            )
        top = options.top or 5
        clean_text, corrupt_text = texts
        at, truncate = options.addresses, options.truncate
        output.draw(patch_through(through, clean_text, corrupt_text, at, top=top, truncate=truncate))
        return 0
    model = model_options.open()
    tokens: dict[str, Any] = {
        name: model.optional_outcome(word, f"--{name}")
        for name, word in (("answer", options.answer), ("versus", options.versus))
    }
    try:
        require_even(*(model.encode(text, truncate=options.truncate) for text in texts))
    except UnevenTexts as error:
        for line in aligned_lines(error.aligned, output.terminal.width):
            output.note(line)
        raise
    clean, corrupt = (model.trace(text, truncate=options.truncate, force=options.force) for text in texts)
    if options.addresses:
        positions = [position for words in options.places for position in corrupt.positions(words)] or None
        report = model.patch(clean, corrupt, options.addresses, positions=positions, top=options.top or 5, **tokens)
        output.draw(report)
        return 0 if report.holds else 1
    with progress_line(output.stderr, "patches:") as on_progress:
        sweep = model.patch_sweep(
            clean, corrupt, options.sweep or "residual", resume=resume, on_progress=on_progress, **tokens
        )
    output.draw(sweep, PatchSweepDisplay(options.top or 8, fold.all))
    return 0 if sweep.holds else 1
