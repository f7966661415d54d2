"""A session at a terminal, with nothing but a prompt: what there is without prompt_toolkit."""

from tinytf_cli.repl.script import PROMPT
from tinytf_cli.repl.session import Session


def interact(session: Session) -> int:
    """Read lines until the end; Ctrl-C gives up a line or the command that runs, Ctrl-D leaves. The answer is 0."""
    while True:
        try:
            line = input(PROMPT)
        except EOFError:
            session.streams.stdout.write("\n")
            return 0
        except KeyboardInterrupt:
            session.interrupt.happened = False
            session.streams.stdout.write("\n")
            continue
        outcome = session.execute(line)
        if outcome.leave:
            return 0
        session.say(outcome)
