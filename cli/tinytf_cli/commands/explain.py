"""``tinytf explain``: the arithmetic behind one number."""

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tinytf.errors import UsageError
from tinytf_cli.command import argument, command, option
from tinytf_cli.options import complete_address
from tinytf_cli.ranges import Real, Whole
from tinytf_cli.text_options import AddressOptions

if TYPE_CHECKING:
    from tinytf.look.explain import Explained
    from tinytf.trace.trace import Trace


_ADDRESS = re.compile(r"L[0-9*]|(?:enc|dec|embed|final|head)\.|[^\s\[\]]+\[[^\[\]]*\]$|(?:[EP]|W_\w+)$")
"""How an address looks, as no text does: of a layer, of a part outside the layers, or a name with a cell at its end."""


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    address: str = argument(shell_complete=complete_address, required=False, default="", metavar="[ADDRESS]")
    depth: int = option(
        type=Whole(1),
        shown=1,
        help="Steps to explain: this one, then the step of its largest term, and so on.",
    )
    top: int = option(type=Whole(1), shown=8, help="Terms shown; the rest are summed.")
    homework: bool = option(is_flag=True, help="Leave blanks for the numbers to work out; without it, the solution.")
    temperature: float = option(
        type=Real(0, above=True),
        shown=1.0,
        help="Temperature that divides the logits, for a cell of probs.",
    )


@command("explain")
def explain(options: Options, tracing: AddressOptions) -> int:
    """ADDRESS is one cell of one step: 'L0H0.scores[The,cat]', 'L1.ffn[sat,17]', 'logits[sat,·on]'. Without one it is
    the logit of the prediction. A parameter, such as 'L0H1.W_Q[3,7]', is learned: it has no arithmetic and needs no
    TEXT.
    """
    from tinytf.steps.table import STEPS, StepTable
    from tinytf.trace.parameters import parse_parameter
    from tinytf_cli.views.explain import ExplainDisplay

    address: str | None = options.address
    if not _ADDRESS.match(options.address) and options.address not in {step.name for step in STEPS}:
        first, *others = *filter(None, [options.address]), *tracing.texts.words, ""
        address = next(filter(_ADDRESS.match, others), None) if " " in first else None  # typed after the text
        words = tuple(word for word in (first, *others) if word not in ("", address))
        tracing = replace(tracing, texts=replace(tracing.texts, words=words))
    weight = None if address is None else parse_parameter(address, StepTable(tracing.model.config))
    if weight is not None:
        if options.homework:
            raise UsageError(f"{address} is learned: it has no arithmetic to work out", "name a cell of a step")
        tracing.note_unread_text()
        tracing.output.draw(tracing.model.parameters(weight))
        return 0

    def question(trace: "Trace") -> "Explained":
        return tracing.model.explain(
            trace, address, depth=options.depth, top=options.top, temperature=options.temperature
        )

    status = tracing.show(question, "explanations", ExplainDisplay(options.homework))
    if address is None:
        tracing.output.note(
            "this is the logit of the prediction, and attribute says which parts of the model made it; any other "
            "number has an address, such as L0H0.weights[0,0]"
        )
    return status
