"""Files of the user that make tinytf run programs: nobody else may be able to write them."""

import os
from pathlib import Path

from tinytf.errors import UsageError

_WRITABLE_BY_OTHERS = 0o022


def require_private(path: Path, refused: str) -> None:
    """Raise UsageError if a file or its folder belongs to another user, or others may write to it (POSIX only).

    Of a link, the file that it leads to is checked too. ``refused`` begins the message, such as "FILE was not run".
    """
    if not hasattr(os, "geteuid"):
        return
    target = path.resolve()
    for checked in dict.fromkeys((path, path.parent, target, target.parent)):
        try:
            status = checked.stat()
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from None
        if status.st_uid != os.geteuid():
            raise UsageError(f"{refused}: {checked} belongs to another user", "take ownership with chown")
        if status.st_mode & _WRITABLE_BY_OTHERS:
            raise UsageError(f"{refused}: others may write to {checked}", f"chmod go-w {checked}")
