"""``tinytf attention``: every head at a glance, or one in full."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinytf.errors import UsageError
from tinytf_cli.command import command, option
from tinytf_cli.options import FoldOptions, require_only
from tinytf_cli.ranges import Whole
from tinytf_cli.text_options import TextOptions, TraceOrPairsOptions, versus_pairs_option

if TYPE_CHECKING:
    from tinytf.look.attention import Attended
    from tinytf.trace.trace import Trace

_MEASURES = ("entropy", "distance", "previous", "first", "self")


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    by: str = option(
        type=click.Choice(_MEASURES), shown="entropy", help="The number shown for each head in the overview."
    )
    heads: tuple[str, ...] = option(
        "--head", multiple=True, metavar="ADDRESS",
        help="Draw this head large, such as L3H5, or L0H* for a whole layer. Repeatable.",
    )  # fmt: skip
    layer: str | None = option(
        metavar="N",
        help="Draw the attention of layer N: every head, and how they are joined.",
    )  # fmt: skip
    cross: bool = option(is_flag=True, help="Of a model of two stacks: the heads that look at the source.")
    row: str | None = option(metavar="TOKEN", help="Show one query as bars, by text or number.")
    top: int | None = option(type=Whole(1), metavar="K", help="List the K strongest pairs.")
    window: str | None = option(metavar="Q0:Q1,K0:K1", help="Show only these queries and keys, such as 0:20,0:20.")
    rows: int | None = option(type=Whole(0), help="Queries shown as bars; 0 for all.  [default: 24 on a screen]")
    versus: Path | None = versus_pairs_option()


@command("attention")
def attention(options: Options, folding: FoldOptions, tracing: TraceOrPairsOptions) -> int:
    """By default, shows one number and a small map for each head. Without --head, --row, --top and --window show the
    head that adds most to the prediction. With --pairs, shows how much each head looks at the tokens that differ, from
    the token that predicts the answer.
    """
    from tinytf.steps.table import StepTable
    from tinytf.trace.address import parse_single_number
    from tinytf_cli.views.attention import AttentionDisplay

    tracing.texts.over.require_beside(options.versus)
    if (over := tracing.texts.over).pairs is not None:
        from tinytf.cause.over_pairs import attention_over

        require_only(("versus",), (Options, TextOptions), "--pairs")
        return over.draw(attention_over, tracing.model_options, tracing.output, folding, versus=options.versus)
    if options.layer is not None:
        others = {
            "--head": options.heads or None,
            "--row": options.row,
            "--top": options.top,
            "--window": options.window,
        }
        for name, value in others.items():
            if value is not None:
                raise UsageError(f"--layer draws every head of a layer, so it goes with no {name}")
    if options.row is not None and (options.top is not None or options.window is not None):
        raise UsageError("--row shows one query, so it goes with neither --top nor --window")
    model = tracing.model
    layer = None if options.layer is None else parse_single_number(options.layer, model.config.n_layers, "layer")
    chosen = _heads(options.heads, StepTable(model.config))

    def question(trace: "Trace") -> "Attended":
        window = None if options.window is None else _window(options.window, trace)
        return model.attention(
            trace, heads=chosen, row=options.row, top=options.top, window=window, layer=layer,
            across=options.cross,
        )  # fmt: skip

    return tracing.show(question, "attentions", AttentionDisplay(options.by, options.rows, folding.all))


def _heads(texts: tuple[str, ...], table: Any) -> tuple[tuple[int, int], ...]:
    from tinytf.trace.address import parse_address

    pairs: list[tuple[int, int]] = []
    for text in texts:
        address = parse_address(text, table)
        if address.layers is None or address.cell or (address.step is not None and address.step.name != table.weights):
            raise UsageError(f"{text!r} is not a head", "a head is L3H5, all heads of a layer L3 or L3H*")
        if without := [layer for layer in address.layers if layer not in table.attention_layers]:
            hint = f"tinytf trace --layer {without[0]} shows its steps"
            raise UsageError(f"layer {without[0]} has no attention weights", hint)
        every = table.config.heads_in(address.layers)
        pairs += [(layer, head) for layer, head in every if address.heads is None or head in address.heads]
    return tuple(pairs)


def _window(text: str, trace: "Trace") -> tuple[int, int, int, int]:
    """The start and stop of the queries, then of the keys, in a window."""
    count, ends = len(trace.tokens), []
    for word, axis in zip(text.split(","), ("query", "key"), strict=False):
        picked = trace.pick_indices(word.strip(), axis, count)
        positions = range(picked, picked + 1) if isinstance(picked, int) else picked
        if positions.step != 1:
            raise UsageError(f"--window {text!r} skips positions", "write queries,keys such as 0:20,0:20")
        ends.append((positions.start, positions.stop))
    if text.count(",") > 1:
        raise UsageError(f"--window {text!r} is not a pair of ranges", "write queries,keys such as 0:20,0:20")
    return (*ends[0], *ends[-1])
