"""A long text, a screen at a time."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator


def page(text: str) -> None:
    """Show ``text`` in the pager of PAGER, in less without it; where there is none, all at once."""
    try:
        command = shlex.split(os.environ.get("PAGER", "")) or ["less"]
    except ValueError:  # a quote without an end
        command = ["less"]
    found = shutil.which(command[0])
    out = sys.stdout
    if found is None or os.environ.get("TERM", "") == "dumb":
        out.write(text)
        out.flush()
        return
    # Colours are shown as such (R); what fits on the screen is not waited for (F), and stays there (X).
    environment = {**os.environ, "LESS": f"{os.environ.get('LESS', '-FX')} -R"}
    out.flush()
    with _interrupts_are_for_the_pager():
        process = subprocess.Popen([found, *command[1:]], stdin=subprocess.PIPE, env=environment)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # seen enough
            process.stdin.write(text.encode("utf-8", "backslashreplace"))
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait()


@contextlib.contextmanager
def _interrupts_are_for_the_pager() -> Iterator[None]:
    """While somebody reads, Ctrl-C stops what the pager does and not the session."""
    # A function, unlike SIG_IGN, is not handed down to the pager.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
