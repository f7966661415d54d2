"""``without``: the model of a session without some of its steps."""

from dataclasses import replace
from typing import Any

import click

from tinytf.errors import UsageError
from tinytf_cli.output import Result
from tinytf_cli.repl.results import answer, gone_data, gone_lines
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.state import Without
from tinytf_cli.repl.verbs import verb
from tinytf_cli.views.blocks import Line, Span

_NONE = "none"


@verb(
    "without", topic="session", usage="[ADDRESS …|none]", takes=("address",),
    examples=("without L0H3", "without L1H* L2.ffn --how mean", "without none"),
)  # fmt: skip
@click.argument("addresses", nargs=-1, metavar="[ADDRESS …|none]")
@click.option("--how", type=click.Choice(["zero", "mean"]), help="What is put there: zeros (the default), or the mean.")
@click.option("--reference", metavar="FILE", help="Texts of the mean; without it the model's own.")
def without(session: Session, addresses: tuple[str, ...], how: str | None, reference: str | None) -> Result:
    """Go on with some steps of the model ablated, or say which are.

    A step is a head (L0H3), a part of a layer (L2.attn, L2.ffn), both of them (L2), or the residual stream (L2.in,
    L2.out). All that the session runs on its model runs so: traces, heat, top, generate, score, lens, grad. The present
    text is run again, so that diff compares it with the run before. Steps that are named take the place of those
    before; none makes the model whole, and undo brings back what was. A command with a --model, --device or --dtype of
    its own opens a whole one.
    """
    spec = session.state.spec
    if addresses or how or reference:
        session.take(replace(spec, without=_asked(session, addresses, how, reference)))
    return _said(session)


def _asked(session: Session, addresses: tuple[str, ...], how: str | None, reference: str | None) -> Without | None:
    """What the words ask for; None is the whole model."""
    from tinytf.analysis.interventions import hook_points

    before = session.state.spec.without
    if addresses == (_NONE,):
        if how or reference:
            raise UsageError("none takes nothing away, and has no --how and no --reference")
        return None
    at = addresses or (before.at if before else ())
    if not at:
        raise UsageError("nothing is named to go without", "such as: without L0H3, or L2.ffn, or a layer, L2")
    if _NONE in at:
        raise UsageError("none stands alone", "without none makes the model whole")
    hook_points(at, session.table)
    kind = how or ("mean" if reference else "zero")
    if reference and kind != "mean":
        raise UsageError("zeros have no --reference", "--how mean has one")
    wanted = Without(at, kind, reference)
    session.models.model(replace(session.state.spec, without=wanted))
    return wanted


def _said(session: Session) -> Result:

    gone = session.state.spec.without
    data: dict[str, Any] = {"without": None, **gone_data(gone)}
    if gone is None:
        return answer("without", data, Line("the model is whole"))
    lines = list(gone_lines(gone))
    if session.run is not None:
        lines.append(Line(Span("diff compares this run with the one before", "dim")))
    return answer("without", data, *lines)
