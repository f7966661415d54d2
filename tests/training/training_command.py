"""``tinytf train`` in this process."""

import io
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

from tinytf_cli.main import run


class Ran(NamedTuple):
    """The exit status, and what was said on stderr."""

    status: int
    said: str


def trained(*arguments: str) -> Ran:
    """Train by the command line."""
    said = io.StringIO()
    with redirect_stderr(said), redirect_stdout(io.StringIO()):
        status = run(["train", *arguments])
    return Ran(status, said.getvalue())
