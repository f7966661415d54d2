"""The heads that follow grammar: for each relation a map of all heads, and the best beside what they do elsewhere."""

from collections.abc import Iterator

from tinytf.look.grammar import APART, LEAST, PAIRS, Grammar
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Figure, Heading, Meter, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import head_map, note
from tinytf_cli.views.steps import as_array

_HEADS = 3
"""The heads in the table of a relation."""


@draws(Grammar)
def grammar(report: Grammar, terminal: Terminal, display: Display) -> Iterator[Block]:
    """Each relation: an example, the weight of every head, and the heads that exceed their control most."""
    yield from banner(model_of(report))
    for relation, weight in report.weight.items():
        yield Heading(
            relation, f"mean weight from the (later) word to the [earlier], {len(PAIRS[relation])} texts", "k"
        )
        yield note(PAIRS[relation][1])
        yield from head_map(as_array(weight), "unit", 1.0, 2)
        elsewhere, follows = report.elsewhere[relation], report.follows(relation)
        often, places = report.often[relation], report.ranked(relation)[:_HEADS]
        yield Table(
            [
                Column("head", [f"L{layer}H{head}" for layer, head in places]),
                Column("", ["follows" if follows[place] else "" for place in places], said=""),
                Column("weight", [Meter(float(weight[p]), Figure(float(weight[p]), "%.2f"), "k") for p in places]),
                Column("at this distance elsewhere", [Figure(float(elsewhere[p]), "%.2f") for p in places], "right"),
                Column("more in", [f"{100 * float(often[p]):.0f} % of pairs" for p in places], "right", drop=1),
            ]
        )
    yield note(
        f"follows: at least {LEAST:g}, {APART:g} more than at the same distance elsewhere, and more in 7 of 8 pairs"
    )
