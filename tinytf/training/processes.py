"""Several processes train one model on parts of every batch, by torch's own DistributedDataParallel or FSDP2.

torchrun starts them: ``torchrun --nproc-per-node 2 -m tinytf_cli train …``.
"""

import gc
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from tinytf.errors import TrainingError, UsageError
from tinytf.text.printable import printable
from tinytf.training.data import IGNORED, Batch

_SILENCE, _PATIENCE = 3.0, 300
"""Seconds until a line says what is waited for, and until a process no longer waits for the others to start."""


@dataclass(frozen=True)
class Processes:
    """The processes that train together: this is ``rank`` of ``count``, and the first writes.

    With ``shard`` each holds a part of the model.
    """

    rank: int = 0
    count: int = 1
    shard: bool = False

    @property
    def writes(self) -> bool:
        return self.rank == 0

    @property
    def measures(self) -> bool:
        """Whether this process takes part where the model is only measured; if divided, all do."""
        return self.writes or self.shard

    def share(self, batch: Batch) -> Batch:
        """This process's rows of a batch: every ``count``-th; one without a target where there are not so many."""
        if self.rank < len(batch.ids):
            return batch if self.count == 1 else batch[self.rank :: self.count]
        return replace(batch[:1], targets=torch.full_like(batch.targets[:1], IGNORED))

    def total(self, number: float) -> float:
        """The sum over all processes."""
        if self.count == 1:
            return number
        tensor = torch.tensor(number, dtype=torch.float64, device=self._device())
        dist.all_reduce(tensor)
        return float(tensor)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return self.total(float(flag)) > 0

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.count > 1:
            dist.barrier()

    def synchronised(self, module: nn.Module) -> nn.Module:
        """The module, its gradients averaged over all processes."""
        return module if self.count == 1 or self.shard else nn.parallel.DistributedDataParallel(module)

    @staticmethod
    def accumulating(module: nn.Module) -> AbstractContextManager[Any]:
        """Accumulate gradients in this process alone; the next pass outside shares them."""
        return module.no_sync() if isinstance(module, nn.parallel.DistributedDataParallel) else nullcontext()

    def gathered(self, tensor: Tensor) -> list[Tensor]:
        """The tensor of every process, by rank."""
        if self.count == 1:
            return [tensor]
        found = [torch.empty_like(tensor, device=self._device()) for _ in range(self.count)]
        dist.all_gather(found, tensor.to(self._device()))
        return [one.cpu() for one in found]

    @staticmethod
    def _device() -> torch.device:
        return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


def started_as() -> tuple[int, int]:
    """The rank of this process and how many there are, as torchrun says in the environment.

    Raises UsageError where the environment asks for several, and does not say all that they need.
    """
    hint = "torchrun sets all of it: torchrun --nproc-per-node 2 -m tinytf_cli train …; unset WORLD_SIZE to train alone"
    if (count := _whole("WORLD_SIZE", 1, hint)) == 1:
        return 0, 1
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise UsageError(f"WORLD_SIZE asks for {count:,} processes, without {', '.join(missing)}", hint)
    if (rank := _whole("RANK", 0, hint)) >= count:
        raise UsageError(f"RANK is {rank:,}, and WORLD_SIZE {count:,}: ranks count from 0", hint)
    for name in ("MASTER_PORT", "LOCAL_RANK"):
        _whole(name, 0, hint)
    return rank, count


def _whole(name: str, least: int, hint: str) -> int:
    """The whole number that a variable of the environment holds, ``least`` without one."""
    text = os.environ.get(name) or str(least)
    if not (text.isascii() and text.isdecimal()) or not least <= int(text[:10]):
        raise UsageError(f"the environment says {name}={printable(text)}, which is no whole number from {least}", hint)
    return int(text[:10])


@contextmanager
def processes(
    device: torch.device, *, shard: bool = False, on_note: Callable[[str], None] = lambda _: None
) -> Iterator[Processes]:
    """The processes that torchrun started, or this one alone, which cannot ``shard`` a model.

    Raises TrainingError where the others do not come; ``on_note`` hears that they are waited for.
    """
    _, count = started_as()
    if count == 1:
        if shard:
            raise UsageError(
                "--shard divides a model among processes, and there is one",
                "start several: torchrun --nproc-per-node 2 -m tinytf_cli train … --shard",
            )
        yield Processes()
        return
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    _meet("nccl" if device.type == "cuda" else "gloo", count, on_note)
    try:
        yield Processes(dist.get_rank(), dist.get_world_size(), shard)
        gc.collect()  # free what still refers to the group first
        dist.barrier()  # nobody leaves while another still needs the group
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        raise TrainingError(
            "another process of this run has ended, and this one cannot continue without it",
            "its own message says why; --resume continues from the last checkpoint",
        ) from None
    finally:
        dist.destroy_process_group()


def _meet(backend: str, count: int, on_note: Callable[[str], None]) -> None:
    """Begin to work with the other processes once all are there."""
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    said = f"waits at {where} for all {count} processes, at most {_PATIENCE:,} s; torchrun starts them"
    notice = threading.Timer(_SILENCE, on_note, (said,))
    notice.daemon = True
    notice.start()
    try:
        if os.environ["RANK"] != "0":
            _await_first()
        store, rank, _ = next(rendezvous("env://", timeout=timedelta(seconds=_PATIENCE)))
        store.set(f"tinytf {rank}", "here")
        store.wait([f"tinytf {other}" for other in range(count)], timedelta(seconds=_PATIENCE))
        dist.init_process_group(backend, store=store, rank=rank, world_size=count)
    except (dist.DistError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise TrainingError(
            f"not all {count} processes have met at {where} within {_PATIENCE:,} s: {printable(reason, spaces=False)}",
            "start all of them, by torchrun --nproc-per-node 2 -m tinytf_cli train …, or unset WORLD_SIZE",
        ) from None
    finally:
        notice.cancel()


def _await_first() -> None:
    """Return when the first process listens; torch itself prints its stack when it gives up. Raises OSError."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 5).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return
