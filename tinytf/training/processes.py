"""Several processes that train one model on parts of every batch, by torch's own DistributedDataParallel or FSDP2.

torchrun starts them: ``torchrun --nproc-per-node 2 -m tinytf_cli train …``.
"""

import gc
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tinytf.errors import TrainingError, UsageError
from tinytf.training.data import Batch
from tinytf.training.holding import Whole


@dataclass(frozen=True)
class Processes:
    """All that train together: this is ``rank`` of ``count``, and the first of them writes.

    ``holding`` is what of the model each holds.
    """

    rank: int = 0
    count: int = 1
    holding: Whole = field(default_factory=Whole)

    @property
    def writes(self) -> bool:
        return self.rank == 0

    @property
    def looks(self) -> bool:
        """Whether this process takes part where the model is only looked at: those with a part of it all do."""
        return self.writes or self.holding.parts

    def share(self, batch: Batch) -> Batch:
        """The rows of a batch that are this process's: every ``count``-th."""
        if self.count == 1:
            return batch
        mask = None if batch.padding_mask is None else batch.padding_mask[self.rank :: self.count]
        return Batch(batch.ids[self.rank :: self.count], batch.targets[self.rank :: self.count], mask)

    def total(self, number: float) -> float:
        """The sum over all processes."""
        if self.count == 1:
            return number
        tensor = torch.tensor(number, dtype=torch.float64, device=self._device())
        dist.all_reduce(tensor)
        return float(tensor)

    def any(self, flag: bool) -> bool:
        """Whether it is so in any process."""
        return self.total(float(flag)) > 0

    def wait(self) -> None:
        """Until all have come here."""
        if self.count > 1:
            dist.barrier()

    def together(self, module: nn.Module) -> nn.Module:
        """The module, its gradients averaged over all processes."""
        return module if self.count == 1 or self.holding.parts else nn.parallel.DistributedDataParallel(module)

    @staticmethod
    def apart(module: nn.Module) -> AbstractContextManager[Any]:
        """A stretch in which gradients are added up here alone, for the next ones to be shared with."""
        return module.no_sync() if isinstance(module, nn.parallel.DistributedDataParallel) else nullcontext()

    def gathered(self, tensor: Tensor) -> list[Tensor]:
        """That of every process, in the order of their ranks."""
        if self.count == 1:
            return [tensor]
        found = [torch.empty_like(tensor, device=self._device()) for _ in range(self.count)]
        dist.all_gather(found, tensor.to(self._device()))
        return [one.cpu() for one in found]

    @staticmethod
    def _device() -> torch.device:
        return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


def _holding(shard: bool) -> Whole:
    if not shard:
        return Whole()
    from tinytf.training.sharding import Divided  # takes a good part of a second to import

    return Divided()


@contextmanager
def processes(device: torch.device, *, shard: bool = False) -> Iterator[Processes]:
    """Those that torchrun started; this one alone where there was none, which has nobody to ``shard`` a model with."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1 or "RANK" not in os.environ:
        if shard:
            raise UsageError(
                "--shard divides a model among processes, and there is one",
                "start several: torchrun --nproc-per-node 2 -m tinytf_cli train … --shard",
            )
        yield Processes()
        return
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Processes(dist.get_rank(), dist.get_world_size(), _holding(shard))
        gc.collect()  # what still holds on to the group goes before it
        dist.barrier()  # and nobody leaves while another still needs it
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        raise TrainingError(
            "another process of this run has ended, and this one cannot go on without it",
            "what that one said is the reason; --resume goes on from the last checkpoint",
        ) from None
    finally:
        dist.destroy_process_group()
