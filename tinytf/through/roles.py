"""What the modules of a model do, by its structure and by what they returned: no names are read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from tinytf.through.formulas import NORMS
from tinytf.through.recording import Call, Recording


@dataclass(frozen=True)
class Roles:
    """The ``stacks``, paths of the lists of layers that ran, the longest last, and the role of each path.

    A role is embedding, layer, attention, mixer, feed-forward, norm, final norm or head.
    """

    stacks: tuple[str, ...]
    by_path: Mapping[str, str]

    def first(self, role: str) -> str | None:
        """The path of the first module with a role."""
        return next((path for path, own in self.by_path.items() if own == role), None)

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers of the longest stack."""
        stack = self.stacks[-1] if self.stacks else None
        return tuple(
            path for path, role in self.by_path.items() if role == "layer" and path.rpartition(".")[0] == stack
        )


def ends_of(module: Any) -> tuple[Any, Any]:
    """What a model names as its input and output embeddings; None for one that it does not name."""
    ends = []
    for find in (module.get_input_embeddings, module.get_output_embeddings):
        try:
            ends.append(find())
        except (NotImplementedError, AttributeError):
            ends.append(None)
    return ends[0], ends[1]


def stacks_of(module: nn.Module) -> dict[str, nn.ModuleList]:
    """The lists of modules that are in no other list, by path."""
    lists = {path: part for path, part in module.named_modules() if isinstance(part, nn.ModuleList) and len(part)}
    return {path: part for path, part in lists.items() if not any(path.startswith(f"{other}.") for other in lists)}


def parts_of_layers(module: nn.Module) -> frozenset[str]:
    """The paths of the direct parts of all layers."""
    return frozenset(
        f"{path}.{number}.{name}"
        for path, layers in stacks_of(module).items()
        for number, layer in enumerate(layers)
        for name, _ in layer.named_children()
    )


def roles_of(module: Any, recording: Recording) -> Roles:
    """The role of each module that ran.

    Embedding and head are what the model itself names as its input and output embeddings. A layer is a member of a list
    of modules, and has parts. Attention is the innermost module that
    returned maps whose rows sum to 1. Of the other parts of a
    layer, a feed-forward gives a token the same numbers without the other tokens, and a mixer does not; both have
    matrices. A norm follows the formula of one, and the final norm reads the last layer.
    """
    calls = {call.name: call for call in recording.calls}
    stacks = {
        path: [f"{path}.{number}" for number in range(len(layers)) if f"{path}.{number}" in calls]
        for path, layers in stacks_of(module).items()
    }
    stacks = {
        path: own
        for path, own in stacks.items()
        if own and all(calls[layer].output.dim() > 2 and any(calls[layer].module.children()) for layer in own)
    }
    embedding, head = ends_of(module)
    embeddings = getattr(embedding, "weight", None)
    roles = {
        path: "head" if call.module is head else "embedding"
        for path, call in calls.items()
        if call.module is head or (embeddings is not None and getattr(call.module, "weight", None) is embeddings)
    }
    ordered = sorted(stacks, key=lambda path: len(stacks[path]))
    last = calls[stacks[ordered[-1]][-1]] if ordered else None
    layers = {layer for own in stacks.values() for layer in own}
    attentions = innermost(recording.calls)
    for path, call in calls.items():
        if path not in roles and (role := "attention" if path in attentions else _role(path, call, layers, last)):
            roles[path] = role
    return Roles(tuple(ordered), {path: roles[path] for path in calls if path in roles})


def innermost(calls: Sequence[Call]) -> frozenset[str]:
    """The paths of the modules that returned attention weights, and hold no other that did."""
    paths = [call.name for call in calls if call.weights is not None]
    return frozenset(path for path in paths if not any(other.startswith(f"{path}.") for other in paths))


def _role(path: str, call: Call, layers: set[str], last: Call | None) -> str:
    if path in layers:
        return "layer"
    if call.proof is not None and call.proof.holds and call.proof.formula in NORMS:
        reads_last = last is not None and call.source and call.source in (last.path, last.passes)
        return "final norm" if reads_last else "norm"
    is_part = path.rpartition(".")[0] in layers
    if is_part and call.alone is not None and sum(parameter.dim() > 1 for parameter in call.module.parameters()) > 1:
        return "feed-forward" if call.alone else "mixer"
    return ""
