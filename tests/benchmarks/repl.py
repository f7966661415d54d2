"""Lines of a warm session: a new text and a map of it, and a map of another head of the same text.

    python tests/benchmarks/repl.py --repeat 30

On the built-in model each round runs a text of eight tokens that was not run before, and draws a head. On a model of
GPT-2 small's size (random weights) each round draws a head that was not looked at; what drawing the same blocks alone
takes is measured beside it, and taken off.
"""

import itertools
import sys

from _timing import Row, in_turns, milliseconds, options, show, show_machine, spread

from tinytf_cli.paint.painter import paint
from tinytf_cli.repl import session_verbs
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.state import Spec
from tinytf_cli.repl.streams import Capture
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.at_address import heat_blocks

NAMES = ("cat", "dog", "girl", "boy", "bird", "fox", "bear", "frog")
VERBS = ("sat", "ran", "slept", "sang", "jumped", "played")


def begun(model: str, text: str) -> Session:
    session = Session(session_verbs.VERBS, Spec(model), stdout=Capture(), stderr=Capture())
    done(session, f'run "{text}"')
    return session


def done(session: Session, line: str) -> str:
    outcome = session.execute(line)
    assert outcome.status == 0, outcome
    return outcome.text


def main() -> int:
    chosen = options(__doc__, repeat=30).parse_args()
    tiny = begun("tiny", "The cat sat on the big red mat")
    assert len(tiny.tokens) == 8, tiny.tokens
    texts = itertools.cycle(f"The {name} {verb} on the big red mat" for name in NAMES for verb in VERBS)

    def run_and_heat() -> str:
        return done(tiny, f'run "{next(texts)}"') + done(tiny, "heat L1H2")

    large = begun("preset:gpt2", "The cat sat on the big red mat")
    heads = itertools.cycle((layer, head) for layer in range(12) for head in range(12))
    terminal = Terminal()
    drawn = [list(heat_blocks(large.trace, large.trace.address("L3H5.weights"), terminal))]
    runs = {
        "run and heat": run_and_heat,
        "heat": lambda: done(large, "heat L{}H{}".format(*next(heads))),
        "drawing": lambda: list(paint(drawn[0], terminal)),
    }
    seconds = in_turns(runs, chosen.repeat, warm=3)
    show_machine("torch", "tinytf")
    beyond = milliseconds(seconds, "heat") - milliseconds(seconds, "drawing")
    rows = [
        Row("tiny: run of 8 tokens, and heat", milliseconds(seconds, "run and heat"), "ms", 30.0,
            spread(seconds, "run and heat")),
        Row("124 M: heat of another head, beyond drawing", beyond, "ms", 10.0, spread(seconds, "heat", "drawing")),
    ]  # fmt: skip
    return show("a warm session", rows)


if __name__ == "__main__":
    sys.exit(main())
