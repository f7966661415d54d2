"""Several processes train one model on parts of every batch, by torch's own DistributedDataParallel or FSDP2.

torchrun starts them: ``torchrun --nproc-per-node 2 -m tinytf_cli train …``.
"""

import gc
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from tinytf.errors import TrainingError, UsageError
from tinytf.text.printable import printable
from tinytf.training.data.examples import Batch

TIMEOUT = 600
"""Seconds that a process waits for the others where all work together, unless told otherwise."""
_SILENCE, _PATIENCE, _LOOK = 3.0, 300, 60
"""Seconds until a line says what is waited for, until a process no longer waits for the others to start, and between
looks whether the first is still there."""


@dataclass(frozen=True)
class Processes:
    """The processes that train together: this is ``rank`` of ``count``, and the first writes.

    With ``shard`` each holds a part of the model.
    """

    rank: int = 0
    count: int = 1
    shard: bool = False
    store: Any = None
    _waits: Iterator[int] = field(default_factory=itertools.count)

    @property
    def writes(self) -> bool:
        return self.rank == 0

    @property
    def measures(self) -> bool:
        """Whether this process takes part where the model is only measured; if divided, all do."""
        return self.writes or self.shard

    def parts(self, batch: Batch, count: int = 1) -> list[Batch]:
        """This process's rows of a batch, every ``self.count``-th, in ``count`` parts that pass one after the other.

        Every process has as many parts, and those for which it has no rows are without a target.
        """
        longest = -(-len(batch.ids) // self.count)
        mine, rows = batch if self.count == 1 else batch[self.rank :: self.count], -(-longest // count)
        parts = (mine[first : first + rows] for first in range(0, longest, rows))
        return [part if len(part.ids) else batch.without_targets() for part in parts]

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
        """Wait until the first process is here too, however long it works alone; it waits for none."""
        if self.count == 1:
            return
        place = f"tinytf wait {next(self._waits)}"
        if self.writes:
            self.store.set(place, "here")
        while not self.writes:
            with suppress(dist.DistStoreError):  # it works on; were it gone, so were the store, or torchrun ended all
                self.store.wait([place], timedelta(seconds=_LOOK))
                return

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


ALONE = Processes()
"""A process that trains without others."""


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
    device: torch.device,
    *,
    shard: bool = False,
    timeout: float = TIMEOUT,
    on_note: Callable[[str], None] = lambda _: None,
) -> Iterator[Processes]:
    """The processes that torchrun started, or this one alone, which cannot ``shard`` a model.

    Raises TrainingError where the others do not come, at the start or within ``timeout`` seconds where all work
    together; ``on_note`` hears that they are waited for.
    """
    _, count = started_as()
    if count == 1:
        if shard:
            raise UsageError(
                "--shard divides a model among processes, and there is one",
                "start several: torchrun --nproc-per-node 2 -m tinytf_cli train … --shard",
            )
        yield ALONE
        return
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    store = _meet("nccl" if device.type == "cuda" else "gloo", count, timeout, on_note)
    together = Processes(dist.get_rank(), dist.get_world_size(), shard, store)
    try:
        yield together
        gc.collect()  # free what still refers to the group first
        together.wait()
        dist.barrier()  # nobody leaves while another still needs the group
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        if "timed out" in str(error).casefold():
            raise TrainingError(
                f"the other processes of this run have not come within {timeout:g} s",
                "one has ended, and says why, or is slow (--process-timeout); --resume continues the run",
            ) from None
        raise TrainingError(
            "another process of this run has ended, and this one cannot continue without it",
            "its own message says why; --resume continues from the last checkpoint",
        ) from None
    finally:
        dist.destroy_process_group()


def _meet(backend: str, count: int, timeout: float, on_note: Callable[[str], None]) -> Any:
    """Begin to work with the other processes once all are there; returns the store that they share."""
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
        within = timedelta(seconds=timeout)
        dist.init_process_group(backend, timeout=within, store=store, rank=rank, world_size=count)
        return store
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
