"""A fence around reading, for a process whose lines come from somebody else: it reads only what it was started with.

An audit hook sees every file and folder that Python opens, whichever library opens it, so that no reader can forget to
ask. Libraries that open a file without Python get its path from ``tinytf.files``, which opens it first. A hook cannot
be removed, so the fence is one of the whole process.
"""

import errno
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tinytf.files import lasting_paths, resolve_links

_SYSTEM = (
    "/dev/null", "/dev/urandom", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/self/maps", "/proc/self/stat",
    "/proc/self/statm", "/proc/self/status", "/sys/devices/system", "/etc/localtime", "/usr/share/zoneinfo",
)  # fmt: skip
"""What Python and its libraries read of the system: nothing of a user."""
_SCRIPTS = ("stdlib", "platstdlib", "purelib", "platlib")


class ReadFence:
    """Until ``close``, notes what the process reads; from then on it reads only that, what lies below ``named``, files
    of open models, and Python's libraries. Anything else raises PermissionError.
    """

    def __init__(self, *named: Path) -> None:
        self._files: set[str] = set()
        self._folders = {str(resolve_links(path)) for path in (*named, *map(Path, _SYSTEM), *_libraries())}
        self._listed = {os.path.realpath(folder) for folder in sys.path}
        self._is_closed = False
        sys.addaudithook(self._check)

    def close(self) -> None:
        """Permit nothing more than what was read so far."""
        self._folders.update(str(resolve_links(path)) for path in _imported())
        self._files.update(str(resolve_links(path)) for path in lasting_paths())
        self._is_closed = True

    def _check(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if flags & (os.O_WRONLY | os.O_EXCL):  # written, for ``tinytf.outputs`` to permit, or new
                return
        elif event in ("os.listdir", "os.scandir"):
            path = arguments[0] or "."
        else:
            return
        if isinstance(path, int):  # open already
            return
        resolved = os.path.realpath(os.fsdecode(path))
        if not self._is_closed:
            self._files.add(resolved)
        elif not self._permits(resolved) and (event == "open" or resolved not in self._listed):
            message = "it was not named when this was started"
            raise PermissionError(errno.EACCES, message, os.fsdecode(path))

    def _permits(self, resolved: str) -> bool:
        parents = map(str, Path(resolved).parents)
        return resolved in self._files or resolved in self._folders or not self._folders.isdisjoint(parents)


def _libraries() -> Iterator[Path]:
    """Folders of Python and of installed packages."""
    yield from (Path(sysconfig.get_path(name)) for name in _SCRIPTS)
    yield from map(Path, (*site.getsitepackages(), site.getusersitepackages()))
    yield from (Path(folder) for folder in sys.path if Path(folder).name in ("site-packages", "dist-packages"))


def _imported() -> Iterator[Path]:
    """Folders of the packages that are imported, wherever they lie."""
    for name, module in list(sys.modules.items()):
        if "." not in name:
            yield from map(Path, getattr(module, "__path__", ()))
