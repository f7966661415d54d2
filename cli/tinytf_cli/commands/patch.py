"""``tinytf patch``: a corrupt text, run with activations from a clean one."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from tinytf.errors import UsageError
from tinytf_cli.command import argument, command, option
from tinytf_cli.inputs import with_session_text
from tinytf_cli.options import ControlOptions, FoldOptions, ModelOptions, ResumeOptions, require_only, require_stacks
from tinytf_cli.output import Output
from tinytf_cli.ranges import Whole
from tinytf_cli.text_options import VERSUS_PAIRS, ChatOptions, PairsOptions, asked_of, metric_option, target_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from tinytf.cause.interventions.patch import PatchedRun


_OF_HEADS = ("heads", "queries", "keys", "values", "neurons")
"""Sweeps that --position limits."""


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    chat: ChatOptions
    clean: str | None = argument(required=False)
    corrupt: str | None = argument(required=False)
    truncate: bool = option(is_flag=True, help="Cut texts that are longer than the model's context.")
    target_text: str | None = target_option()
    metric: str | None = metric_option()
    answer: str | None = option(
        metavar="A",
        help="The clean text's token: a word or #ID; with log_prob a text, with prob a list such as cat,dog or @FILE.  "
        "[default: the token predicted for it]",
    )
    versus: str | None = option(
        metavar="B",
        help=f"The corrupt text's token: a word or #ID. With --pairs: {VERSUS_PAIRS}.  [default: the token predicted "
        "for it]",
    )
    sweep: str | None = option(
        type=click.Choice(["residual", "heads", "queries", "keys", "values", "attn", "ffn", "neurons", "from", "to"]),
        help="Patch each one alone, and draw a map: residual, attn or ffn per layer and position, heads or their "
        "queries, keys or values, or neurons; with --from, every receiver (to); with --to, every sender (from).  "
        "[default: residual]",
    )  # fmt: skip
    addresses: tuple[str, ...] = option(
        "--at", multiple=True, metavar="ADDRESS",
        help="Patch only this: L3H5, L3H5.q, L3.17, L2.attn, L2.ffn, L2.in. Repeatable, to patch several together.",
    )  # fmt: skip
    places: tuple[str, ...] = option(
        "--position",
        multiple=True,
        metavar="TOKEN",
        help="With --at, --from or a sweep of heads or neurons: patch only at this token, by text or number. "
        "Repeatable.",
    )
    top: int | None = option(type=Whole(1), help="Tokens shown, or rows of a sweep.  [default: 5, or 8]")
    force: bool = option(is_flag=True, help="Record even what is larger than the free memory.")


@dataclass(frozen=True)
class PathOptions:
    """A path from one part of the model to another."""

    GROUP: ClassVar = "Path"

    senders: tuple[str, ...] = option(
        "--from", multiple=True, metavar="ADDRESS",
        help="Patch a direct path: what this head, attention, feed-forward or the embeddings write to the stream, for "
        "--to alone. Repeatable.",
    )  # fmt: skip
    receivers: tuple[str, ...] = option(
        "--to", multiple=True, metavar="ADDRESS",
        help="The end of a path: L3H0.q, .k or .v, L3H0 for all three, L3.ffn, or logits. Repeatable.",
    )  # fmt: skip
    recompute_ffn: bool = option(
        is_flag=True, help="Let the feed-forwards in between recompute, instead of keeping their outputs."
    )

    @property
    def named(self) -> bool:
        """Whether an end of a path is named."""
        return bool(self.senders or self.receivers)


@dataclass(frozen=True)
class EstimateOptions:
    """Estimates of a sweep from gradients."""

    GROUP: ClassVar = "Estimate"

    how: str | None = option(
        "--estimate", type=click.Choice(["gradient", "integrated", "grad-drop"]),
        help="Estimate a sweep from gradients, without a run for each patch: at the corrupt run; averaged over the "
        "line between both texts; or by mean size, with the gradient of each other layer dropped in turn.",
    )  # fmt: skip
    steps: int | None = option(type=Whole(1), help="With --estimate integrated: points of the line.  [default: 10]")
    qk_correction: bool = option(
        is_flag=True,
        help="With --estimate and a sweep of queries or keys: compute the softmax with the patched one, instead of its "
        "gradient.",
    )
    beside: str | None = option(
        type=click.Choice(["exact"]), help="With --estimate: run exact patching too, and compare."
    )

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of an estimate in the library."""
        steps = {} if self.steps is None else {"steps": self.steps}
        return {"how": self.how, "qk_correction": self.qk_correction, "exact": self.beside is not None, **steps}


@command("patch")
def patch(
    options: Options,
    over: PairsOptions,
    path: PathOptions,
    estimate: EstimateOptions,
    controls: ControlOptions,
    resume_options: ResumeOptions,
    fold: FoldOptions,
    model_options: ModelOptions,
    output: Output,
) -> int:
    """Runs CORRUPT with activations from CLEAN patched in. The effect is measured by the difference of two logits, A −
    B, at the last token (in an encoder, at [MASK]), or by another --metric, scaled so that 1 is the clean run and 0 the
    corrupt one. Both texts must have the same number of tokens. Ctrl-C ends a sweep early and shows what it has
    measured. With --pairs, every pair of a file is patched, and --sweep is by layer alone where the texts have several
    lengths.
    """
    from tinytf.cause.interventions import UnevenTexts, compared, require_even, swept
    from tinytf.config import ENC
    from tinytf.metric import Asked
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views.ablate import SweepDisplay
    from tinytf_cli.views.patch import aligned_lines

    _require_fitting(options, path, estimate)
    controls.require("--at", bool(options.addresses))
    if over.pairs is not None:
        resume = resume_options.checked_file("")
        return _over_pairs(options, estimate, over, controls, fold, model_options, output, resume)
    needs = "a sweep" if options.addresses else "--beside exact" if estimate.how and not estimate.beside else ""
    resume = resume_options.checked_file(needs)
    words = with_session_text(tuple(text for text in (options.clean, options.corrupt) if text is not None), 2)
    if len(words) != 2:
        raise UsageError("CORRUPT, the text to patch, is missing", 'tinytf patch "The cat sat" "The dog sat"')
    texts = options.chat.read_each(words)
    through = model_options.through_model(output)
    if through is not None:
        from tinytf.through.changed import patch_through

        groups = (Options, PathOptions, EstimateOptions, ResumeOptions)
        require_only(("clean", "corrupt", "addresses", "truncate", "top", "chat", "system", "rendered"), groups)
        if not options.addresses:
            raise UsageError(
                "through transformers, a module is patched by its path", "name it with --at; try trace first"
            )
        top = options.top or 5
        clean_text, corrupt_text = texts
        at, truncate = options.addresses, options.truncate
        output.draw(patch_through(through, clean_text, corrupt_text, at, top=top, truncate=truncate))
        return 0
    model = replace(model_options, stack=None).open(two_stacks=True)
    require_stacks(model, model_options.stack)
    tokens: dict[str, Any] = {"metric": options.metric, "answer": options.answer, "versus": options.versus}
    Asked.of(model, *tokens.values(), names=("--answer", "--versus"))
    models, asked = asked_of(model, texts, options.target_text, output, truncate=options.truncate, until_apart=True)
    clean, corrupt = (
        one.trace(text, truncate=options.truncate, force=options.force) for one, text in zip(models, asked, strict=True)
    )
    try:
        require_even(*compared(clean, corrupt))
    except UnevenTexts as error:
        for line in aligned_lines(error.aligned, output.terminal.width):
            output.note(line)
        raise
    of_sweep = not (options.addresses or path.named or estimate.how)
    if model_options.stack is not None and not of_sweep:
        raise UsageError(
            "--stack goes with a sweep, without an estimate", "an address of the encoder says so: --at enc.L0.in"
        )
    of_encoder = bool(options.addresses) and all(address.startswith(ENC) for address in options.addresses)
    of_stack = swept((clean, corrupt), model_options.stack) if of_sweep else ENC * of_encoder
    named = corrupt.stacks.get(of_stack, corrupt)
    positions = [position for words in options.places for position in named.positions(words)] or None
    if options.addresses:
        beside = controls.of(model_options.seed)
        top = options.top or 5
        report = model.patch(clean, corrupt, options.addresses, positions=positions, top=top, **beside, **tokens)
        return output.draw_checked(report)
    settings: dict[str, Any] = {"positions": positions, **tokens}
    if path.named:
        settings |= {"senders": path.senders, "receivers": path.receivers, "recompute_ffn": path.recompute_ffn}
        if options.sweep is None:
            return output.draw_checked(model.patch_path(clean, corrupt, top=options.top or 5, **settings))
    question: Callable[..., PatchedRun] = model.patch_paths
    if not path.named:
        question = model.patch_sweep if estimate.how is None else model.patch_estimate
        settings |= {"over": options.sweep or "residual"}
        settings |= estimate.settings if estimate.how else {"stack": model_options.stack}
    with progress_line(output.stderr, "paths:" if path.named else "patches:") as on_progress:
        sweep = question(clean, corrupt, resume=resume, on_progress=on_progress, **settings)
    return output.draw_checked(sweep, SweepDisplay(options.top or 8, fold.all))


def _require_fitting(options: Options, path: PathOptions, estimate: EstimateOptions) -> None:
    """Raise UsageError for options of one question beside those of another."""
    over, fixed = options.sweep, {"to": "--from", "from": "--to"}.get(options.sweep or "")
    of_sites = f"--sweep {over}" if over and not fixed else "--estimate" if estimate.how else None
    questions = {"--at": options.addresses, "--from or --to": path.named, of_sites: of_sites}
    asked = [name for name, value in questions.items() if value]
    if len(asked) > 1:
        raise UsageError(f"{asked[0]} and {asked[1]} ask for two things at once", "leave one of them out")
    if fixed and [bool(path.senders), bool(path.receivers)] != [over == "to", over == "from"]:
        example = "--from L1H2" if over == "to" else "--to L3H0.q"
        raise UsageError(f"--sweep {over} goes with {fixed} alone", f"such as {example} --sweep {over}")
    if path.named and over is None and not (path.senders and path.receivers):
        raise UsageError("a path has two ends", "name both, --from L1H2 --to L3H0.q, or sweep one: --sweep to")
    if path.recompute_ffn and not path.named:
        raise UsageError("--recompute-ffn goes with --from and --to", "such as --from L1H2 --to L3H0.q")
    if options.places and not (options.addresses or path.named or over in _OF_HEADS):
        raise UsageError("--position goes with --at, --from, and sweeps of heads or neurons", "name one of them")
    if estimate.how is None and (estimate.steps is not None or estimate.beside is not None or estimate.qk_correction):
        raise UsageError("--steps, --beside and --qk-correction go with --estimate", "such as --estimate gradient")
    if estimate.how in ("gradient", "grad-drop") and estimate.steps is not None:
        raise UsageError("--steps goes with --estimate integrated", "one gradient has one point")


def _over_pairs(
    options: Options,
    estimate: EstimateOptions,
    over: PairsOptions,
    controls: ControlOptions,
    fold: FoldOptions,
    model_options: ModelOptions,
    output: Output,
    resume: Path | None,
) -> int:
    """Patch every pair of a table, or estimate the effects of patching them."""
    from tinytf.cause.over_pairs import patch_estimate_pairs, patch_over

    followed = over.followed(options.metric, options.answer)
    followed["versus"] = None if options.versus is None else Path(options.versus)
    if estimate.how is None:
        require_only(("addresses", "sweep", "top", "metric", "answer", "versus"), (Options, PathOptions), "--pairs")
        sites = options.sweep or (None if options.addresses else "residual")
        settings: dict[str, Any] = {"at": options.addresses, "sweep": sites, "resume": resume, **followed}
        settings |= controls.of_pairs(model_options.seed, options.versus)
        return over.draw(patch_over, model_options, output, fold, options.top, **settings)
    require_only(("sweep", "top", "metric", "answer", "versus"), (Options, PathOptions), "--estimate and --pairs")
    settings = {"over": options.sweep or "heads", "resume": resume, **followed, **estimate.settings}
    return over.draw(patch_estimate_pairs, model_options, output, fold, options.top, **settings)
