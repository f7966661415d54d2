"""Several processes train one model on parts of every batch, by torch's own DistributedDataParallel or FSDP2.

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
from tinytf.model.transformer import Transformer
from tinytf.training.data import Batch


class Whole:
    """Every process holds the whole model; in ``sharding`` each holds a part of it."""

    parts = False

    def place(self, model: Transformer, device: torch.device) -> Transformer:
        """The model, or this process's part of it, on its device."""
        return model.to(device)

    def apart(self, model: nn.Module) -> None:
        """Divide a model again after it was used outside of a training step."""

    def whole(self, tensor: Tensor) -> Tensor:
        """All of a tensor; every process has to call it."""
        return tensor

    def own(self, tensor: Tensor) -> Tensor:
        """This process's part of a tensor."""
        return tensor

    def divided(self, tensor: Tensor, like: Tensor) -> Tensor:
        """This process's part, as it has of ``like``, of a whole tensor that is the same in every process."""
        return tensor.to(like.device)


@dataclass(frozen=True)
class Processes:
    """The processes that train together: this is ``rank`` of ``count``, and the first writes.

    ``holding`` is how they hold the model.
    """

    rank: int = 0
    count: int = 1
    holding: Whole = field(default_factory=Whole)

    @property
    def writes(self) -> bool:
        return self.rank == 0

    @property
    def looks(self) -> bool:
        """Whether this process takes part where the model is only measured; if divided, all do."""
        return self.writes or self.holding.parts

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

    def together(self, module: nn.Module) -> nn.Module:
        """The module, its gradients averaged over all processes."""
        return module if self.count == 1 or self.holding.parts else nn.parallel.DistributedDataParallel(module)

    @staticmethod
    def apart(module: nn.Module) -> AbstractContextManager[Any]:
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
    holding = Whole()
    if shard:
        from tinytf.training.sharding import Divided  # takes a good part of a second to import

        holding = Divided()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Processes(dist.get_rank(), dist.get_world_size(), holding)
        gc.collect()  # free what still refers to the group first
        dist.barrier()  # nobody leaves while another still needs the group
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        raise TrainingError(
            "another process of this run has ended, and this one cannot go on without it",
            "what that one said is the reason; --resume goes on from the last checkpoint",
        ) from None
    finally:
        dist.destroy_process_group()
