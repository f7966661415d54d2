"""``tinytf state``: what the state of a recurrent layer holds after a token."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinytf_cli.command import command, option
from tinytf_cli.options import FoldOptions
from tinytf_cli.ranges import MOST, Whole
from tinytf_cli.text_options import TraceOptions

if TYPE_CHECKING:
    from tinytf.look.state import State
    from tinytf.trace.trace import Trace


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    layer: str | None = option(metavar="N", help="Layer of the head.  [default: the first with a state]")
    head: int = option(type=Whole(-MOST), metavar="N", shown=0, help="Head of that layer; -1 is the last.")
    position: str | None = option(
        metavar="TOKEN", help="Show the state after this token, by text or number.  [default: the last]"
    )
    rows: int | None = option(type=Whole(0), help="Tokens in the table; 0 for all.  [default: 12]")


@command("state")
def state(options: Options, fold: FoldOptions, tracing: TraceOptions) -> int:
    """A layer with a recurrence (a gated delta rule, Mamba, lightning attention) keeps a state in place of keys and
    values. Shows what it holds after a token, which tokens wrote that, and how much each token kept of what was there.
    """
    from tinytf.trace.address import parse_single_number
    from tinytf_cli.views.state import StateDisplay

    def question(trace: "Trace") -> "State":
        layer = None if options.layer is None else parse_single_number(options.layer, trace.config.n_layers, "layer")
        return tracing.model.state(trace, layer=layer, head=options.head, position=options.position)

    return tracing.show(question, "states", StateDisplay(fold.rows(options.rows)))
