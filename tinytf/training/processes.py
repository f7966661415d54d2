"""Several processes train one model on parts of every batch, by torch's own DistributedDataParallel or FSDP2.

torchrun starts them: ``torchrun --nproc-per-node 2 -m tinytf_cli train …``.
"""

import gc
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tinytf.errors import TrainingError, UsageError
from tinytf.training.data import Batch


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
        """This process's rows of a batch: every ``count``-th."""
        return batch if self.count == 1 else batch[self.rank :: self.count]

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


@contextmanager
def processes(device: torch.device, *, shard: bool = False) -> Iterator[Processes]:
    """The processes that torchrun started, or this one alone, which cannot ``shard`` a model."""
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
