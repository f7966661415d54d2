"""Several processes train one model on parts of every batch, with torch's DistributedDataParallel or FSDP2.

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
from torch import nn
from torch.distributed.rendezvous import rendezvous

from tinytf.errors import TrainingError, UsageError
from tinytf.text.printable import printable
from tinytf.training.data.examples import Batch

TIMEOUT = 600
"""Default seconds that a process waits for the others in a collective operation."""
_SILENCE, _PATIENCE, _POLL = 3.0, 300, 60
"""Seconds until a note says what is awaited; until a process gives up on the others at the start; and between checks
that the first process still runs."""


@dataclass(frozen=True)
class Processes:
    """The processes that train together: this one is ``rank`` of ``count``, and rank 0 writes.

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
        """Whether this process takes part in measurements; with a sharded model all do."""
        return self.writes or self.shard

    def parts(self, batch: Batch, count: int = 1) -> list[Batch]:
        """This process's rows of a batch, every ``self.count``-th, in ``count`` parts that run one after the other.

        All processes have equally many parts; a part without rows is one row without targets.
        """
        longest = -(-len(batch.ids) // self.count)
        own_rows, rows = batch if self.count == 1 else batch[self.rank :: self.count], -(-longest // count)
        parts = (own_rows[first : first + rows] for first in range(0, longest, rows))
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

    def gathered(self, value: object) -> list[Any]:
        """The value of every process, by rank, in the first; the others get nothing."""
        if self.count == 1:
            return [value]
        values: list[Any] | None = [None] * self.count if self.writes else None
        dist.gather_object(value, values)
        return values or []

    def wait(self) -> None:
        """Wait until the first process gets here, however long it works alone; the first waits for nobody."""
        if self.count == 1:
            return
        key = f"tinytf wait {next(self._waits)}"
        if self.writes:
            self.store.set(key, "here")
        while not self.writes:
            with suppress(dist.DistStoreError):  # it still works: if it were gone, the store would fail
                self.store.wait([key], timedelta(seconds=_POLL))
                return

    def averaging(self, module: nn.Module) -> nn.Module:
        """Wrap a module so that its gradients are averaged over all processes."""
        return module if self.count == 1 or self.shard else nn.parallel.DistributedDataParallel(module)

    @staticmethod
    def accumulating(module: nn.Module) -> AbstractContextManager[Any]:
        """Accumulate gradients in this process only; the next backward pass outside this context shares them."""
        return module.no_sync() if isinstance(module, nn.parallel.DistributedDataParallel) else nullcontext()

    @staticmethod
    def _device() -> torch.device:
        return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


ALONE = Processes()
"""A single process that trains alone."""


def rank_and_count() -> tuple[int, int]:
    """The rank of this process and the number of processes, as torchrun sets them in the environment.

    Raises UsageError if the environment asks for several processes but lacks some of their settings.
    """
    hint = (
        "torchrun sets all of them: torchrun --nproc-per-node 2 -m tinytf_cli train …; unset WORLD_SIZE to train alone"
    )
    if (count := _environment_number("WORLD_SIZE", 1, hint)) == 1:
        return 0, 1
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise UsageError(f"WORLD_SIZE asks for {count:,} processes, without {', '.join(missing)}", hint)
    if (rank := _environment_number("RANK", 0, hint)) >= count:
        raise UsageError(f"RANK is {rank:,}, but WORLD_SIZE is {count:,}: ranks count from 0", hint)
    for name in ("MASTER_PORT", "LOCAL_RANK"):
        _environment_number(name, 0, hint)
    return rank, count


def _environment_number(name: str, minimum: int, hint: str) -> int:
    """A whole number from the environment; ``minimum`` if the variable is not set."""
    text = os.environ.get(name) or str(minimum)
    if not (text.isascii() and text.isdecimal()) or not minimum <= int(text[:10]):
        raise UsageError(
            f"the environment has {name}={printable(text)}, which is not a whole number from {minimum}", hint
        )
    return int(text[:10])


@contextmanager
def processes(
    device: torch.device,
    *,
    shard: bool = False,
    timeout: float = TIMEOUT,
    on_note: Callable[[str], None] = lambda _: None,
) -> Iterator[Processes]:
    """Join the processes that torchrun started; a single process trains alone and cannot ``shard`` a model.

    Raises TrainingError if the others do not start, or do not join a collective operation within ``timeout`` seconds;
    ``on_note`` is told when this process waits for them.
    """
    _, count = rank_and_count()
    if count == 1:
        if shard:
            raise UsageError(
                "--shard divides a model among processes, and there is only one",
                "start several: torchrun --nproc-per-node 2 -m tinytf_cli train … --shard",
            )
        yield ALONE
        return
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    store = _join("nccl" if device.type == "cuda" else "gloo", count, timeout, on_note)
    group = Processes(dist.get_rank(), dist.get_world_size(), shard, store)
    try:
        yield group
        gc.collect()  # first free what still refers to the group
        group.wait()
        dist.barrier()  # keep the group until every process is done with it
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        if "timed out" in str(error).casefold():
            raise TrainingError(
                f"the other processes of this run have not come within {timeout:g} s",
                "one has ended, with a message of its own, or is slow (--process-timeout); --resume continues the run",
            ) from None
        raise TrainingError(
            "another process of this run has ended, and this one cannot continue without it",
            "its own message says why; --resume continues from the last checkpoint",
        ) from None
    finally:
        dist.destroy_process_group()


def _join(backend: str, count: int, timeout: float, on_note: Callable[[str], None]) -> Any:
    """Join the process group once all processes are there; returns the store that they share."""
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    message = f"waiting at {address} for all {count} processes, at most {_PATIENCE:,} s; torchrun starts them"
    notice = threading.Timer(_SILENCE, on_note, (message,))
    notice.daemon = True
    notice.start()
    try:
        if os.environ["RANK"] != "0":
            _await_first_process()
        store, rank, _ = next(rendezvous("env://", timeout=timedelta(seconds=_PATIENCE)))
        store.set(f"tinytf {rank}", "here")
        store.wait([f"tinytf {peer}" for peer in range(count)], timedelta(seconds=_PATIENCE))
        limit = timedelta(seconds=timeout)
        dist.init_process_group(backend, timeout=limit, store=store, rank=rank, world_size=count)
        return store
    except (dist.DistError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise TrainingError(
            f"not all {count} processes met at {address} within {_PATIENCE:,} s: {printable(reason, spaces=False)}",
            "start all of them, by torchrun --nproc-per-node 2 -m tinytf_cli train …, or unset WORLD_SIZE",
        ) from None
    finally:
        notice.cancel()


def _await_first_process() -> None:
    """Return once the first process listens: torch would print a stack on giving up. Raises OSError."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 5).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return
