"""Shard a model's parameters among processes with torch's FSDP2; unsharded models and tensors pass through unchanged.

A DTensor is recognised by its attributes, since importing torch.distributed takes a good part of a second.
"""

import torch
from torch import Tensor, nn

from tinytf.model.transformer import Transformer


def shard_model(model: Transformer, device: torch.device) -> Transformer:
    """Shard the model in place: each process holds a part of every parameter, its gradient and its moments.

    Each block is gathered when it runs; embeddings, final norm and head once per pass.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for stack in model.stacks.values():
        for block in stack.blocks:
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    # A pass begins with `hidden`; the embeddings stay gathered until its end, for a head that shares them.
    register_fsdp_forward_method(model, "hidden")
    register_fsdp_forward_method(model, "read")
    return model


def reshard_model(model: nn.Module) -> None:
    """Shard a model again after its use outside of a training step."""
    if reshard := getattr(model, "reshard", None):
        reshard()


def gather(tensor: Tensor) -> Tensor:
    """The full tensor; every process must call this."""
    full_tensor = getattr(tensor, "full_tensor", None)
    return tensor if full_tensor is None else full_tensor()


def local_part(tensor: Tensor) -> Tensor:
    """This process's part of a tensor."""
    part = getattr(tensor, "to_local", None)
    return tensor if part is None else part()


def shard_like(template: Tensor, tensor: Tensor) -> Tensor:
    """This process's part of a full tensor, the same in every process, sharded like ``template``."""
    tensor = tensor.to(template.device)
    if not hasattr(template, "placements"):
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(template, DTensor)
    return distribute_tensor(tensor, template.device_mesh, template.placements)
