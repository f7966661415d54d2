"""Run lines of a session under the fences of a served page, and say by the kernel's own account which files it opened.

``python fenced_lines.py WORLD NAMED < LINES`` prints, for each line, a JSON object: ``said``, and the ``opened`` files
below WORLD. NAMED is the model that the page was started with.
"""

import ctypes
import json
import os
import struct
import sys
from pathlib import Path

from tinytf.outputs import Fence, fenced
from tinytf.read_fence import ReadFence
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import VERBS
from tinytf_cli.repl.settings import Settings
from tinytf_cli.repl.state import Spec

_OPEN, _NONBLOCK, _EVENT = 0x20, os.O_NONBLOCK, struct.Struct("iIII")


class Opened:
    """The files below a folder that were opened, by inotify, which sees those that native libraries open too."""

    def __init__(self, world: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor, self.folders = libc.inotify_init1(_NONBLOCK), {}
        for folder in (world, *(path for path in world.rglob("*") if path.is_dir())):
            self.folders[libc.inotify_add_watch(self.descriptor, os.fsencode(folder), _OPEN)] = folder

    def take(self) -> list[str]:
        """The files that were opened since the last call."""
        files, data = [], b""
        try:
            while part := os.read(self.descriptor, 1 << 16):
                data += part
        except BlockingIOError:
            pass
        while data:
            watch, _, _, length = _EVENT.unpack(data[: _EVENT.size])
            name = data[_EVENT.size : _EVENT.size + length].rstrip(b"\0").decode()
            data = data[_EVENT.size + length :]
            path = self.folders[watch] / name
            files += [str(path)] if name and path.is_file() else []
        return files


def main(world: Path, named: str) -> None:
    os.chdir(world)
    session = Session(VERBS, Spec(named, device="cpu"), Settings())
    reading = ReadFence(world / named)
    assert session.begin("The cat sat").status == 0
    reading.close()
    session.streams.fence = Fence(None)
    opened, stdout = Opened(world), sys.stdout
    sys.stdout = session.streams.stdout = open(os.devnull, "w")  # noqa: SIM115
    session.streams.stderr = None
    with fenced(session.streams.fence):
        for line in sys.stdin.read().splitlines():
            outcome = session.execute(line)
            said = "" if outcome.failure is None else f"{outcome.failure.message}"
            print(json.dumps({"line": line, "said": said, "opened": opened.take()}), file=stdout, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
