"""Free memory, and sizes in words."""

import ctypes
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tinytf.errors import MemoryShortage

UNASKED = 64 * 2**20
"""Below this many bytes the free memory is not checked."""


def free_bytes(device: torch.device) -> int:
    """Memory that is free on a device without swapping, within the limits of this process and its control group."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    import psutil

    return max(0, min(int(psutil.virtual_memory().available), _below_limit(), *_below_group_limits()))


def _below_limit() -> int:
    """What ``ulimit -v`` leaves of addresses."""
    try:
        import resource
    except ImportError:  # on Windows
        return sys.maxsize
    import psutil

    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    return sys.maxsize if most == resource.RLIM_INFINITY else most - psutil.Process().memory_info().vms


_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_IN_VERSION = {  # folder of the tree, its files of the limit and of what is used, and how a sum of a whole group begins
    1: ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    2: ("", "memory.max", "memory.current", ""),
}


def _below_group_limits() -> Iterator[int]:
    """What the control groups of this process leave, from the innermost outwards; pages of files can be let go."""
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:
        return
    for _, controllers, own in (line.split(":", 2) for line in lines):
        if controllers and "memory" not in controllers.split(","):
            continue
        tree, *names, prefix = _IN_VERSION[1 if controllers else 2]
        group = _GROUPS / tree / own.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(_GROUPS):
                try:
                    most, used = ((folder / name).read_text().strip() for name in names)
                    parts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                    pages = sum(int(parts.get(f"{prefix}{kind}_file", 0)) for kind in ("inactive", "active"))
                    yield int(most) - int(used) + pages
                except (OSError, ValueError):  # no such file, or no limit: "max"
                    continue


def require_free(what: str, needed: int, device: torch.device, hint: str) -> None:
    """Raise MemoryShortage, with both figures, if ``what`` takes more bytes than are free."""
    if needed > UNASKED and needed > (free := free_bytes(device)):
        raise MemoryShortage(f"{what} {in_gib(needed)}, and {in_gib(free)} are free", hint)


_ALIGNED = 64
"""The bytes of a cache line."""


def in_large_pages(count: int, like: Tensor) -> Tensor:
    """Room for ``count`` numbers; on the processor from numpy, whose large pages are a tenth faster to read."""
    if like.is_cpu:
        buffer = np.empty(count * like.itemsize + _ALIGNED, np.uint8)
        start = -buffer.ctypes.data % _ALIGNED
        return torch.from_numpy(buffer[start : start + count * like.itemsize]).view(like.dtype)
    return torch.empty(count, dtype=like.dtype, device=like.device)


_DROP, _PAGE_OUT = 4, 21
"""Linux's MADV_DONTNEED, which forgets what was written to a page, and MADV_PAGEOUT, which keeps it."""


def page_out(files: Iterable[Path]) -> None:
    """Let go of the pages of mapped ``files`` that are in memory: they are read again when they are used.

    A mapping that nobody wrote to leaves its pages in the system's cache of files, for the next process. Where the
    system has no such calls, nothing happens.
    """
    paths = {str(path.resolve()) for path in files}
    try:
        lines = Path("/proc/self/smaps").read_text(errors="surrogateescape").splitlines() if paths else []
    except OSError:
        return
    system, mapping = ctypes.CDLL(None), None
    written = 0
    for line in lines:
        key, *words = line.split(maxsplit=5)
        if not key.endswith(":"):
            path = words[-1] if len(words) == 5 else ""
            mapping, written = ([int(address, 16) for address in key.split("-")] if path in paths else None), 0
        elif key in ("Anonymous:", "Swap:"):
            written += int(words[0])
        elif key == "VmFlags:" and mapping is not None:
            first, last = mapping
            advice = _PAGE_OUT if written else _DROP
            system.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), advice)


def in_gib(number: int) -> str:
    return f"{number / 2**30:,.2f} GiB"
