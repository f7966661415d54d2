"""How much memory can still be had, and sizes in words."""

import torch

UNASKED = 64 * 2**20
"""Fewer bytes than these are taken without a look at the free memory."""


def free_bytes(device: torch.device) -> int:
    """Memory that can be had on a device without swapping."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    import psutil

    return int(psutil.virtual_memory().available)


def in_gib(number: int) -> str:
    return f"{number / 2**30:,.2f} GiB"
