"""A long text, a screen at a time."""

import os
import shlex
import shutil
import subprocess
import sys

from tinytf_cli.interrupt import current


def page(text: str) -> None:
    """Show ``text`` in the pager of PAGER, in less without it; where there is none, all at once."""
    command = shlex.split(os.environ.get("PAGER", "")) or ["less"]
    found = shutil.which(command[0])
    out = sys.stdout
    if found is None:
        out.write(text)
        out.flush()
        return
    environment = {**os.environ, "LESS": os.environ.get("LESS", "-RFX")}
    process = subprocess.Popen([found, *command[1:]], stdin=subprocess.PIPE, env=environment)
    assert process.stdin is not None
    try:
        process.stdin.write(text.encode("utf-8", "backslashreplace"))
        process.stdin.close()
    except BrokenPipeError:
        pass  # seen enough
    while True:
        try:
            process.wait()
            return
        except KeyboardInterrupt:
            current().happened = False  # it is for the pager, which stays
