"""A model whose parameters are divided among processes by torch's FSDP2; an undivided one passes through unchanged.

Tensors are asked for what a DTensor has, since torch.distributed takes a good part of a second to import.
"""

import torch
from torch import Tensor, nn

from tinytf.model.transformer import Transformer


def divide(model: Transformer, device: torch.device) -> Transformer:
    """The model, divided in place: each process holds a part of every parameter, of its gradient and its moments.

    Each block is gathered when it is needed; embeddings, final norm and head once per pass.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    # A pass begins with `hidden`; the embeddings stay gathered until its end, for a head that shares them.
    register_fsdp_forward_method(model, "hidden")
    return model


def redivide(model: nn.Module) -> None:
    """Divide a model again after it was used outside of a training step."""
    if hasattr(model, "reshard"):
        model.reshard()


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor; every process has to call it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def own(tensor: Tensor) -> Tensor:
    """This process's part of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def part_like(like: Tensor, tensor: Tensor) -> Tensor:
    """This process's part, as it has of ``like``, of a whole tensor that is the same in every process."""
    tensor = tensor.to(like.device)
    if not hasattr(like, "placements"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, like.device_mesh, like.placements)
