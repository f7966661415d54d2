"""What people change by mistake, as functions of a model."""

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import gguf
import torch
from torch import Tensor, nn
from transformers import cache_utils

from broken.bench import Broken, Patch
from broken.models import made


def each(model: Any, kind: str) -> Iterator[Any]:
    return (module for module in model.modules() if type(module).__name__.endswith(kind))


def layer_of(model: Any, number: int) -> Any:
    return model.model.layers[number]


def moved(path: str, layer: int, other: int) -> Broken:
    """The tensor of another layer."""

    def broken(model: Any, patch: Patch) -> None:
        weight = layer_of(model, layer).get_submodule(path).weight
        weight.data = layer_of(model, other).get_submodule(path).weight.data.clone()

    return broken


def changed(path: str, layer: int | None, change: Callable[[Tensor], Tensor]) -> Broken:
    """A weight, of one layer or of all, through a function."""

    def broken(model: Any, patch: Patch) -> None:
        for number, one in enumerate(model.model.layers):
            if layer in (None, number):
                weight = one.get_submodule(path).weight
                weight.data = change(weight.data)

    return broken


def exchanged(a: str, b: str, layer: int) -> Broken:
    def broken(model: Any, patch: Patch) -> None:
        one, other = (layer_of(model, layer).get_submodule(path) for path in (a, b))
        one.weight.data, other.weight.data = other.weight.data, one.weight.data

    return broken


def rounded(change: Callable[[Tensor], Tensor]) -> Broken:
    """Every matrix of the blocks, rounded."""

    def broken(model: Any, patch: Patch) -> None:
        for module in model.model.layers.modules():
            if isinstance(module, nn.Linear):
                module.weight.data = change(module.weight.data)

    return broken


def to(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda weight: weight.to(dtype).float()


def int8_by_row(weight: Tensor) -> Tensor:
    scale = weight.abs().amax(-1, keepdim=True) / 127
    return (weight / scale).round() * scale


def blocks(kind: Any) -> Callable[[Tensor], Tensor]:
    return lambda weight: torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), kind), kind))


def modules(kind: str, **values: Any) -> Broken:
    """Attributes of every module of a kind."""

    def broken(model: Any, patch: Patch) -> None:
        for module in each(model, kind):
            for name, value in values.items():
                setattr(module, name, value(module) if callable(value) else value)

    return broken


def function(home: Any, name: str, made: Callable[[Any], Any]) -> Broken:
    """A function or class of transformers, in another form."""
    return lambda model, patch: patch(home, name, made(getattr(home, name)))


def base(base: float, which: str = "inv_freq") -> Broken:
    def broken(model: Any, patch: Patch) -> None:
        inverse = getattr(model.model.rotary_emb, which)
        inverse.copy_(base ** -(torch.arange(len(inverse)) / len(inverse)))

    return broken


def given_to(**values: Callable[[int], Any]) -> Broken:
    """Other arguments of the forward pass, from the count of tokens."""
    return lambda model, patch: values


def attention(before: Callable[..., tuple[Any, ...]] = lambda *given: given, scaling: float = 1.0) -> Any:
    """Attention with other queries, keys, values or mask, or another scaling."""

    def made(plain: Any) -> Any:
        def attention(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, **more: Any) -> Any:
            q, k, v, mask = before(q, k, v, mask)
            more["scaling"] = more.get("scaling", module.scaling) * scaling
            return plain(module, q, k, v, mask, **more)

        return attention

    return made


def returned(which: int) -> Broken:
    """A cache that returns the last key (0) or value (1) of earlier passes in place of a new one."""
    plain = cache_utils.DynamicLayer.update

    def update(layer: Any, keys: Tensor, values: Tensor, *more: Any, **settings: Any) -> tuple[Tensor, ...]:
        both = [*plain(layer, keys, values, *more, **settings)]
        if keys.shape[-2] == 1:
            both[which] = torch.cat((both[which][..., :-1, :], both[which][..., -2:-1, :]), dim=-2)
        return tuple(both)

    return lambda model, patch: patch(cache_utils.DynamicLayer, "update", update)


def tiled(plain: Any) -> Any:
    return lambda states, times: states.repeat(1, times, 1, 1)


def rotate_pairs(plain: Any) -> Any:
    def turned(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *more: Any, **named: Any) -> tuple[Tensor, Tensor]:
        cos, sin = (wave[..., : wave.shape[-1] // 2].unsqueeze(1) for wave in (cos, sin))

        def one(x: Tensor) -> Tensor:
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)

        return one(q), one(k)

    return turned


def skip(path: str, layer: int | None = None, result: Callable[[Any], Any] = lambda args: args[0]) -> Any:
    """A module whose output is replaced: by its input, or by ``result`` of its arguments."""

    def broken(model: Any, patch: Patch) -> None:
        for number, one in enumerate(model.model.layers):
            if layer in (None, number):
                module = one.get_submodule(path)
                plain = module.forward
                module.forward = lambda *args, plain=plain, **named: result((*args, *named.values(), plain))

    return broken


def shaken(model: Any) -> None:
    """Every matrix rounds a little otherwise, by less than what counts as a difference."""
    generator = torch.Generator().manual_seed(5)

    def shake(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        return out + 3e-5 * out.abs().amax(-1, keepdim=True) * (2 * torch.rand(out.shape, generator=generator) - 1)

    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(shake)


# by the path of modules and parameters, in any family


def steps(layer: int, *names: str) -> str:
    return " ".join(f"L{layer}.{name}" for name in names)


def seen(layer: int) -> str:
    """The steps of one layer at which a fault of its attention may first be seen, by what a dump has."""
    return steps(
        layer, *["q_rot", "k_rot", "scores", "scaled", "capped", "masked", "weights", "head_out", "concat", "attn"]
    )


def _called(model: nn.Module, path: str) -> Iterator[nn.Module]:
    matches = [module for name, module in model.named_modules() if re.search(f"(^|[.]){path}$", name)]
    if not matches:
        raise LookupError(path)
    return iter(matches)


def result(path: str, change: Callable[[Any, Any, Any], Any]) -> Broken:
    """What modules return, through a function of it, of their input, and of the module."""

    def broken(model: Any, patch: Patch) -> None:
        for module in _called(model, path):
            module.register_forward_hook(
                lambda module, args, named, out: change(out, next(iter((*args, *named.values())), None), module),
                with_kwargs=True,
            )

    return broken


def entering(path: str, change: Callable[[Tensor], Tensor]) -> Broken:
    """What modules are given, through a function."""

    def broken(model: Any, patch: Patch) -> None:
        for module in _called(model, path):
            module.register_forward_pre_hook(
                lambda module, args, named: (
                    ((change(args[0]), *args[1:]), named)
                    if args
                    else (args, {name: change(one) if name == "hidden_states" else one for name, one in named.items()})
                ),
                with_kwargs=True,
            )

    return broken


def tensors(path: str, change: Callable[[Tensor], Tensor]) -> Broken:
    """Parameters and buffers, through a function."""

    def broken(model: Any, patch: Patch) -> None:
        every = [*model.named_parameters(), *model.named_buffers()]
        matches = [tensor for name, tensor in every if re.search(f"(^|[.]){path}$", name)]
        if not matches:
            raise LookupError(path)
        for tensor in matches:
            tensor.data = change(tensor.data.clone())

    return broken


def swapped(a: str, b: str) -> Broken:
    """Two tensors, in each other's place."""

    def broken(model: Any, patch: Patch) -> None:
        named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        named[a].data, named[b].data = named[b].data.clone(), named[a].data.clone()

    return broken


def layers_exchanged(a: int, b: int, part: str = "") -> Broken:
    """Every tensor of a layer of a Llama, or of a part of it, in the place of another layer's."""

    def broken(model: Any, patch: Patch) -> None:
        for name, one in layer_of(model, a).named_parameters():
            other = layer_of(model, b).get_parameter(name)
            if name.startswith(part):
                one.data, other.data = other.data.clone(), one.data.clone()

    return broken


def without(path: str) -> Broken:
    """Parameters that a loader does not find, and so leaves at 0."""
    return tensors(path, torch.zeros_like)


def left_out(path: str) -> Broken:
    """Modules that return their input."""
    return result(path, lambda out, given, module: given)


def replaced(name: str, make: Callable[[Any], Any]) -> Broken:
    """A function of the file of the model, in another form."""

    def broken(model: Any, patch: Patch) -> None:
        home = sys.modules[type(model).__module__]
        patch(home, name, make(getattr(home, name)))

    return broken


def scores(
    scale: float = 1.0,
    cap: float | None = None,
    behind: float | None = None,
    mask: Callable[[Tensor], Tensor | None] = lambda mask: mask,
    keys: Callable[[Tensor], Tensor] = lambda keys: keys,
    share: Callable[[Tensor, Any], Tensor] = lambda scores, module: scores.softmax(-1),
    apart: Callable[[Tensor], Tensor] = lambda scores: scores,
) -> Broken:
    """Attention by hand: another scale, cap (before the mask or ``behind`` it), mask, keys, or way to shares."""

    def make(plain: Any) -> Any:
        def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, hidden: Any, **more: Any) -> Any:
            scaling = more.get("scaling") or getattr(module, "scaling", None) or q.shape[-1] ** -0.5
            k, v = (one.repeat_interleave(q.shape[1] // one.shape[1], 1) for one in (keys(k), v))
            found = apart(q @ k.mT * scaling * scale)
            limit = more.get("softcap") if cap is None else cap
            found = found if not limit else limit * torch.tanh(found / limit)
            seen = None if hidden is None else mask(hidden)
            found = found if seen is None else found + seen
            found = found if behind is None else behind * torch.tanh(found / behind)
            weights = share(found, module)[..., : k.shape[-2]]
            return (weights @ v).transpose(1, 2).contiguous(), weights

        return attend

    return replaced("eager_attention_forward", make)


def sunk(times: float) -> Callable[[Tensor, Any], Tensor]:
    """Shares with a sink of its own a head, ``times`` as large; at 0 with an extra score of 0."""

    def share(scores: Tensor, module: Any) -> Tensor:
        sinks = module.sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        return torch.cat((scores, times * sinks), -1).softmax(-1)

    return share


def waves(change: Callable[[Tensor, Tensor], Any]) -> Broken:
    """The cosines and sines, through a function."""
    return result("rotary_emb", lambda out, given, module: change(*out))


def several(*changes: Broken) -> Broken:
    """Changes that make one mistake together."""

    def broken(model: Any, patch: Patch) -> None:
        for change in changes:
            change(model, patch)

    return broken


def setting(name: str, **changed: Any) -> Broken:
    """A model of another configuration, with the weights of this one."""

    def broken(model: Any, patch: Patch) -> Any:
        other = made(name, **changed)
        other.load_state_dict(model.state_dict(), strict=False)
        return other

    return broken


def method(kind: str, name: str, make: Callable[[Any, Any], Any]) -> Broken:
    """A method of every module of a kind, made from the module and the method."""

    def broken(model: Any, patch: Patch) -> None:
        for module in each(model, kind):
            setattr(module, name, make(module, getattr(module, name)))

    return broken


def by_head(heads: int, change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A change of the rows of a matrix or bias seen by head, (H, D, …)."""
    return lambda weight: change(weight.unflatten(0, (heads, -1))).reshape(weight.shape)
