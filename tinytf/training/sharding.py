"""A model whose parameters are divided among processes, by torch's FSDP2; its checkpoints are whole."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from tinytf.model.transformer import Transformer
from tinytf.training.processes import Whole


class Divided(Whole):
    """Every process holds a part of each parameter, of its gradient and of its moments."""

    parts = True

    def place(self, model: Transformer, device: torch.device) -> Transformer:
        """The model, divided in place.

        Each block is gathered when it is needed; embeddings, final norm and head once per pass.
        """
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        # A pass begins with `hidden`; the embeddings stay gathered until its end, for a head that shares them.
        register_fsdp_forward_method(model, "hidden")
        return model

    def apart(self, model: nn.Module) -> None:
        if isinstance(model, FSDPModule):
            model.reshard()

    def whole(self, tensor: Tensor) -> Tensor:
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def own(self, tensor: Tensor) -> Tensor:
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def divided(self, tensor: Tensor, like: Tensor) -> Tensor:
        if not isinstance(like, DTensor):
            return tensor.to(like.device)
        return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)
