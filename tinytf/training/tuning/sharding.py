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
    if reshard := getattr(model, "reshard", None):
        reshard()


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor; every process has to call it."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def own(tensor: Tensor) -> Tensor:
    """This process's part of a tensor."""
    part = getattr(tensor, "to_local", None)
    return tensor if part is None else part()


def part_like(like: Tensor, tensor: Tensor) -> Tensor:
    """This process's part, as it has of ``like``, of a whole tensor that is the same in every process."""
    tensor = tensor.to(like.device)
    if not hasattr(like, "placements"):
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(tensor, like.device_mesh, like.placements)
