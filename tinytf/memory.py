"""Free memory, and sizes in words."""

import torch

from tinytf.errors import MemoryShortage

UNASKED = 64 * 2**20
"""Below this many bytes the free memory is not checked."""


def free_bytes(device: torch.device) -> int:
    """Memory that is free on a device without swapping."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    import psutil

    return int(psutil.virtual_memory().available)


def require_free(what: str, needed: int, device: torch.device, hint: str) -> None:
    """Raise MemoryShortage, with both figures, if ``what`` takes more bytes than are free."""
    if needed > UNASKED and needed > (free := free_bytes(device)):
        raise MemoryShortage(f"{what} {in_gib(needed)}, and {in_gib(free)} are free", hint)


def in_gib(number: int) -> str:
    return f"{number / 2**30:,.2f} GiB"
